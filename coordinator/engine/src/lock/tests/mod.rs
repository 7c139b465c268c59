//! Tests of two owners of one run.

mod directory;
mod end_to_end;
mod kv_lock;
mod races;

use std::path::Path;
use std::time::Duration;

use super::owner::{FileId, LockOwner};
use super::{LockWaitPolicy, wait_message};
use crate::journal::RunLayout;

/// An owner on another host.
fn remote_owner(n: u8) -> LockOwner {
    let mut owner = LockOwner::current(&RunLayout::new(Path::new("/nowhere")));
    owner.process.host = format!("host-{n}/0123456789abcdef");
    owner.file = Some(FileId { device: 1, inode: n.into() });
    owner
}

/// An owner that ran on this host and is gone.
fn dead_owner() -> LockOwner {
    let mut owner = LockOwner::current(&RunLayout::new(Path::new("/nowhere")));
    let child = std::process::Command::new("true").spawn();
    let mut child = child.expect("a program that ends at once");
    owner.process.pid = child.id();
    child.wait().expect("it ends");
    owner
}

#[test]
fn message_of_a_wait_names_both_times_of_silence() {
    let policy =
        LockWaitPolicy { stale: Duration::from_secs(30), force: false, wait: true, hung: false };
    let message = wait_message("host-1", &policy);
    let times = "silent for 30 s, for 10 s if this machine was started again since";
    assert!(message.contains("host-1") && message.contains(times), "{message}");
}
