//! Task files on this host: fetched and unpacked once, shared by all trials that need them.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lru::LruCache;
use rollout_base::fs_remove;
use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_base::write_check::check_writes;
use rollout_environment::BaseDigests;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_store::archive::{self, ArchiveError, ArchiveLimits};
use rollout_store::{BlobStore, StoreError};
use tokio::sync::OnceCell;

use super::base_digests::RunBaseDigests;

/// Number of task parts kept while no trial uses them. More would seldom be used again: trials of
/// one task follow each other.
const KEPT_PARTS: usize = 256;

/// Size of packed archives kept while no trial uses them, in bytes.
const KEPT_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// A directory of task parts. It belongs to one process at a time and starts empty: its content can
/// be fetched again, and leftovers of a crash must not be used.
#[derive(Debug)]
pub struct TaskFiles {
    dir: PathBuf,
    store: Arc<dyn BlobStore>,
    parts: Mutex<LruCache<(Digest, PartForm), CachedPart>>,
    counter: AtomicU64,
}

/// The form of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PartForm {
    /// The archive.
    Packed,
    /// A directory.
    Unpacked,
}

/// A part that exists or is being fetched; a caller that waits for it holds a clone of the cell.
#[derive(Debug, Clone)]
struct CachedPart {
    path: Arc<OnceCell<PathBuf>>,
    bytes: u64,
}

/// A file or directory that stays on disk while this lives.
#[derive(Debug, Clone)]
pub struct TaskPart(Arc<OnceCell<PathBuf>>);

/// Why files of a task are not available.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The store failed.
    #[error("cannot fetch {what}")]
    Store {
        /// The files.
        what: &'static str,
        /// The cause.
        #[source]
        source: StoreError,
    },
    /// They cannot be unpacked.
    #[error("cannot unpack {what}")]
    Unpack {
        /// The files.
        what: &'static str,
        /// The cause.
        #[source]
        source: ArchiveError,
    },
    /// The local disk failed.
    #[error("cannot access {what} at {}", shown(path))]
    Disk {
        /// The files.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl FilesError {
    /// Whether the store did not answer.
    pub(crate) fn is_store_unanswered(&self) -> bool {
        matches!(self, Self::Store { source, .. } if source.is_unanswered())
    }

    /// The message with the chain of causes.
    pub(crate) fn chain(&self) -> String {
        rollout_base::backoff::error_chain(self)
    }
}

impl CachedPart {
    /// Whether both are the same entry.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.path, &other.path)
    }
}

/// Makes the directory of a cache again if it is gone; returns whether it was. Does not make its parent:
/// a removed worker directory must not reappear in part. Blocks.
fn restore(dir: &Path) -> io::Result<bool> {
    match check_writes(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir(dir)?;
            Ok(true)
        }
        checked => checked.map(|()| false),
    }
}

impl TaskPart {
    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.get().expect("a part is given out when it is there")
    }
}

