//! The directory of a worker on its host.
//!
//! ```text
//! <base>/<worker id>/lock         locked while the worker is alive
//! <base>/<worker id>/owner.json   its owner
//! <base>/<worker id>/spool/       finished records that are not reported yet
//! <base>/<worker id>/scratch/     everything else
//! ```
//! A directory is created under a temporary name, locked, and then renamed, so that one with its
//! final name and an unlocked lock was left by a dead worker. Any process on the host may adopt it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rollout_base::backoff::error_chain;
use rollout_base::shown_path::shown;
use rollout_base::{durable, fs_remove};
use rollout_protocol::id::WorkerId;

use super::{LOCK, OWNER_FILE, Owner};

/// Name prefix of directories that are not ready.
const UNREADY_PREFIX: &str = ".new-";

/// Attempts to create a directory: a concurrent cleanup by another process costs one.
const ATTEMPTS: u32 = 16;

/// Longest part of the host's name in a worker id, which is limited to 64 bytes.
const HOST_BYTES: usize = 40;

/// A directory whose lock this process holds until it is dropped.
#[derive(Debug)]
pub struct WorkerDir {
    path: PathBuf,
    id: WorkerId,
    /// The lock is held as long as the file is open.
    _lock: File,
}

/// A worker directory could not be created, adopted or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", shown(path))]
pub struct WorkerDirError {
    /// The failed action, as an infinitive.
    pub action: &'static str,
    /// The path it failed on.
    pub path: PathBuf,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl WorkerDirError {
    fn with_context(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

impl WorkerDir {
    /// Creates the directory of a new worker below `base`, which is created if it does not exist.
    /// The worker also gets a new id: the host's name and random digits.
    ///
    /// # Errors
    /// [`WorkerDirError`].
    pub fn create(base: &Path) -> Result<Self, WorkerDirError> {
        let (id, unready, lock) = lock_new(base)?;
        // It has an entry now, so that no other process can remove it.
        let base = base.canonicalize().map_err(WorkerDirError::with_context("find", base))?;
        let path = base.join(id.as_str());
        let failed = || WorkerDirError::with_context("create", &unready);
        let owner = Owner::current(path.clone());
        let text = serde_json::to_vec(&owner).map_err(|error| failed()(error.into()))?;
        fs::write(unready.join(OWNER_FILE), text).map_err(failed())?;
        for name in ["spool", "scratch"] {
            fs::create_dir(unready.join(name)).map_err(failed())?;
        }
        durable::sync_tree(&unready).map_err(WorkerDirError::with_context("sync", &unready))?;
        fs::rename(&unready, &path).map_err(WorkerDirError::with_context("create", &path))?;
        // The spool is durable only if the entry of its directory is.
        durable::sync_directory(&base).map_err(WorkerDirError::with_context("sync", &base))?;
        Ok(Self { path, id, _lock: lock })
    }

    /// Every directory below `base` that a dead worker left, locked by this process from now on.
    /// Unready ones are removed.
    ///
    /// # Errors
    /// [`WorkerDirError`] if `base` cannot be listed; it need not exist.
    pub fn adoptable(base: &Path) -> Result<Vec<Self>, WorkerDirError> {
        let failed = || WorkerDirError::with_context("list", base);
        // Another process may remove an empty base at any time.
        let found = base.canonicalize().and_then(|base| Ok((fs::read_dir(&base)?, base)));
        let (entries, base) = match found {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed()(error)),
        };
        let mut adopted = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed())?.file_name();
            let path = base.join(&name);
            let id = name.to_str().and_then(|name| name.parse::<WorkerId>().ok());
            if id.is_none() && !name.as_encoded_bytes().starts_with(UNREADY_PREFIX.as_bytes()) {
                continue;
            }
            match (take_lock(&path), id) {
                (Some(lock), Some(id)) => adopted.push(Self { path, id, _lock: lock }),
                (Some(_locked), None) => remove(&path)?,
                (None, _) => {
                    // An empty one was left during creation or removal.
                    let _removed = fs::remove_dir(&path);
                }
            }
        }
        adopted.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(adopted)
    }

