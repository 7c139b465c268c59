//! Cached repositories: a bare one for each root, filled with the commits that evals need.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lru::LruCache;
use rollout_base::supervise;
use rollout_protocol::digest::Digest;
use rollout_protocol::limits;
use rollout_protocol::spec::eval::{CommitBundle, RepositorySpec};
use rollout_store::BlobStore;
use rollout_store::git::{BareRepository, GitError, bundle};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::EvalFilesError;
use super::local_dir::{self, CacheDirLock};

/// Prefix of the names of unfinished directories.
const UNFINISHED_PREFIX: &str = "new-";

/// References to an entry that only one call uses: the index's and the call's.
const SOLE_USER_REFERENCES: usize = 2;

/// A directory of cached repositories, used by one process at a time. Its content can be fetched
/// again at any time.
#[derive(Debug)]
pub struct Mirrors {
    dir: PathBuf,
    store: Arc<dyn BlobStore>,
    max_bytes: u64,
    entries: Mutex<LruCache<Digest, Arc<MirrorEntry>>>,
    counter: AtomicU64,
    _lock: CacheDirLock,
}

/// A repository that exists or is being fetched.
#[derive(Debug)]
struct MirrorEntry {
    path: PathBuf,
    /// Held while commits are added, or the repository is removed.
    lock: Arc<Turn<()>>,
    bytes: AtomicU64,
    /// Whether this process found it whole: a power failure may have left empty files.
    is_checked: AtomicBool,
}

/// A repository that is removed. No call uses it.
#[derive(Debug)]
struct SurplusMirror {
    root: Digest,
    entry: Arc<MirrorEntry>,
    turn: OwnedMutexGuard<()>,
}

impl SurplusMirror {
    /// Gives it another name. Blocks.
    fn rename(self, to: &Path) -> std::io::Result<()> {
        let Self { entry, turn, .. } = self;
        let moved = std::fs::rename(&entry.path, to);
        if moved.is_ok() {
            entry.bytes.store(0, Ordering::Relaxed);
            entry.is_checked.store(false, Ordering::Relaxed);
        }
        drop(turn);
        moved
    }
}

/// A cached repository that stays on disk while this lives.
#[derive(Debug, Clone)]
pub struct Mirror {
    bare: BareRepository,
    _entry: Arc<MirrorEntry>,
}

impl MirrorEntry {
    fn new(path: PathBuf, bytes: AtomicU64) -> Self {
        Self { path, lock: Arc::default(), bytes, is_checked: AtomicBool::new(false) }
    }
}

impl Mirror {
    /// The repository.
    pub const fn bare(&self) -> &BareRepository {
        &self.bare
    }
}

