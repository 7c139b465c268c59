//! Copies of blobs in local files, which appear whole or not at all.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::StoreError;

/// A file that gets its name when it is whole. Dropped before, it leaves nothing.
#[derive(Debug)]
pub(super) struct PartialFile {
    temp: NamedTempFile,
    to: PathBuf,
}

impl PartialFile {
    /// Creates the file beside `to`.
    pub(super) fn create(to: &Path) -> Result<Self, StoreError> {
        let directory = match to.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let temp = tempfile::Builder::new()
            .prefix(".partial-")
            .permissions(std::fs::Permissions::from_mode(0o644))
            .tempfile_in(directory)
            .map_err(|error| StoreError::io("write", to, error))?;
        Ok(Self { temp, to: to.to_owned() })
    }

    /// Adds bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.temp.write_all(bytes).map_err(|error| StoreError::io("write", &self.to, error))
    }

    /// Gives the file its name, which must not exist.
    pub(super) fn persist(self) -> Result<(), StoreError> {
        let Self { temp, to } = self;
        let named = temp.persist_noclobber(&to);
        named.map(drop).map_err(|error| StoreError::io("write", &to, error.error))
    }
}
