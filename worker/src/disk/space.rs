//! Free space of a file system.

use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

const MIB: u64 = 1024 * 1024;

/// Minimum free space for new work, unless the file system is smaller than twenty times as much:
/// then a twentieth of its size.
const FLOOR: u64 = 256 * MIB;
const FLOOR_FRACTION: u64 = 20;

/// With less free space than this a file system is full, or with a hundredth of its size if that is
/// less: the write that failed may have left a little.
const FULL: u64 = MIB;
const FULL_FRACTION: u64 = 100;

/// Whether this process runs as root, which never changes.
static IS_ROOT: LazyLock<bool> = LazyLock::new(|| rustix::process::geteuid().is_root());

/// Size and free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Total bytes.
    pub size: u64,
    /// Bytes that this user can still write.
    pub free: u64,
    /// Maximum number of files; 0 if the file system does not count them.
    pub files: u64,
    /// Number of files that can still be created.
    pub free_files: u64,
}

impl DiskSpace {
    /// Of the file system of a directory; `None` if it cannot be read.
    pub fn for_path(path: &Path) -> Option<Self> {
        let found = rustix::fs::statvfs(path).ok()?;
        // Only root can use the space reserved for root, also inside a sandbox.
        let root = *IS_ROOT;
        let blocks = if root { found.f_bfree } else { found.f_bavail };
        Some(Self {
            size: found.f_blocks.saturating_mul(found.f_frsize),
            free: blocks.saturating_mul(found.f_frsize),
            files: found.f_files,
            free_files: if root { found.f_ffree } else { found.f_favail },
        })
    }

    /// Whether writes fail now.
    pub fn is_full(&self) -> bool {
        let full = FULL.min(self.size / FULL_FRACTION);
        self.size > 0 && (self.free <= full || (self.files > 0 && self.free_files == 0))
    }

    /// Whether there is too little space for more work.
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
            write!(f, ", no more files can be created")?;
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
        assert_eq!(none.to_string(), "50 of 100 MiB free, no more files can be created");
    }
}
