//! Directories that become read-only under programs that use them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ignored::report_ignored;

/// A directory that is read-only for whoever opens a path in it while this lives: it is mounted
/// read-only over itself. Files that are open already stay writable.
#[derive(Debug)]
pub struct ReadOnlyMount(PathBuf);

impl ReadOnlyMount {
    /// Makes a directory read-only. If this user may not, the test is ignored.
    pub fn over(directory: &Path) -> Option<Self> {
        let mounted = has_succeeded(Command::new("mount").arg("--bind").args([directory; 2]));
        if !mounted {
            report_ignored("needs a user who may mount a directory");
            return None;
        }
        let mount = Self(directory.to_owned());
        let is_read_only =
            has_succeeded(Command::new("mount").args(["-o", "remount,ro,bind"]).arg(directory));
        assert!(is_read_only, "cannot make {} read-only", directory.display());
        Some(mount)
    }
}

impl Drop for ReadOnlyMount {
    /// Makes the directory writable again, also while files in it are open.
    fn drop(&mut self) {
        let unmounted = has_succeeded(Command::new("umount").arg("--lazy").arg(&self.0));
        assert!(unmounted || std::thread::panicking(), "cannot unmount {}", self.0.display());
    }
}

fn has_succeeded(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
