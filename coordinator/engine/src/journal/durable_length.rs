//! The durable length of a segment, in a file beside it.
//!
//! The file is overwritten in place after every commit and before its effects, and never synced.
//! After a kill it holds the last length that was made durable. After a power failure it may be
//! older. It is a lower bound in either case.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::{JournalError, RunLayout};

/// Digits of the length.
const DIGITS: usize = 20;

/// The length, a space, its checksum and a line end.
const FILE_BYTES: usize = DIGITS + 1 + 8 + 1;

/// The length file of a segment that is being written.
#[derive(Debug)]
pub(super) struct DurableLength {
    epoch: u32,
    path: PathBuf,
    file: File,
    failed: bool,
}

impl DurableLength {
    /// Creates the file with a length of 0.
    pub(super) fn create(layout: &RunLayout, epoch: u32) -> Result<Self, JournalError> {
        let path = layout.durable_length(epoch);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(JournalError::io("create", &path))?;
        file.write_all_at(&encode_length(epoch, 0), 0).map_err(JournalError::io("write", &path))?;
        Ok(Self { epoch, path, file, failed: false })
    }

    /// Replaces the length. A failure only leaves some damage undetected.
    pub(super) fn write(&mut self, bytes: u64) {
        if let Err(error) = self.file.write_all_at(&encode_length(self.epoch, bytes), 0)
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!("cannot write {}: {error}", self.path.display());
        }
    }
}

/// The length that was written last; `None` when it cannot be read.
pub(super) fn read(layout: &RunLayout, epoch: u32) -> Option<u64> {
    let found = std::fs::read(layout.durable_length(epoch)).ok()?;
    let bytes = std::str::from_utf8(found.get(..DIGITS)?).ok()?.parse().ok()?;
    (found == encode_length(epoch, bytes)).then_some(bytes)
}

fn encode_length(epoch: u32, bytes: u64) -> [u8; FILE_BYTES] {
    let digits = format!("{bytes:0DIGITS$}");
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&epoch.to_le_bytes()), digits.as_bytes());
    let text = format!("{digits} {checksum:08x}\n");
    text.as_bytes().try_into().expect("every part has a fixed width")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_length_file_with_changed_byte_is_ignored() {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = RunLayout::new(directory.path());
        std::fs::create_dir_all(layout.journal()).expect("creatable");
        assert_eq!(read(&layout, 1), None);
        let mut length = DurableLength::create(&layout, 1).expect("creatable");
        assert_eq!(read(&layout, 1), Some(0));
        for bytes in [18, 1 << 40, u64::MAX, 7] {
            length.write(bytes);
            assert_eq!(read(&layout, 1), Some(bytes));
        }
        let whole = std::fs::read(layout.durable_length(1)).expect("readable");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(layout.durable_length(1), &changed).expect("writable");
            assert_eq!(read(&layout, 1), None, "changed at {at}");
        }
        std::fs::write(layout.durable_length(2), &whole).expect("writable");
        assert_eq!(read(&layout, 2), None, "it belongs to another segment");
    }
}
