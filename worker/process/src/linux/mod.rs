//! Process sandboxes on Linux.

mod cgroup;
mod control;
mod create;
mod exec;
mod host_view;
mod launcher;
mod message;
mod network;
mod owner_file;
mod pack;
mod provider;
mod reap;
mod remove;
mod sandbox;
mod storage;
pub mod supervisor;
mod tree;
mod tree_writer;
mod usage;

use std::io;

use rollout_base::shortage::Shortage;
use rollout_environment::{Failure, FailureKind};

pub use provider::ProcessProvider;
use rustix::io::Errno;

use self::message::SetupStepError;

/// Hint for when the kernel forbids sandboxes.
const FORBIDDEN: &str = "the kernel does not let this user create namespaces. Check that \
    /proc/sys/user/max_user_namespaces is not 0, that /proc/sys/kernel/unprivileged_userns_clone \
    (where it exists) is 1 and that /proc/sys/kernel/apparmor_restrict_unprivileged_userns (where it \
    exists) is 0, or give this program an AppArmor profile that allows `userns`; inside a container, \
    start that container with a seccomp profile that allows `unshare` and an unmasked /proc, or use \
    `environment.type: docker`";

/// An error of the local system.
fn failure(what: &str, error: io::Error) -> Failure {
    Failure::local(FailureKind::Service, format!("cannot {what}"), error)
}

/// The failure of a sandbox that could not be made.
fn not_made(failed: SetupStepError) -> Failure {
    // The number is that of no system error where a step failed otherwise.
    match Errno::from_io_error(&io::Error::from_raw_os_error(failed.errno)) {
        Some(Errno::PERM | Errno::ACCESS | Errno::USERS | Errno::NOSYS) => {
            Failure::new(FailureKind::NotPermitted, format!("cannot create a sandbox: {FORBIDDEN}"))
        }
        // `unshare` returns this when the number of namespaces is limited.
        Some(Errno::NOSPC) if failed.step.contains("namespace") => {
            Failure::new(FailureKind::NotPermitted, format!("cannot create a sandbox: {FORBIDDEN}"))
        }
        errno => {
            let kind = FailureKind::from_shortage(errno.and_then(Shortage::from_errno));
            Failure::new(kind.unwrap_or(FailureKind::Service), "cannot create a sandbox")
        }
    }
    .with_source(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_that_failed_without_a_system_error_is_a_failure_of_the_service() {
        let unread = io::Error::new(io::ErrorKind::InvalidData, "not a request");
        let failure = not_made(SetupStepError::new("decode a request", &unread));
        assert_eq!(failure.kind, FailureKind::Service);
        let full = not_made(SetupStepError::new("fork", &io::Error::from(Errno::NOMEM)));
        assert_eq!(full.kind, FailureKind::Exhausted);
    }
}
