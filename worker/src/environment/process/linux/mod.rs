//! Sandboxes on Linux.

mod cgroup;
mod claim;
mod control;
mod create;
mod exec;
mod guardian;
mod host;
mod message;
mod network;
mod pack;
mod place;
mod provider;
mod reap;
mod remove;
mod sandbox;
mod storage;
pub mod supervisor;
mod tree;
mod usage;

use std::io;

pub use provider::ProcessProvider;
use rustix::io::Errno;

use self::message::StepFailed;
use super::super::{Failure, FailureKind};

/// What a person can do when the kernel forbids sandboxes.
const FORBIDDEN: &str = "the kernel does not let this user make namespaces. Check that \
    /proc/sys/user/max_user_namespaces is not 0, that /proc/sys/kernel/unprivileged_userns_clone \
    (where it exists) is 1 and that /proc/sys/kernel/apparmor_restrict_unprivileged_userns (where it \
    exists) is 0, or give this program an AppArmor profile that allows `userns`; inside a container, \
    start that container with a seccomp profile that allows `unshare` and an unmasked /proc, or use \
    `environment.type: docker`";

/// An error of the local system.
fn failure(what: &str, error: io::Error) -> Failure {
    let kind = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => FailureKind::DiskFull,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN) => FailureKind::Resources,
        _ => FailureKind::Service,
    };
    Failure::new(kind, format!("cannot {what}")).because(error)
}

/// A sandbox that could not be made.
fn not_made(failed: StepFailed) -> Failure {
    match Errno::from_raw_os_error(failed.errno) {
        Errno::PERM | Errno::ACCESS | Errno::USERS | Errno::NOSYS => {
            Failure::new(FailureKind::NotPermitted, format!("cannot make a sandbox: {FORBIDDEN}"))
        }
        // `unshare` says so when the number of namespaces is limited.
        Errno::NOSPC if failed.step.contains("namespace") => {
            Failure::new(FailureKind::NotPermitted, format!("cannot make a sandbox: {FORBIDDEN}"))
        }
        Errno::NOSPC | Errno::DQUOT => Failure::new(FailureKind::DiskFull, "cannot make a sandbox"),
        Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE => {
            Failure::new(FailureKind::Resources, "cannot make a sandbox")
        }
        _ => Failure::new(FailureKind::Service, "cannot make a sandbox"),
    }
    .because(failed)
}