impl Mirrors {
    /// Opens the cache at `dir`. The most recently used repositories are kept within `max_bytes`.
    /// Unfinished directories of a crash are removed.
    ///
    /// # Errors
    /// Errors of the local disk, and when another process uses the directory.
    pub fn open(dir: &Path, store: Arc<dyn BlobStore>, max_bytes: u64) -> std::io::Result<Self> {
        let lock = CacheDirLock::acquire(dir)?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), entry.path());
            let Some(name) = name.to_str().filter(|name| *name != local_dir::LOCK_FILE) else {
                continue;
            };
            match format!("sha256:{name}").parse::<Digest>() {
                Ok(root) => found.push((entry.metadata()?.modified()?, root, path)),
                Err(_) => rollout_base::fs_remove::remove_blocking(&path)?,
            }
        }
        found.sort();
        let mut known = LruCache::unbounded();
        for (_, root, path) in found {
            let bytes = AtomicU64::new(local_dir::bytes_below(&path));
            known.push(root, Arc::new(MirrorEntry::new(path, bytes)));
        }
        let (dir, entries, counter) = (dir.to_owned(), Mutex::new(known), AtomicU64::new(0));
        Ok(Self { dir, store, max_bytes, entries, counter, _lock: lock })
    }

    /// Returns the repository with the requested commit in it.
    ///
    /// # Errors
    /// [`EvalFilesError`].
    pub async fn get(&self, repository: &RepositorySpec) -> Result<Mirror, EvalFilesError> {
        let entry = self.entry(&repository.root.blob.digest);
        let turn = entry.lock.lock().await;
        let bare = match self.fetch_missing(&entry, repository).await {
            // A repository that cannot be completed may be damaged: it is fetched again, once,
            // unless other calls use it.
            Err(EvalFilesError::Git(_)) if Arc::strong_count(&entry) == SOLE_USER_REFERENCES => {
                local_dir::remove_path(&entry.path).await?;
                self.fetch_missing(&entry, repository).await?
            }
            done => done?,
        };
        let path = entry.path.clone();
        let bytes = supervise::blocking(move || {
            local_dir::touch(&path);
            local_dir::bytes_below(&path)
        });
        entry.bytes.store(bytes.await, Ordering::Relaxed);
        drop(turn);
        let mirror = Mirror { bare, _entry: entry };
        self.evict_surplus().await;
        Ok(mirror)
    }

    fn entry(&self, root: &Digest) -> Arc<MirrorEntry> {
        let mut known = self.entries.lock().expect("nothing panics while it holds the index");
        let new = || {
            let path = self.dir.join(root.hex());
            Arc::new(MirrorEntry::new(path, AtomicU64::new(0)))
        };
        known.get_or_insert(*root, new).clone()
    }

    /// Fetches the commits that the repository lacks.
    async fn fetch_missing(
        &self,
        entry: &MirrorEntry,
        repository: &RepositorySpec,
    ) -> Result<BareRepository, EvalFilesError> {
        let bare = BareRepository::from_dir(&entry.path);
        if !entry.is_checked.load(Ordering::Relaxed)
            && local_dir::exists(&entry.path).await
            && let Some(damage) = bare.find_damage(&repository.root.commit).await?
        {
            // No call uses it yet.
            tracing::warn!("{damage}; the repository is fetched again");
            local_dir::remove_path(&entry.path).await?;
        }
        if !local_dir::exists(&entry.path).await {
            self.create_mirror(entry, &repository.root).await?;
        }
        entry.is_checked.store(true, Ordering::Relaxed);
        self.check_root(&bare, &repository.root).await?;
        let mut before = &repository.root;
        for next in &repository.chain {
            if next.parent.as_ref() != Some(&before.commit) {
                let reason = format!("{} does not follow {}", next.commit, before.commit);
                return Err(EvalFilesError::BrokenChain { reason });
            }
            if bare.reference(&commit_ref(next)).await?.is_none() {
                let file = self.fetch(next, limits::CANDIDATE_BUNDLE_BYTES).await?;
                let read = bundle::read(&bare, &file, next, &commit_ref(next), true).await;
                local_dir::remove_path(&file).await?;
                read?;
            }
            before = next;
        }
        Ok(bare)
    }

    async fn check_root(
        &self,
        bare: &BareRepository,
        root: &CommitBundle,
    ) -> Result<(), EvalFilesError> {
        match bare.reference(&commit_ref(root)).await? {
            Some(found) if found == root.commit => Ok(()),
            found => {
                let answer = format!("the root is {found:?}, not {}", root.commit);
                Err(GitError::Unexpected { what: "rev-parse".to_owned(), answer }.into())
            }
        }
    }

    /// Creates the repository under another name and renames it when it is durable.
    async fn create_mirror(
        &self,
        entry: &MirrorEntry,
        root: &CommitBundle,
    ) -> Result<(), EvalFilesError> {
        let file = self.fetch(root, limits::ROOT_BUNDLE_BYTES).await?;
        let new = self.unfinished_path();
        let name = commit_ref(root);
        let make = async { BareRepository::create(&new, root, &file, &name).await?.sync().await };
        let made = make.await;
        local_dir::remove_path(&file).await?;
        if let Err(error) = made {
            local_dir::remove_path(&new).await?;
            return Err(error.into());
        }
        let moved = tokio::fs::rename(&new, &entry.path).await;
        moved.map_err(|source| EvalFilesError::disk_error("rename", &new, source))
    }

    async fn fetch(
        &self,
        bundle: &CommitBundle,
        max_bytes: u64,
    ) -> Result<PathBuf, EvalFilesError> {
        let (commit, size_bytes) = (bundle.commit.clone(), bundle.blob.size_bytes);
        if size_bytes > max_bytes {
            return Err(EvalFilesError::TooLarge { commit, size_bytes, max_bytes });
        }
        let file = self.unfinished_path();
        let got = self.store.get_file(&bundle.blob.digest, &file).await;
        got.map_err(|source| EvalFilesError::Store { what: "a commit", source })?;
        Ok(file)
    }

    fn unfinished_path(&self) -> PathBuf {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!("{UNFINISHED_PREFIX}{number}"))
    }

    /// Removes the least recently used repositories until the rest is within bounds. One that is in use or
    /// cannot be renamed stays: it still occupies the disk, and the next call tries again.
    async fn evict_surplus(&self) {
        let mut removed = Vec::new();
        for surplus in self.surplus() {
            // Its path may be needed again at once: it is removed under another name.
            let aside = self.unfinished_path();
            let (root, entry, to) = (surplus.root, Arc::clone(&surplus.entry), aside.clone());
            // Calls that need it wait, also if this one is dropped, and fetch it again.
            match supervise::blocking(move || surplus.rename(&to)).await {
                Ok(()) => {
                    removed.push(aside);
                    self.forget(&root, &entry);
                }
                // It was never fetched.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.forget(&root, &entry);
                }
                Err(error) => {
                    tracing::warn!(path = %entry.path.display(), %error, "cannot rename a repository");
                }
            }
        }
        for path in removed {
            if let Err(error) = local_dir::remove_path(&path).await {
                tracing::warn!(path = %path.display(), %error, "cannot remove a repository");
            }
        }
    }

    /// The repositories to remove, which no call uses or gets meanwhile.
    fn surplus(&self) -> Vec<SurplusMirror> {
        let known = self.entries.lock().expect("nothing panics while it holds the index");
        let total = |entry: &Arc<MirrorEntry>| entry.bytes.load(Ordering::Relaxed);
        let mut bytes: u64 = known.iter().map(|(_, entry)| total(entry)).sum();
        let mut surplus = Vec::new();
        for (root, entry) in known.iter().rev() {
            if bytes <= self.max_bytes {
                break;
            }
            if Arc::strong_count(entry) > 1 {
                continue;
            }
            // Only calls hold it.
            let Ok(turn) = Arc::clone(&entry.lock).try_lock_owned() else { continue };
            bytes -= total(entry);
            surplus.push(SurplusMirror { root: *root, entry: Arc::clone(entry), turn });
        }
        surplus
    }

    /// Removes the entry of a repository that is gone, unless a call waits for it.
    fn forget(&self, root: &Digest, entry: &Arc<MirrorEntry>) {
        let mut known = self.entries.lock().expect("nothing panics while it holds the index");
        if Arc::strong_count(entry) == SOLE_USER_REFERENCES {
            known.pop(root);
        }
    }

    /// Number of cached repositories.
    pub fn len(&self) -> usize {
        self.entries.lock().expect("nothing panics while it holds the index").len()
    }

    /// Whether no repository is cached.
    pub fn is_empty(&self) -> bool {
        NonZeroUsize::new(self.len()).is_none()
    }
}

/// The git reference that keeps a commit.
pub(super) fn commit_ref(bundle: &CommitBundle) -> String {
    format!("refs/commits/{}", bundle.commit)
}
