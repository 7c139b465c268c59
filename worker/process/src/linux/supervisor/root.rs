//! Construction of a sandbox's root.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::StepResultExt as _;
use crate::linux::host_view::{ETC, OWN_USR, PRELOAD, USR};
use crate::linux::message::{SandboxSetup, SetupStepError};

/// Device nodes shown inside.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Options of `/dev/shm`; the size is Docker's.
const SHM: &std::ffi::CStr = c"mode=1777,size=64m";

/// Parts of `/proc` through which root could change the host's kernel.
const PROC_READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];

/// Parts of `/proc` with information about the host.
const PROC_HIDDEN: [&str; 5] = ["kcore", "keys", "key-users", "timer_list", "latency_stats"];

/// Builds the root that `setup` describes and enters it; the host's tree is not reachable
/// afterwards.
pub(super) fn enter(setup: &SandboxSetup) -> Result<(), SetupStepError> {
    let root = setup.root.as_path();
    // No mount propagates in either direction: otherwise the host's mounts below a shown directory
    // would appear inside, and writable.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).step("make mounts private")?;
    rustix::mount::mount_bind(root, root).step("mount the root of the sandbox")?;
    mount_usr(root)?;
    for bind in &setup.binds {
        let step = format!("mount {} of the host", bind.target.display());
        let target = root.join(&bind.target);
        if bind.target.starts_with(USR) {
            fs::create_dir_all(&target).step(&step)?;
        }
        rustix::mount::mount_bind_recursive(&bind.source, &target).step(&step)?;
    }
    for part in [ETC, PRELOAD].map(|part| root.join(part)) {
        rustix::mount::mount_bind(&part, &part).step("mount /etc")?;
    }
    remount_read_only(root).step("make the host's directories read-only")?;
    mount_proc(&root.join("proc"))?;
    mount_dev(&root.join("dev"))?;
    rustix::system::sethostname(setup.hostname.as_bytes()).step("set the host name")?;
    pivot(root).step("change the root")
}

/// Puts an empty `/usr` in memory, with its part that is on disk.
fn mount_usr(root: &Path) -> Result<(), SetupStepError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let own = rustix::fs::open(root.join(OWN_USR), flags, Mode::empty()).step("open /usr/src")?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    let small = c"mode=755,size=1m";
    rustix::mount::mount("tmpfs", root.join(USR), "tmpfs", plain, Some(small))
        .step("mount /usr")?;
    fs::create_dir(root.join(OWN_USR)).step("mount /usr/src")?;
    // Its path is covered by now; the handle still refers to it.
    let handle = format!("/proc/self/fd/{}", own.as_raw_fd());
    rustix::mount::mount_bind(handle, root.join(OWN_USR)).step("mount /usr/src")
}

/// Makes every mount below `root` read-only, except the sandbox's own, and all of them free of
/// devices and set-user-id programs. Attributes of the host's mounts cannot be removed and are
/// repeated.
fn remount_read_only(root: &Path) -> io::Result<()> {
    let table = fs::read("/proc/self/mountinfo")?;
    for line in table.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Some((point, options)) = mount_line(line) else {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::BADMSG.raw_os_error()));
        };
        if !point.starts_with(root) {
            continue;
        }
        let mut flags = locked_mount_flags(&options)
            | MountFlags::NOSUID
            | MountFlags::NODEV
            | MountFlags::BIND;
        if point != root && point != root.join(OWN_USR) && point != root.join(ETC) {
            flags |= MountFlags::RDONLY;
        }
        rustix::mount::mount_remount(&point, flags, c"")?;
    }
    Ok(())
}

/// Mount point and options of a line of `mountinfo`.
fn mount_line(line: &[u8]) -> Option<(PathBuf, String)> {
    let mut fields = line.split(|byte| *byte == b' ').skip(4);
    let point = unescape(fields.next()?);
    let options = String::from_utf8(fields.next()?.to_vec()).ok()?;
    Some((PathBuf::from(OsString::from_vec(point)), options))
}

/// Undoes the octal escapes of `mountinfo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        plain.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    plain
}

/// The attributes of a mount that must stay when it is remounted.
fn locked_mount_flags(options: &str) -> MountFlags {
    options.split(',').fold(MountFlags::empty(), |flags, option| {
        flags
            | match option {
                "ro" => MountFlags::RDONLY,
                "nosuid" => MountFlags::NOSUID,
                "nodev" => MountFlags::NODEV,
                "noexec" => MountFlags::NOEXEC,
                "noatime" => MountFlags::NOATIME,
                "nodiratime" => MountFlags::NODIRATIME,
                "relatime" => MountFlags::RELATIME,
                _ => MountFlags::empty(),
            }
    })
}

/// Mounts a `/proc` that shows only the sandbox's processes.
fn mount_proc(at: &Path) -> Result<(), SetupStepError> {
    let strict = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", at, "proc", strict, None).step("mount /proc")?;
    for part in PROC_READ_ONLY.map(|part| at.join(part)).iter().filter(|part| part.exists()) {
        bind_read_only(part, part, strict).step("protect /proc")?;
    }
    for part in PROC_HIDDEN.map(|part| at.join(part)).iter().filter(|part| part.exists()) {
        bind_read_only(Path::new("/dev/null"), part, MountFlags::NOSUID).step("protect /proc")?;
    }
    Ok(())
}

fn bind_read_only(source: &Path, target: &Path, flags: MountFlags) -> rustix::io::Result<()> {
    rustix::mount::mount_bind(source, target)?;
    let flags = flags | MountFlags::BIND | MountFlags::RDONLY | MountFlags::RELATIME;
    rustix::mount::mount_remount(target, flags, c"")
}

/// Builds a minimal `/dev`. Device nodes stay writable on a read-only mount; their mode and owner,
/// which are the host's, do not.
fn mount_dev(at: &Path) -> Result<(), SetupStepError> {
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    let small = c"mode=755,size=1m";
    rustix::mount::mount("tmpfs", at, "tmpfs", plain, Some(small)).step("mount /dev")?;
    let step = "fill /dev";
    for device in DEVICES {
        let source = Path::new("/dev").join(device);
        if source.exists() {
            File::create(at.join(device)).step(step)?;
            bind_read_only(&source, &at.join(device), plain).step(step)?;
        }
    }
    let links = [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ];
    for (target, name) in links {
        symlink(target, at.join(name)).step(step)?;
    }
    fs::create_dir(at.join("pts")).step(step)?;
    fs::create_dir(at.join("shm")).step(step)?;
    let terminals = c"newinstance,ptmxmode=0666,mode=620";
    rustix::mount::mount("devpts", at.join("pts"), "devpts", plain, Some(terminals))
        .step("mount /dev/pts")?;
    let shared = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", at.join("shm"), "tmpfs", shared, Some(SHM)).step("mount /dev/shm")
}

/// Makes `root` the root and unmounts the old one.
fn pivot(root: &Path) -> io::Result<()> {
    rustix::process::chdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_with_escapes_is_parsed() {
        let line = br"36 35 98:0 /mnt1 /mnt\040two\134 rw,noatime,nosuid master:1 - ext3 /dev/r rw";
        let (point, options) = mount_line(line).expect("a line");
        assert_eq!(point, Path::new("/mnt two\\"));
        assert_eq!(locked_mount_flags(&options), MountFlags::NOATIME | MountFlags::NOSUID);
        assert_eq!(unescape(br"\04"), br"\04");
    }
}