    /// Removes the directories of dead workers below `base` whose spool and scratch are empty, also
    /// those of other users; others are not touched.
    pub fn sweep(base: &Path) {
        for path in fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let is_empty =
                |name| fs::read_dir(path.join(name)).is_ok_and(|mut d| d.next().is_none());
            // Checked before it is locked, so that an adopting process never finds it locked.
            if is_empty("spool")
                && is_empty("scratch")
                && let Some(_lock) = take_lock(&path)
                && let Err(error) = remove(&path)
            {
                tracing::warn!("{}", error_chain(&error));
            }
        }
    }

    /// The worker whose directory it is.
    pub fn id(&self) -> &WorkerId {
        &self.id
    }

    /// The directory; absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directory of the finished records that are not reported yet.
    pub fn spool(&self) -> PathBuf {
        self.path.join("spool")
    }

    /// Directory for temporary files.
    pub fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    /// The owner that created the directory, if it can still be read.
    pub fn owner(&self) -> Option<Owner> {
        fs::read_to_string(self.path.join(OWNER_FILE))
            .ok()
            .and_then(|text| Owner::from_label(&text))
    }

    /// Removes the directory with everything in it, and releases the lock.
    ///
    /// # Errors
    /// [`WorkerDirError`]; the remains can be adopted.
    pub fn remove(self) -> Result<(), WorkerDirError> {
        remove(&self.path)
    }

    /// Whether it contains executions that may not have been reported.
    pub fn has_unreported_work(&self) -> bool {
        [self.spool(), self.scratch()]
            .iter()
            .any(|dir| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()))
    }
}

/// Whether no process holds the lock of a worker directory. False if there is no lock file: the
/// directory may not be visible here.
pub(super) fn is_abandoned(path: &Path) -> bool {
    take_lock(path).is_some()
}

/// Creates and locks an unready directory for a new worker, below a base that may be missing.
fn lock_new(base: &Path) -> Result<(WorkerId, PathBuf, File), WorkerDirError> {
    for _ in 0..ATTEMPTS {
        let id = new_id(&super::process::host_name());
        let unready = base.join(format!("{UNREADY_PREFIX}{id}"));
        match durable::create_directory(base) {
            Ok(()) => {}
            // It was there, and another process removed it before it was looked at.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_other_file(base) => {
                continue;
            }
            Err(error) => return Err(WorkerDirError::with_context("create", base)(error)),
        }
        match fs::create_dir(&unready) {
            Ok(()) => {}
            // Another process removed the base, which was empty.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(WorkerDirError::with_context("create", &unready)(error)),
        }
        // A process that looks for abandoned directories may find it before it is locked.
        match File::create_new(unready.join(LOCK)) {
            Ok(_created) => {
                if let Some(lock) = take_lock(&unready) {
                    return Ok((id, unready, lock));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(WorkerDirError::with_context("lock", &unready)(error)),
        }
    }
    let failure = io::Error::other("other processes keep removing it");
    Err(WorkerDirError::with_context("create a directory in", base)(failure))
}

/// Whether something that is no directory has this path.
fn is_other_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok() && !path.is_dir()
}

/// Locks a directory unless another process holds its lock.
fn take_lock(path: &Path) -> Option<File> {
    let lock_path = path.join(LOCK);
    let lock = OpenOptions::new().read(true).write(true).open(&lock_path).ok()?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return None,
        Err(TryLockError::Error(error)) => {
            tracing::warn!(path = %lock_path.display(), %error, "cannot lock");
            return None;
        }
    }
    // Another process may have adopted and removed it since it was opened.
    let same = fs::symlink_metadata(&lock_path).ok()?.ino() == lock.metadata().ok()?.ino();
    same.then_some(lock)
}

/// The lock is removed last, so that the remains after a crash can be adopted.
fn remove(path: &Path) -> Result<(), WorkerDirError> {
    let failed = || WorkerDirError::with_context("remove", path);
    for entry in fs::read_dir(path).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if entry.file_name() == LOCK {
            continue;
        }
        let path = entry.path();
        fs_remove::remove_blocking(&path).map_err(WorkerDirError::with_context("remove", &path))?;
    }
    fs::remove_file(path.join(LOCK)).map_err(failed())?;
    match fs::remove_dir(path) {
        // A process that looked for abandoned directories removed the empty one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed()),
    }
}

