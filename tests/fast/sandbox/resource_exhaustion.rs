//! Effects of an exhausted host resource on a sandbox.

use std::process::Command;

use rollout_tests::hidden_commands;

use crate::sandbox::helper;

#[test]
fn open_file_limit_while_reading_is_error_not_shorter_tree() {
    let scratch = tempfile::tempdir().expect("a directory");
    let base = scratch.path().join("sandboxes");
    let ended = Command::new(helper())
        .arg(hidden_commands::STARVED_READER)
        .arg(&base)
        .output()
        .expect("it runs");
    let printed = String::from_utf8_lossy(&ended.stdout).into_owned();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(printed.contains("Too many open files"), "{printed}{said}");
}
