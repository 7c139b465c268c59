//! Files being written: a directory per process below `tmp/`, locked while the process is alive.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::StoreError;

/// Attempts to create this process's directory before giving up: a concurrent sweep by another
/// process costs one.
const ATTEMPTS: u32 = 16;

/// Creates temporary files.
#[derive(Debug)]
pub(super) struct StoreScratch {
    tmp: PathBuf,
    /// Created together with the first file.
    process_directory: Mutex<Option<Arc<ProcessDirectory>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct ProcessDirectory {
    path: PathBuf,
    /// The lock is held as long as the file is open.
    _lock: File,
}

impl StoreScratch {
    pub(super) fn new(tmp: PathBuf) -> Self {
        Self { tmp, process_directory: Mutex::new(None), next: AtomicU64::new(0) }
    }

    /// A new empty file.
    pub(super) fn create(&self) -> Result<ScratchFile, StoreError> {
        let name = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let open = |directory: Arc<ProcessDirectory>| {
            let path = directory.path.join(&name);
            let opened = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path);
            match opened {
                Ok(file) => Ok(ScratchFile { path, file, named: true, _directory: directory }),
                Err(error) => Err((path, error)),
            }
        };
        let first = self.own_directory()?;
        let created = match open(Arc::clone(&first)) {
            // A user removed the directory by hand.
            Err((_, error)) if error.kind() == io::ErrorKind::NotFound => {
                self.forget(&first);
                open(self.own_directory()?)
            }
            created => created,
        };
        created.map_err(|(path, error)| StoreError::io("create", &path, error))
    }

    /// Removes the directories of dead processes. Directories that cannot be removed are harmless
    /// and stay.
    pub(super) fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.tmp) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let Ok(directory) = File::open(&path) else { continue };
            if directory.try_lock().is_ok()
                && let Err(error) = std::fs::remove_dir_all(&path)
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove unfinished files");
            }
        }
    }

    /// Whether another process has a directory for its files.
    pub(super) fn has_others(&self) -> bool {
        let own = self.process_directory.lock().unwrap_or_else(PoisonError::into_inner);
        let own = own.as_ref().map(|directory| directory.path.clone());
        let entries = std::fs::read_dir(&self.tmp).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| Some(path) != own)
    }

    fn own_directory(&self) -> Result<Arc<ProcessDirectory>, StoreError> {
        let mut own = self.process_directory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(directory) = &*own {
            return Ok(Arc::clone(directory));
        }
        let created = Arc::new(self.make_directory()?);
        *own = Some(Arc::clone(&created));
        Ok(created)
    }

    fn forget(&self, gone: &Arc<ProcessDirectory>) {
        let mut own = self.process_directory.lock().unwrap_or_else(PoisonError::into_inner);
        if own.as_ref().is_some_and(|held| Arc::ptr_eq(held, gone)) {
            *own = None;
        }
    }

    fn make_directory(&self) -> Result<ProcessDirectory, StoreError> {
        let failed = |error| StoreError::io("create a directory in", &self.tmp, error);
        for _ in 0..ATTEMPTS {
            let path = self.tmp.join(format!("{:032x}", rand::random::<u128>()));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.recreate_tmp()?;
                    continue;
                }
                made => made.map_err(failed)?,
            }
            match lock_directory(&path) {
                Ok(Some(lock)) => return Ok(ProcessDirectory { path, _lock: lock }),
                Ok(None) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::Error::other("other processes keep removing it")))
    }

    /// Creates `tmp/` again after a user removed it, but never in a store that is away: the empty
    /// mount point of a file system would fill with files that no later reader finds.
    fn recreate_tmp(&self) -> Result<(), StoreError> {
        let root = self.tmp.parent().expect("tmp/ is below the root of the store");
        super::check_present(root)?;
        super::make_directory(&self.tmp)
    }
}

/// Locks a new directory; `None` if another process took it for abandoned in the meantime.
fn lock_directory(path: &Path) -> io::Result<Option<File>> {
    let gone = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(None),
        _ => Err(error),
    };
    let directory = match File::open(path) {
        Ok(directory) => directory,
        Err(error) => return gone(error),
    };
    match directory.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.ino() == directory.metadata()?.ino() => Ok(Some(directory)),
        Ok(_) => Ok(None),
        Err(error) => gone(error),
    }
}

impl Drop for ProcessDirectory {
    fn drop(&mut self) {
        // The next process that opens the store sweeps the remains.
        let _removed = std::fs::remove_dir_all(&self.path);
    }
}

/// A file under a temporary name, removed when dropped unless it was renamed.
#[derive(Debug)]
pub(super) struct ScratchFile {
    path: PathBuf,
    file: File,
    named: bool,
    _directory: Arc<ProcessDirectory>,
}

impl ScratchFile {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(|error| StoreError::io("write", &self.path, error))
    }

    /// Makes the content durable.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_all().map_err(|error| StoreError::io("sync", &self.path, error))
    }

    /// Moves the file to its final name, replacing an existing file.
    pub(super) fn rename_to(mut self, target: &Path) -> Result<(), StoreError> {
        std::fs::rename(&self.path, target)
            .map_err(|error| StoreError::io("rename a file to", target, error))?;
        self.named = false;
        Ok(())
    }

    /// Moves an existing file here, in place of this one, so that dropping this removes it.
    pub(super) fn take(&self, existing: &Path) -> io::Result<std::fs::Metadata> {
        std::fs::rename(existing, &self.path)?;
        std::fs::symlink_metadata(&self.path)
    }

    /// Gives the file its final name unless that exists; returns whether it did.
    pub(super) fn link_new(&self, target: &Path) -> Result<bool, StoreError> {
        match std::fs::hard_link(&self.path, target) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(StoreError::io("link a file to", target, error)),
        }
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        if self.named {
            // On failure, it is swept with the directory.
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}
