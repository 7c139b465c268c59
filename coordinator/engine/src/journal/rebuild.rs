//! Rebuilding of a damaged journal as one new segment, either complete or absent.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use rollout_protocol::Timestamp;
use rustix::fs::{CWD, RenameFlags};

use super::durable_length::DurableLength;
use super::frame::{self, SEGMENT_HEADER};
use super::prefix::JournalPrefix;
use super::short_form::RecordForm;
use super::{JournalError, RunLayout};
use crate::core::{JournalRecord, SessionStart};

/// A segment that is moved into its place when it is finished.
#[derive(Debug)]
pub struct SegmentRebuilder {
    layout: RunLayout,
    partial: PathBuf,
    file: BufWriter<File>,
    prefix: JournalPrefix,
    form: RecordForm,
    frame: Vec<u8>,
}

impl SegmentRebuilder {
    /// Creates the segment of an epoch.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn create(
        layout: &RunLayout,
        at: Timestamp,
        opened: SessionStart,
    ) -> Result<Self, JournalError> {
        let epoch = opened.epoch;
        let partial = layout.segment(epoch).with_extension("partial");
        let file = File::create(&partial).map_err(JournalError::io("create", &partial))?;
        let (file, frame) = (BufWriter::new(file), Vec::new());
        let form = RecordForm::of(&opened);
        let mut rebuild = Self {
            layout: layout.clone(),
            partial,
            file,
            prefix: JournalPrefix::start(epoch),
            form,
            frame,
        };
        rebuild.write(SEGMENT_HEADER.to_vec())?;
        rebuild.add(at, true, &JournalRecord::Opened(Box::new(opened)))?;
        Ok(rebuild)
    }

    /// Adds a record that was made at `at`.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn record(&mut self, at: Timestamp, record: &JournalRecord) -> Result<(), JournalError> {
        self.add(at, false, record)
    }

    /// Makes the segment durable and moves it into its place.
    ///
    /// # Errors
    /// [`JournalError`]; an existing segment of that epoch is one, and stays as it is: it is the
    /// segment of another owner.
    pub fn finish(mut self) -> Result<JournalPrefix, JournalError> {
        let path = self.layout.segment(self.prefix.epoch);
        self.file.flush().map_err(JournalError::io("write", &self.partial))?;
        self.file.get_ref().sync_all().map_err(JournalError::io("sync", &self.partial))?;
        let placed = place(&self.partial, &path);
        // A partial segment that stays only takes space.
        drop(std::fs::remove_file(&self.partial));
        placed.map_err(JournalError::io("create", &path))?;
        let placed =
            DurableLength::create(&self.layout, self.prefix.epoch).and_then(|mut length| {
                length.write(self.prefix.bytes);
                super::sync_segment(&self.layout, self.prefix.epoch)
            });
        if placed.is_err() {
            std::fs::remove_file(&path).map_err(JournalError::io("remove", &path))?;
        }
        placed.map(|()| self.prefix)
    }

    fn add(
        &mut self,
        at: Timestamp,
        synced: bool,
        record: &JournalRecord,
    ) -> Result<(), JournalError> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame::encode_as(self.form, &mut frame, at, synced, record)?;
        self.prefix.add(&frame);
        self.frame = self.write(frame)?;
        Ok(())
    }

    fn write(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, JournalError> {
        self.file.write_all(&bytes).map_err(JournalError::io("write", &self.partial))?;
        Ok(bytes)
    }
}

/// Gives a file the name `path`, and replaces nothing. The old name may stay. File systems know one of
/// the two ways: network file systems often lack the renaming, and others lack links.
fn place(partial: &Path, path: &Path) -> std::io::Result<()> {
    match std::fs::hard_link(partial, path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            rename_without_replacing(partial, path).map_err(|_| error)
        }
        linked => linked,
    }
}

fn rename_without_replacing(partial: &Path, path: &Path) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renaming_replaces_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let [partial, path] = ["partial", "segment"].map(|name| directory.path().join(name));
        std::fs::write(&partial, "new").expect("written");
        std::fs::write(&path, "of another owner").expect("written");
        assert_eq!(rename_without_replacing(&partial, &path), Err(rustix::io::Errno::EXIST));
        assert_eq!(std::fs::read(&path).expect("read"), b"of another owner");
        std::fs::remove_file(&path).expect("removed");
        rename_without_replacing(&partial, &path).expect("renamed");
        assert_eq!(std::fs::read(&path).expect("read"), b"new");
    }
}
