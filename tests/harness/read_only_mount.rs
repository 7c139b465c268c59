//! Directories that become read-only under programs that use them.

use std::fs;
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
        // The mount is read-only before it is at its place: a file that a program opened for writing in
        // between would keep it writable.
        let beside = directory.with_extension("read-only");
        fs::create_dir(&beside).expect("a directory");
        let is_mounted = bind(directory, &beside);
        let is_read_only = is_mounted
            && has_succeeded(Command::new("mount").args(["-o", "remount,ro,bind"]).arg(&beside));
        let is_at_its_place = is_read_only && bind(&beside, directory);
        let mount = is_at_its_place.then(|| Self(directory.to_owned()));
        if is_mounted {
            let is_gone = has_succeeded(Command::new("umount").arg(&beside));
            assert!(is_gone, "cannot unmount {}", beside.display());
        }
        fs::remove_dir(&beside).expect("an empty directory");
        if !is_mounted {
            report_ignored("needs a user who may mount a directory");
            return None;
        }
        assert!(mount.is_some(), "cannot make {} read-only", directory.display());
        mount
    }
}

impl Drop for ReadOnlyMount {
    /// Makes the directory writable again, also while files in it are open.
    fn drop(&mut self) {
        let unmounted = has_succeeded(Command::new("umount").arg("--lazy").arg(&self.0));
        assert!(unmounted || std::thread::panicking(), "cannot unmount {}", self.0.display());
    }
}

/// Mounts a directory at another one, with the options that it has.
fn bind(directory: &Path, at: &Path) -> bool {
    has_succeeded(Command::new("mount").arg("--bind").args([directory, at]))
}

fn has_succeeded(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
