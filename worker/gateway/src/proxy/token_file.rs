//! The binary file of a try's long lists of tokens. Sections are appended and synced before a record
//! refers to them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rollout_base::durable;
use rollout_base::supervise::BlockingDrop;
use rollout_protocol::limits::GATEWAY_INLINE_TOKENS;
use rollout_protocol::record::{CallTokens, TokenSections, TrajectoryRecord};

/// Name of the file.
pub(crate) const TOKENS_FILE: &str = "tokens.bin";

/// The file, which is made when it is first needed.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    is_made: AtomicBool,
    /// Locked by blocking threads only.
    written: Mutex<Option<WrittenTokens>>,
}

#[derive(Debug)]
struct WrittenTokens {
    file: BlockingDrop<File>,
    /// Bytes of whole sections. What is behind them belongs to none.
    bytes: u64,
}

impl TokenFile {
    /// The file of a directory.
    pub(crate) fn new(directory: &Path) -> Self {
        let (is_made, written) = (AtomicBool::new(false), Mutex::default());
        Self { path: directory.join(TOKENS_FILE), is_made, written }
    }

    /// Its path, if it was made.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.is_made.load(Ordering::Acquire).then_some(self.path.as_path())
    }

    /// Moves the lists of a call to the file. Blocks.
    ///
    /// # Errors
    /// The system's error: the lists are lost then.
    pub(crate) fn pack_call(&self, tokens: &mut CallTokens) -> io::Result<()> {
        self.append(|sections| tokens.pack(sections))
    }

    /// Moves the lists of a trajectory to the file if they are long. Blocks.
    ///
    /// # Errors
    /// The system's error: the lists are lost then.
    pub(crate) fn pack_trajectory(&self, trajectory: &mut TrajectoryRecord) -> io::Result<()> {
        if trajectory.ids.len() < GATEWAY_INLINE_TOKENS {
            return Ok(());
        }
        self.append(|sections| trajectory.pack(sections))
    }

    fn append(&self, pack: impl FnOnce(&mut TokenSections)) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match &mut *written {
            Some(written) => written,
            empty => empty.insert(self.create()?),
        };
        let mut sections = TokenSections::new(written.bytes);
        pack(&mut sections);
        let bytes = sections.into_bytes();
        written.file.write_all_at(&bytes, written.bytes)?;
        written.file.sync_data()?;
        written.bytes += bytes.len() as u64;
        Ok(())
    }

    fn create(&self) -> io::Result<WrittenTokens> {
        let file = File::create(&self.path)?;
        // The entry of the file must be on disk as well.
        if let Some(directory) = self.path.parent() {
            durable::sync_directory(directory)?;
        }
        self.is_made.store(true, Ordering::Release);
        Ok(WrittenTokens { file: BlockingDrop::new(file), bytes: 0 })
    }
}