impl TaskFiles {
    /// Opens a cache at `dir`, which is emptied.
    ///
    /// # Errors
    /// Errors of the local disk.
    pub fn open(dir: &Path, store: Arc<dyn BlobStore>) -> io::Result<Self> {
        fs_remove::remove_blocking(dir)?;
        std::fs::create_dir_all(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            store,
            parts: Mutex::new(LruCache::unbounded()),
            counter: AtomicU64::new(0),
        })
    }

    /// The store of the base image digests chosen by a run.
    pub fn base_digests(&self, run: RunId) -> Arc<dyn BaseDigests> {
        Arc::new(RunBaseDigests::new(Arc::clone(&self.store), run))
    }

    /// Whether the store answers.
    pub async fn is_store_available(&self) -> bool {
        match self.store.contains(&Digest::sha256(b"")).await {
            Ok(_) => true,
            Err(error) => !error.is_unanswered(),
        }
    }

    /// The content of a small part.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn bytes(
        &self,
        what: &'static str,
        blob: &BlobRef,
        max_bytes: u64,
    ) -> Result<bytes::Bytes, FilesError> {
        let got = self.store.get_bytes(&blob.digest, max_bytes).await;
        got.map_err(|source| FilesError::Store { what, source })
    }

    /// A part as a packed archive.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn archive(
        &self,
        what: &'static str,
        blob: &BlobRef,
    ) -> Result<TaskPart, FilesError> {
        self.part(blob, PartForm::Packed, async |to: &Path| self.fetch(what, blob, to).await).await
    }

    /// A part as an unpacked directory.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn directory(
        &self,
        what: &'static str,
        blob: &BlobRef,
    ) -> Result<TaskPart, FilesError> {
        let unpack = async |to: &Path| {
            let packed = to.with_extension("tar");
            self.fetch(what, blob, &packed).await?;
            let unpacked = match tokio::fs::File::open(&packed).await {
                Ok(file) => archive::extract_trusted(file, to, ArchiveLimits::BUNDLE)
                    .await
                    .map_err(|source| FilesError::Unpack { what, source }),
                Err(source) => Err(FilesError::Disk { what, path: packed.clone(), source }),
            };
            remove_cached(&packed).await;
            unpacked
        };
        self.part(blob, PartForm::Unpacked, unpack).await
    }

    /// An empty directory, for tasks that have no `environment/`.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn empty_directory(&self) -> Result<TaskPart, FilesError> {
        let nothing = BlobRef { digest: Digest::sha256(b""), size_bytes: 0, media_type: None };
        let what = "an empty directory";
        let make = async |to: &Path| {
            let failed = |source| FilesError::Disk { what, path: to.to_owned(), source };
            if tokio::fs::create_dir(to).await.is_ok() {
                return Ok(());
            }
            self.restore_directory(what).await?;
            tokio::fs::create_dir(to).await.map_err(failed)
        };
        self.part(&nothing, PartForm::Unpacked, make).await
    }

    async fn fetch(&self, what: &'static str, blob: &BlobRef, to: &Path) -> Result<(), FilesError> {
        let Err(source) = self.store.get_file(&blob.digest, to).await else { return Ok(()) };
        // A local disk that fails is no outage of the store.
        if !self.restore_directory(what).await? {
            return Err(FilesError::Store { what, source });
        }
        let got = self.store.get_file(&blob.digest, to).await;
        got.map_err(|source| FilesError::Store { what, source })
    }

    /// Makes the directory of the cache again if it is gone. Returns whether it was.
    ///
    /// # Errors
    /// It takes no writes.
    async fn restore_directory(&self, what: &'static str) -> Result<bool, FilesError> {
        let dir = self.dir.clone();
        let restored = supervise::blocking(move || restore(&dir)).await;
        restored.map_err(|source| FilesError::Disk { what, path: self.dir.clone(), source })
    }

    /// Returns a part; `make` creates it if it is missing. Concurrent callers wait for it.
    async fn part(
        &self,
        blob: &BlobRef,
        form: PartForm,
        make: impl AsyncFnOnce(&Path) -> Result<(), FilesError>,
    ) -> Result<TaskPart, FilesError> {
        let part = self.present_part(blob, form).await;
        let made = part.path.get_or_try_init(|| async {
            // The final name is unique too: a directory of the same content may still be in
            // removal.
            let number = self.counter.fetch_add(1, Ordering::Relaxed);
            let path = self.dir.join(format!("{}-{number}", blob.digest.short()));
            match make(&path).await {
                Ok(()) => Ok(path),
                Err(error) => {
                    remove_cached(&path).await;
                    Err(error)
                }
            }
        });
        made.await?;
        self.evict_surplus().await;
        Ok(TaskPart(part.path))
    }

    /// The entry of a part. One whose files something has removed is replaced by an empty one.
    async fn present_part(&self, blob: &BlobRef, form: PartForm) -> CachedPart {
        let part = self.entry(blob, form, None);
        let Some(path) = part.path.get().cloned() else { return part };
        if tokio::fs::try_exists(&path).await.unwrap_or(false) {
            return part;
        }
        tracing::warn!("{} is gone from the cache and is fetched again", shown(&path));
        self.entry(blob, form, Some(&part))
    }

    /// The entry of a part, which is new if there is none, or only the one that is `gone`.
    fn entry(&self, blob: &BlobRef, form: PartForm, gone: Option<&CachedPart>) -> CachedPart {
        let mut parts = self.parts.lock().expect("nothing panics while it holds the index");
        let key = (blob.digest, form);
        let is_gone = |known: &CachedPart| gone.is_some_and(|gone| gone.is(known));
        if parts.peek(&key).is_some_and(is_gone) {
            parts.pop(&key);
        }
        let new = || CachedPart { path: Arc::default(), bytes: blob.size_bytes };
        parts.get_or_insert(key, new).clone()
    }

    /// Removes the least recently used parts until the rest is within bounds.
    async fn evict_surplus(&self) {
        for path in self.take_surplus() {
            remove_cached(&path).await;
        }
    }

    fn take_surplus(&self) -> Vec<PathBuf> {
        let mut parts = self.parts.lock().expect("nothing panics while it holds the index");
        let mut bytes: u64 = parts.iter().map(|(_, part)| part.bytes).sum();
        let (mut surplus, mut used) = (Vec::new(), Vec::new());
        let most = NonZeroUsize::new(KEPT_PARTS).expect("some are kept").get();
        while (parts.len() > most || bytes > KEPT_BYTES)
            && let Some((key, part)) = parts.pop_lru()
        {
            bytes -= part.bytes;
            if Arc::strong_count(&part.path) == 1 {
                surplus.extend(part.path.get().cloned());
            } else {
                used.push((key, part));
            }
        }
        for (key, part) in used {
            parts.push(key, part);
        }
        surplus
    }
}

/// Removes a file or directory. Best effort: the next owner of the cache empties it anyway.
async fn remove_cached(path: &Path) {
    if let Err(error) = fs_remove::remove(path).await {
        tracing::warn!(path = %path.display(), %error, "cannot remove a cached file");
    }
}
