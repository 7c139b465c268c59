//! The identity of a run directory on its host, which a copy of the directory does not share.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A directory on this host. It is the same after a renaming, and another one for a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirectoryId {
    /// The file system.
    device: u64,
    /// Its number there.
    inode: u64,
}

impl DirectoryId {
    /// The identity of the directory at a path.
    ///
    /// # Errors
    /// It is missing, or this user may not see it.
    pub(super) fn of(directory: &Path) -> io::Result<Self> {
        let found = std::fs::metadata(directory)?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }
}