fn new_id(host: &str) -> WorkerId {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let host: String = host.chars().map(plain).take(HOST_BYTES).collect();
    let text = format!("{host}-{:012x}", rand::random::<u64>() >> 16);
    text.trim_start_matches('-').parse().expect("at most 53 characters of the allowed ones")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::super::tests::until;
    use super::*;

    fn adopt_one(base: &Path) -> Vec<WorkerDir> {
        let mut adopted = Vec::new();
        until(|| {
            adopted = WorkerDir::adoptable(base).expect("listed");
            !adopted.is_empty()
        });
        assert_eq!(adopted.len(), 1);
        adopted
    }

    #[test]
    fn worker_id_from_any_host_name_is_valid() {
        for host in ["Worker_01.example", "", "ü", &"h".repeat(200), "..."] {
            let id = new_id(host);
            assert!(id.as_str().len() <= 64, "{id}");
        }
    }

    #[test]
    fn worker_dir_of_dead_owner_is_adopted_once() {
        let temp = TempDir::new().expect("a directory");
        let base = temp.path().join("workers");
        assert!(WorkerDir::adoptable(&base).expect("listed").is_empty());
        let dir = WorkerDir::create(&base).expect("created");
        let (id, path) = (dir.id().clone(), dir.path().to_owned());
        assert!(dir.spool().is_dir() && dir.scratch().is_dir());
        assert_eq!(dir.owner(), Some(Owner::current(path.clone())));
        assert!(WorkerDir::adoptable(&base).expect("listed").is_empty());
        fs::write(dir.spool().join("record"), "kept").expect("written");
        drop(dir);
        let adopted = adopt_one(&base);
        assert_eq!((adopted[0].id(), adopted[0].path()), (&id, path.as_path()));
        assert_eq!(
            fs::read_to_string(adopted[0].spool().join("record")).expect("readable"),
            "kept"
        );
        assert!(WorkerDir::adoptable(&base).expect("listed").is_empty());
        for dir in adopted {
            dir.remove().expect("removed");
        }
        assert!(!path.exists() && base.exists());
    }

    #[test]
    fn worker_dir_incomplete_or_foreign_is_not_adopted() {
        let temp = TempDir::new().expect("a directory");
        let base = temp.path();
        for name in [".new-a", "empty", "foreign", "Not_A_Worker"] {
            fs::create_dir(base.join(name)).expect("created");
        }
        fs::write(base.join(".new-a/lock"), "").expect("written");
        fs::create_dir(base.join(".new-a/spool")).expect("created");
        fs::write(base.join("foreign/file"), "").expect("written");
        fs::write(base.join("Not_A_Worker/lock"), "").expect("written");
        fs::write(base.join("file"), "").expect("written");
        symlink("foreign", base.join("link")).expect("linked");
        assert!(WorkerDir::adoptable(base).expect("listed").is_empty());
        let mut left: Vec<_> =
            fs::read_dir(base).expect("listed").map(|e| e.expect("an entry").file_name()).collect();
        left.sort();
        assert_eq!(left, ["Not_A_Worker", "file", "foreign", "link"]);
    }

    #[test]
    fn worker_dirs_of_concurrent_processes_come_and_go() {
        let temp = TempDir::new().expect("a directory");
        let base = temp.path().join("workers");
        let come_and_go = || {
            for _ in 0..100 {
                for abandoned in WorkerDir::adoptable(&base).expect("listed") {
                    abandoned.remove().expect("removed");
                }
                let own = WorkerDir::create(&base).expect("created");
                own.remove().expect("removed");
                // It fails while another one has a directory there.
                let _in_use = fs::remove_dir(&base);
            }
        };
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(come_and_go);
            }
        });
    }

    #[test]
    fn worker_dir_sweep_removes_only_dead_and_empty() {
        let temp = TempDir::new().expect("a directory");
        let make = || WorkerDir::create(temp.path()).expect("created");
        let (live, full, empty) = (make(), make(), make());
        fs::write(full.spool().join("record"), "kept").expect("written");
        let (kept, gone) = (full.path().to_owned(), empty.path().to_owned());
        drop((full, empty));
        until(|| {
            WorkerDir::sweep(temp.path());
            !gone.exists()
        });
        assert!(live.path().exists() && kept.exists());
    }

    #[test]
    fn worker_dir_removal_interrupted_is_finished_later() {
        let temp = TempDir::new().expect("a directory");
        let dir = WorkerDir::create(temp.path()).expect("created");
        fs::remove_dir_all(dir.spool()).expect("removed");
        fs::remove_file(dir.path().join("owner.json")).expect("removed");
        drop(dir);
        for dir in adopt_one(temp.path()) {
            assert_eq!(dir.owner(), None);
            dir.remove().expect("removed");
        }
        assert_eq!(fs::read_dir(temp.path()).expect("listed").count(), 0);
    }
}
