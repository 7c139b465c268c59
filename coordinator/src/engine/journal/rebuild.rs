//! Writing a journal that replaces a damaged one: one segment, whole or not there.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use rollout_protocol::Timestamp;

use super::durable::DurableLength;
use super::frame::{self, HEADER};
use super::head::Head;
use super::{JournalError, Layout};
use crate::engine::core::{Opened, Record};

/// A segment that takes its place when it is finished.
#[derive(Debug)]
pub struct Rebuild {
    layout: Layout,
    partial: PathBuf,
    file: BufWriter<File>,
    head: Head,
    frame: Vec<u8>,
}

impl Rebuild {
    /// Begins the segment of an epoch.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn create(layout: &Layout, at: Timestamp, opened: Opened) -> Result<Self, JournalError> {
        let epoch = opened.epoch;
        let partial = layout.segment(epoch).with_extension("partial");
        let file = File::create(&partial).map_err(JournalError::io("create", &partial))?;
        let (file, frame) = (BufWriter::new(file), Vec::new());
        let mut rebuild =
            Self { layout: layout.clone(), partial, file, head: Head::start(epoch), frame };
        rebuild.write(HEADER.to_vec())?;
        rebuild.add(at, true, &Record::Opened(Box::new(opened)))?;
        Ok(rebuild)
    }

    /// Adds a record of a time.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn record(&mut self, at: Timestamp, record: &Record) -> Result<(), JournalError> {
        self.add(at, false, record)
    }

    /// Makes it durable and puts it in its place.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn finish(mut self) -> Result<Head, JournalError> {
        let path = self.layout.segment(self.head.epoch);
        self.file.flush().map_err(JournalError::io("write", &self.partial))?;
        self.file.get_ref().sync_all().map_err(JournalError::io("sync", &self.partial))?;
        DurableLength::create(&self.layout, self.head.epoch)?.write(self.head.bytes);
        std::fs::rename(&self.partial, &path).map_err(JournalError::io("rename", &self.partial))?;
        super::persist(&self.layout, self.head.epoch)?;
        Ok(self.head)
    }

    fn add(&mut self, at: Timestamp, synced: bool, record: &Record) -> Result<(), JournalError> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame::encode(&mut frame, at, synced, record);
        self.head.add(&frame);
        self.frame = self.write(frame)?;
        Ok(())
    }

    fn write(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, JournalError> {
        self.file.write_all(&bytes).map_err(JournalError::io("write", &self.partial))?;
        Ok(bytes)
    }
}
