//! Directories from which the roots of containers are made.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::image::ImageFixture;

/// Files of the host's `/etc` that programs of a container need: name resolution, users' sessions,
/// libraries, certificates.
const HOST_FILES: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "debian_version",
    "environment",
    "host.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "login.defs",
    "nsswitch.conf",
    "os-release",
    "pam.conf",
    "pam.d",
    "profile",
    "protocols",
    "security",
    "services",
    "shells",
    "ssl",
    "terminfo",
];

/// Shell of the double in every container.
pub(super) const OWN_SHELL: &str = "/.kube-double/sh";

/// Users of every container.
const USERS: &str = "root:x:0:0:root:/root:/bin/bash\n\
                     daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
                     agent:x:1000:1000::/home/agent:/bin/bash\n\
                     nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";

const GROUPS: &str = "root:x:0:\ndaemon:x:1:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n";

/// Passwords: none works.
const PASSWORDS: &str =
    "root:*:19000:0:99999:7:::\nagent:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n";

/// Makes the tree that all containers share below their own files.
pub(super) fn make_base(base: &Path) -> io::Result<()> {
    for name in [
        "app",
        "dev",
        "etc",
        "home/agent",
        "mnt",
        "opt",
        "proc",
        "root",
        "run",
        "srv",
        "sys",
        "tmp",
        "usr",
        "var/cache",
        "var/lib",
        "var/log",
        "var/tmp",
    ] {
        fs::create_dir_all(base.join(name))?;
    }
    for (name, mode) in [("tmp", 0o1777), ("var/tmp", 0o1777), ("root", 0o700)] {
        fs::set_permissions(base.join(name), fs::Permissions::from_mode(mode))?;
    }
    // Without the right to change owners, the user's files belong to the container's root.
    drop(std::os::unix::fs::chown(base.join("home/agent"), Some(1000), Some(1000)));
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        if Path::new("/usr").join(name).exists() {
            symlink(Path::new("usr").join(name), base.join(name))?;
        }
    }
    // For images without a shell.
    let shell = base.join(OWN_SHELL.trim_start_matches('/'));
    fs::create_dir_all(shell.parent().expect("it is in a directory"))?;
    fs::copy("/bin/sh", shell)?;
    let etc = base.join("etc");
    let present: Vec<PathBuf> = HOST_FILES
        .iter()
        .map(|name| Path::new("/etc").join(name))
        .filter(|path| path.exists())
        .collect();
    Command::new("cp").arg("-a").args(present).arg(&etc).output()?;
    fs::write(etc.join("passwd"), USERS)?;
    fs::write(etc.join("group"), GROUPS)?;
    fs::write(etc.join("shadow"), PASSWORDS)?;
    fs::write(etc.join("resolv.conf"), fs::read("/etc/resolv.conf").unwrap_or_default())
}

/// Makes a directory that every user may write to.
pub(super) fn make_shared(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o1777))
}

/// Writes the files and the working directory of an image.
pub(super) fn make_image(directory: &Path, image: &ImageFixture) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let workdir = image.workdir.trim_start_matches('/');
    if !workdir.is_empty() {
        fs::create_dir_all(directory.join(workdir))?;
    }
    for (path, content, mode) in &image.files {
        let path = directory.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
    }
    Ok(())
}

/// Removes the files of a pod, as far as the user may; the rest goes with the test's directory.
pub(super) fn remove(pod: &Path) {
    let containers = fs::read_dir(pod).into_iter().flatten().flatten();
    for container in containers {
        // Directories of overlays are closed to everyone but root.
        for name in ["work/work", "usr-work/work"] {
            let mode = fs::Permissions::from_mode(0o700);
            drop(fs::set_permissions(container.path().join(name), mode));
        }
    }
    drop(fs::remove_dir_all(pod));
}
