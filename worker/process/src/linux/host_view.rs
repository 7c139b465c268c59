//! The parts of the host that a sandbox shows, and its initial tree.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::message::BindMount;

/// Top-level parts of an operating system. If the host has merged them into `/usr`, they are the
/// same links inside, except the libraries. `/usr` itself is in memory and shows the host's parts
/// one by one. So `/usr/src`, which images often use, can be an ordinary directory, and a sandbox
/// has few directories on disk: making and removing them is most of its cost.
const SYSTEM: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix"];

/// Directory in which the configuration is shown, with links to it at its usual place.
const CONFIGURATION_AT: &str = "usr/.host";

/// Configuration that programs of `/usr` need and that holds no secrets. Never whole trees such as
/// `/etc/ssl`, which holds private keys beside certificates.
const CONFIGURATION: [&str; 22] = [
    "etc/alternatives",
    "etc/ca-certificates",
    "etc/crypto-policies",
    "etc/fonts",
    "etc/java",
    "etc/java-11-openjdk",
    "etc/java-17-openjdk",
    "etc/java-21-openjdk",
    "etc/ld.so.conf.d",
    "etc/perl",
    "etc/pki/ca-trust",
    "etc/pki/java",
    "etc/pki/tls/certs",
    "etc/profile.d",
    "etc/python3",
    "etc/python3.11",
    "etc/python3.12",
    "etc/python3.13",
    "etc/R",
    "etc/ssl/certs",
    "etc/static",
    "etc/terminfo",
];

/// Small files that are copied, so that they can be changed inside.
const COPIED: [&str; 20] = [
    "etc/bash.bashrc",
    "etc/debian_version",
    "etc/gai.conf",
    "etc/host.conf",
    "etc/inputrc",
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/locale.alias",
    "etc/locale.conf",
    "etc/localtime",
    "etc/login.defs",
    "etc/magic",
    "etc/mime.types",
    "etc/os-release",
    "etc/profile",
    "etc/protocols",
    "etc/resolv.conf",
    "etc/services",
    "etc/ssl/openssl.cnf",
    "etc/timezone",
];

/// Directories of an empty system, with their modes.
const DIRECTORIES: [(&str, u32); 19] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/src", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("run/lock", 0o1777),
];

/// Files in every sandbox.
const FILES: [(&str, &str); 6] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    ),
    ("etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"),
    ("etc/hosts", "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
    ("etc/hostname", "sandbox\n"),
    (PRELOAD, ""),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
];

/// The directory that is in memory, ...
pub(super) const USR: &str = "usr";

/// ... except this part of it.
pub(super) const OWN_USR: &str = "usr/src";

/// The directory that is a separate mount, so that it cannot be replaced together with ...
pub(super) const ETC: &str = "etc";

/// ... this file, which stays empty: every program reads it, the supervisor's helper too.
pub(super) const PRELOAD: &str = "etc/ld.so.preload";

/// The host name inside.
pub(super) const HOSTNAME: &str = "sandbox";

/// The parts of this host that every sandbox shows.
#[derive(Debug, Clone)]
pub(super) struct HostView {
    /// Read-only parts.
    pub(super) binds: Vec<BindMount>,
    /// Links at the top, with their targets.
    links: Vec<(PathBuf, PathBuf)>,
}

impl HostView {
    /// Reads the host's layout.
    pub(super) fn detect() -> Self {
        let mut host = Self { binds: Vec::new(), links: Vec::new() };
        for name in SYSTEM {
            let source = Path::new("/").join(name);
            match fs::symlink_metadata(&source) {
                Ok(meta) if meta.is_dir() => host.bind(name),
                // The loader is here, and a link could be replaced inside.
                Ok(meta) if meta.is_symlink() && name.starts_with("lib") && source.is_dir() => {
                    host.bind(name);
                }
                Ok(meta) if meta.is_symlink() => {
                    if let Ok(target) = fs::read_link(&source) {
                        host.links.push((name.into(), target));
                    }
                }
                _ => {}
            }
        }
        for entry in fs::read_dir("/usr").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| *name != "src") else { continue };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => host.bind(&format!("usr/{name}")),
                _ => {}
            }
        }
        host.binds.sort_by(|a, b| a.target.cmp(&b.target));
        for name in CONFIGURATION {
            if fs::symlink_metadata(Path::new("/").join(name)).is_ok_and(|meta| meta.is_dir()) {
                let target = Path::new(CONFIGURATION_AT).join(name);
                host.links.push((name.into(), Path::new("/").join(&target)));
                host.binds.push(BindMount { source: Path::new("/").join(name), target });
            }
        }
        host
    }

    fn bind(&mut self, name: &str) {
        self.binds.push(BindMount { source: Path::new("/").join(name), target: name.into() });
    }

    /// The part of the host, or of the kernel, that would hide a file at `path` (relative to the
    /// root).
    pub(super) fn hidden_by(&self, path: &Path) -> Option<PathBuf> {
        if path.starts_with(OWN_USR) {
            return None;
        }
        let binds = self.binds.iter().map(|bind| bind.target.as_path());
        let links = self.links.iter().map(|(link, _)| link.as_path());
        let others = [USR, "proc", "dev", "sys"].map(Path::new);
        let found = others.into_iter().chain(binds).chain(links).find(|by| path.starts_with(by))?;
        Some(Path::new("/").join(found))
    }

    /// Fills the empty directory `root`.
    ///
    /// # Errors
    /// When something cannot be written. Files of the host that cannot be read are left out.
    pub(super) fn populate(&self, root: &Path) -> io::Result<()> {
        for (name, mode) in DIRECTORIES {
            let dir = root.join(name);
            fs::DirBuilder::new().mode(mode).create(&dir)?;
            // The mode at creation is cut by the umask.
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode))?;
        }
        for (link, target) in &self.links {
            make_parents(root, link)?;
            symlink(target, root.join(link))?;
        }
        for bind in self.binds.iter().filter(|bind| !bind.target.starts_with(USR)) {
            make_parents(root, &bind.target.join("x"))?;
        }
        for name in COPIED {
            let Ok(content) = fs::read(Path::new("/").join(name)) else { continue };
            make_parents(root, Path::new(name))?;
            fs::write(root.join(name), content)?;
        }
        for (name, content) in FILES {
            fs::write(root.join(name), content)?;
        }
        Ok(())
    }
}

/// Makes the directories above `path`; `root` is not in use yet.
fn make_parents(root: &Path, path: &Path) -> io::Result<()> {
    let parent = path.parent().expect("a path with a name has a parent");
    fs::DirBuilder::new().recursive(true).mode(0o755).create(root.join(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_root_has_mount_points_and_no_etc_shadow() {
        let dir = tempfile::tempdir().expect("directory");
        let host = HostView::detect();
        host.populate(dir.path()).expect("furnished");
        for bind in &host.binds {
            let on_disk = dir.path().join(&bind.target).is_dir();
            assert_eq!(on_disk, !bind.target.starts_with(USR), "{bind:?}");
        }
        let tmp = fs::metadata(dir.path().join("tmp")).expect("there").permissions().mode();
        assert_eq!(tmp & 0o7777, 0o1777);
        assert!(!dir.path().join("etc/shadow").exists());
        assert_eq!(host.hidden_by(Path::new("usr/local/bin/x")), Some("/usr".into()));
        assert_eq!(host.hidden_by(Path::new("bin/x")), Some("/bin".into()));
        assert_eq!(host.hidden_by(Path::new("usr/src/app")), None);
        assert_eq!(host.hidden_by(Path::new("app/usr")), None);
    }
}
