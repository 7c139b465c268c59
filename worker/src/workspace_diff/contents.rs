//! Contents of files between the two readings of a directory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rollout_base::fs_make::{SCRATCH_DEPTH, make_directory};
use rollout_base::supervise::BlockingDrop;

use super::WorkspaceDiffError;

/// Bytes copied at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// An anonymous file to which contents are appended. It vanishes with this value, on a blocking thread:
/// the disk frees its content then.
#[derive(Debug)]
pub(super) struct ContentFile {
    file: BlockingDrop<File>,
    length: u64,
    scratch: PathBuf,
}

impl ContentFile {
    /// An empty one in this directory, which is created.
    pub(super) fn create(scratch: &Path) -> Result<Self, WorkspaceDiffError> {
        let made = make_directory(scratch, SCRATCH_DEPTH);
        let made = made.and_then(|()| tempfile::tempfile_in(scratch));
        match made {
            Ok(file) => {
                let (file, scratch) = (BlockingDrop::new(file), scratch.to_owned());
                Ok(Self { file, length: 0, scratch })
            }
            Err(source) => {
                let path = scratch.to_owned();
                Err(WorkspaceDiffError::Disk { action: "create", path, source })
            }
        }
    }

    /// The position at which the next content begins.
    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), WorkspaceDiffError> {
        let written = self.file.write_all_at(bytes, self.length);
        written.map_err(|source| {
            let path = self.scratch.clone();
            WorkspaceDiffError::Disk { action: "write", path, source }
        })?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Forgets everything from this position on.
    pub(super) const fn roll_back(&mut self, length: u64) {
        self.length = length;
    }

    /// A content in memory, of at most a few megabytes.
    pub(super) fn read(&self, position: u64, size: u64) -> io::Result<Vec<u8>> {
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, position)?;
        Ok(bytes)
    }

    /// Passes a content on in pieces.
    pub(super) fn copy(
        &self,
        mut position: u64,
        size: u64,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let end = position + size;
        while position < end {
            let wanted = usize::try_from(end - position).unwrap_or(usize::MAX).min(buffer.len());
            self.file.read_exact_at(&mut buffer[..wanted], position)?;
            write(&buffer[..wanted])?;
            position += wanted as u64;
        }
        Ok(())
    }
}
