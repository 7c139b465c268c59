//! Control groups of the sandboxes on a disk. A host that lost its power has none after it started again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::leak_check::{control_groups_named, directory_entries};
use crate::wait;

/// What the names of sandboxes begin with, and those of their control groups.
const SANDBOX: &str = "sandbox-";

/// Longest time until the killed processes have left their groups.
const EXIT_DEADLINE: Duration = Duration::from_secs(30);

/// Names of the sandboxes below a directory.
pub(super) fn sandboxes_below(directory: &Path) -> BTreeSet<String> {
    let (mut found, mut below) = (BTreeSet::new(), vec![directory.to_owned()]);
    while let Some(directory) = below.pop() {
        for path in directory_entries(&directory) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(SANDBOX) {
                // A sandbox may have its owner file only.
                found.insert(name.split('.').next().unwrap_or_default().to_owned());
            } else if path.is_dir() && !path.is_symlink() {
                below.push(path);
            }
        }
    }
    found
}

/// Removes the groups of sandboxes whose processes have been killed.
///
/// # Panics
/// When processes stay in one.
pub(super) fn remove(sandboxes: &BTreeSet<String>) {
    for group in control_groups_named(|name| sandboxes.contains(name)) {
        let is_gone = || fs::remove_dir(&group).is_ok() || !group.exists();
        let removed = wait::holds_within(EXIT_DEADLINE, is_gone);
        assert!(removed, "a killed sandbox stays in {}", group.display());
    }
}
