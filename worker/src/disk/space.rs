//! How much room a file system has.

use std::fmt;
use std::path::Path;

const MIB: u64 = 1024 * 1024;

/// Room that work is not begun without, unless the file system is smaller than twenty times as
/// much: then a twentieth of it.
const FLOOR: u64 = 256 * MIB;
const FLOOR_FRACTION: u64 = 20;

/// With less room than this a file system is full, or with a hundredth of it if that is less: the
/// write that did not fit may have left a little.
const FULL: u64 = MIB;
const FULL_FRACTION: u64 = 100;

/// The room of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes it has.
    pub size: u64,
    /// Bytes that this user may still write.
    pub free: u64,
    /// Files it can hold; 0 where they are not counted.
    pub files: u64,
    /// Files that may still be made.
    pub free_files: u64,
}

impl DiskSpace {
    /// Of the file system of a directory; `None` when it cannot be asked.
    pub fn for_path(path: &Path) -> Option<Self> {
        let found = rustix::fs::statvfs(path).ok()?;
        // What is kept back for root is root's to use, also inside a sandbox.
        let root = rustix::process::geteuid().is_root();
        let blocks = if root { found.f_bfree } else { found.f_bavail };
        Some(Self {
            size: found.f_blocks.saturating_mul(found.f_frsize),
            free: blocks.saturating_mul(found.f_frsize),
            files: found.f_files,
            free_files: if root { found.f_ffree } else { found.f_favail },
        })
    }

    /// Whether what is written now fails.
    pub fn is_full(&self) -> bool {
        let full = FULL.min(self.size / FULL_FRACTION);
        self.size > 0 && (self.free <= full || (self.files > 0 && self.free_files == 0))
    }

    /// Whether there is too little room for more work.
    pub fn is_low(&self) -> bool {
        self.size > 0 && (self.free < self.floor() || self.is_full())
    }

    fn floor(&self) -> u64 {
        FLOOR.min(self.size / FLOOR_FRACTION)
    }

    pub(super) fn floor_text(&self) -> String {
        bytes(self.floor())
    }
}

impl fmt::Display for DiskSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} free", self.free / MIB, bytes(self.size))?;
        if self.files > 0 && self.free_files == 0 {
            write!(f, ", and no file can be made any more")?;
        }
        Ok(())
    }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..MIB => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / MIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(size: u64, free: u64) -> DiskSpace {
        DiskSpace { size, free, files: 0, free_files: 0 }
    }

    #[test]
    fn disk_thresholds_depend_on_disk_size() {
        let tera = 1024 * 1024 * MIB;
        assert!(!space(tera, 300 * MIB).is_low() && space(tera, 255 * MIB).is_low());
        assert!(!space(tera, 255 * MIB).is_full() && space(tera, MIB / 2).is_full());
        assert!(!space(4 * MIB, MIB).is_low() && space(4 * MIB, 100 * 1024).is_low());
        assert!(!space(4 * MIB, 100 * 1024).is_full() && space(4 * MIB, 8 * 1024).is_full());
        assert!(!space(0, 0).is_full() && !space(0, 0).is_low(), "one without a size");
    }

    #[test]
    fn disk_without_free_inodes_is_full() {
        let none = DiskSpace { size: 100 * MIB, free: 50 * MIB, files: 1000, free_files: 0 };
        assert!(none.is_full() && none.is_low());
        assert_eq!(none.to_string(), "50 of 100 MiB free, and no file can be made any more");
    }
}
