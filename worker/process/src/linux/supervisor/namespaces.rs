//! `outer`: makes the namespaces and stays as the parent of their first process.

use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::sched::CloneFlags;
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::StepResultExt as _;
use crate::linux::message::SetupStepError;

/// `environment` is the directory of the sandbox on the host. The control socket is standard input.
pub(super) fn main(
    helper: &[OsString],
    environment: &Path,
    own_network: bool,
) -> Result<ExitCode, SetupStepError> {
    close_inherited();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(environment, flags, Mode::empty());
    let directory = directory.step("open the directory of the sandbox")?;
    // Held while any process of the sandbox is alive: a reaper waits for it.
    rustix::fs::flock(&directory, FlockOperation::LockShared).step("lock its directory")?;

    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut namespaces = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    if own_network {
        namespaces |= CloneFlags::CLONE_NEWNET;
    }
    nix::sched::unshare(namespaces).step("create a user namespace")?;
    let map = "write the user map of the namespace";
    fs::write("/proc/self/setgroups", "deny").step(map)?;
    fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw())).step(map)?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw())).step(map)?;

    let mut init = Command::new("/proc/self/exe");
    init.arg0(&helper[0]).args(&helper[1..]).arg("init").env_clear();
    init.stdin(Stdio::inherit()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut init = init.spawn().step("start the supervisor")?;
    // From here on only the supervisor holds the control socket: when it ends, the worker sees the
    // socket close.
    let null = fs::File::open("/dev/null").step("open /dev/null")?;
    rustix::stdio::dup2_stdin(null.as_fd()).step("close the control socket")?;
    let status = init.wait().step("wait for the supervisor")?;
    Ok(ExitCode::from(u8::from(!status.success())))
}

/// Closes descriptors that the worker inherited from its own parent: they must not be open inside.
fn close_inherited() {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|number| *number > 2).collect::<Vec<i32>>() {
        // The descriptor of the listing itself is in the list and already closed.
        let _closed = nix::unistd::close(number);
    }
}
