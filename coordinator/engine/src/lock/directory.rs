//! The lock of a run directory: the locked `run.lock`, and the lock info with the owner's
//! heartbeat.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rollout_base::backoff::without_place;
use rollout_base::shortage::Shortage;
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::Timestamp;
use rustix::io::Errno;
use tokio::sync::watch;

use super::lock_file::{self, LockFile};
use super::owner::{FileId, LockOwner};
use super::takeover_policy::{
    ChangeWatch, OwnerStatus, TakeoverDecision, WatchObservation, decide_takeover,
};
use super::{LockError, LockLostError, LockWaitPolicy};
use crate::atomic_file;
use crate::core::Takeover;
use crate::journal::{self, RunLayout};

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// How long the directory takes no heartbeats before the session ends: it could keep no result. A disk
/// that is only full is waited for.
pub(super) const UNWRITABLE_LIMIT: Duration = Duration::from_secs(300);

/// Lock infos that could not be written. A disk that takes no writes may have those of many runs.
static UNWRITTEN: WarningLimiter = WarningLimiter::new();

/// File systems that only this kernel mounts, by their statfs(2) type: a lock of one process
/// excludes all others. For every other file system this is unknown.
#[cfg(target_os = "linux")]
const LOCAL_FILE_SYSTEMS: &[i64] = &[
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683E, // btrfs
    0x0102_1994, // tmpfs
    0x794C_7630, // overlayfs
    0xF2F5_2010, // f2fs
    0x2FC1_2FC1, // zfs
    0xCA45_1A4E, // bcachefs
];

/// A process that wants the lock.
#[derive(Debug)]
pub(super) struct Contender {
    layout: RunLayout,
    owner: LockOwner,
    file: File,
    local: bool,
    /// The newest epoch that an owner took, even one that opened no segment.
    newest: u32,
    watch: ChangeWatch<Option<Vec<u8>>>,
    started: Instant,
    /// The owner that the last attempt found, for people.
    holder: String,
}

/// Outcome of an attempt.
#[derive(Debug)]
pub(super) enum LockAttempt {
    /// This process has the lock, perhaps by a takeover.
    Taken(Option<Takeover>),
    /// Another process may have it.
    Wait,
}

/// The lock, held while this value lives.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    ownership: Arc<DirectoryOwnership>,
    stop: Option<Sender<()>>,
    heartbeat: Option<JoinHandle<()>>,
}

/// Ownership of a run directory, and the check that it still holds.
#[derive(Debug)]
pub(super) struct DirectoryOwnership {
    layout: RunLayout,
    file: File,
    /// Whether only this kernel mounts its file system: files keep their numbers then.
    is_local: bool,
    lock_info: Mutex<LockFile>,
    lost: watch::Sender<Option<LockLostError>>,
    /// Why the directory has taken no writes for too long, if so.
    unwritable: watch::Sender<Option<String>>,
}

impl Contender {
    pub(super) fn new(layout: &RunLayout) -> Result<Self, LockError> {
        let path = layout.lock();
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(LockError::io(&path))?;
        let (layout, owner) = (layout.clone(), LockOwner::current(layout));
        let local = is_local(layout.root());
        let (watch, started) = (ChangeWatch::new(), Instant::now());
        Ok(Self { layout, owner, file, local, newest: 0, watch, started, holder: String::new() })
    }

    #[cfg(test)]
    pub(super) fn set_local(&mut self, local: bool) {
        self.local = local;
    }

    /// The owner that the last attempt found.
    pub(super) fn holder(&self) -> &str {
        &self.holder
    }

    /// Tries once. Unlocks the file again unless the lock is taken.
    pub(super) fn attempt(&mut self, policy: &LockWaitPolicy) -> Result<LockAttempt, LockError> {
        let path = self.layout.lock();
        let answer = try_lock(&self.file).map_err(LockError::io(&path))?;
        // Where files cannot be locked at all, only the lock info decides.
        self.local &= answer.is_some();
        let locked = answer.unwrap_or(true);
        let text = lock_file::read(&self.layout.lock_info())
            .map_err(LockError::io(&self.layout.lock_info()))?;
        let watched = self.watch.record_value(self.started.elapsed(), text.clone());
        let info = text.as_deref().and_then(LockFile::parse);
        self.newest = info.as_ref().map_or(0, |note| note.epoch);
        let own = FileId::from_file(&self.file).map_err(LockError::io(&path))?;
        self.owner.file = answer.unwrap_or(false).then_some(own);
        let verdict = match (&info, &text) {
            (None, None) if locked => TakeoverDecision::Take(None),
            (None, Some(_)) if locked && self.local => TakeoverDecision::Take(None),
            (Some(note), _) if locked => decide_takeover(self.owner_status(note), watched, policy),
            (None, Some(_)) if locked => decide_takeover(OwnerStatus::Unproven, watched, policy),
            _ => decide_locked_takeover(watched, policy),
        };
        let describe = |wording: fn(&LockFile) -> String| {
            info.as_ref().map_or_else(|| "another process".to_owned(), wording)
        };
        if let TakeoverDecision::Take(reason) = verdict {
            let former = describe(|note| note.owner.describe());
            let takeover = reason.map(|reason| Takeover { former, reason });
            return Ok(LockAttempt::Taken(takeover));
        }
        if self.owner.file.is_some() {
            self.file.unlock().map_err(LockError::io(&path))?;
        }
        self.holder = describe(LockFile::describe);
        match verdict {
            TakeoverDecision::Held => {
                let holder = self.holder.clone();
                Err(LockError::Held { root: self.layout.root().to_owned(), holder })
            }
            TakeoverDecision::Take(_) | TakeoverDecision::Wait => Ok(LockAttempt::Wait),
        }
    }

    /// Status of the owner that the lock info names although this process has locked the file.
    fn owner_status(&self, info: &LockFile) -> OwnerStatus {
        if self.local && info.owner.file.is_some() {
            // A lock info that was copied with the directory names the owner of another one.
            let this = self.owner.holds_file_of(&info.owner);
            return if this { OwnerStatus::Dead } else { OwnerStatus::Released };
        }
        if self.owner.proves_dead(&info.owner) { OwnerStatus::Dead } else { OwnerStatus::Unproven }
    }

    /// Writes this process to the lock info as the owner, and starts its heartbeat.
    pub(super) fn into_lock(self) -> Result<DirectoryLock, LockError> {
        let Self { layout, owner, file: locked, newest, local: is_local, .. } = self;
        let epoch = journal::next_epoch(&layout)?.max(newest.saturating_add(1));
        let note = LockFile::new(owner, epoch);
        atomic_file::remove_unfinished(layout.root()).map_err(LockError::io(layout.root()))?;
        let path = layout.lock_info();
        note.write(&path).map_err(LockError::io(&path))?;
        let ownership = Arc::new(DirectoryOwnership {
            layout,
            file: locked,
            is_local,
            lock_info: Mutex::new(note),
            lost: watch::Sender::new(None),
            unwritable: watch::Sender::new(None),
        });
        let (stop, stopped) = channel();
        let beats = Arc::clone(&ownership);
        let beating =
            rollout_base::supervise::thread("run lock", move || beats.write_heartbeats(&stopped));
        let beating = beating.map_err(LockError::io(&path))?;
        Ok(DirectoryLock { ownership, stop: Some(stop), heartbeat: Some(beating) })
    }
}

impl DirectoryLock {
    pub(super) fn ownership(&self) -> &Arc<DirectoryOwnership> {
        &self.ownership
    }

    /// The epoch that belongs to the lock.
    pub(super) fn epoch(&self) -> u32 {
        self.ownership.lock_file().epoch
    }

    /// Sets the epoch that belongs to the lock.
    pub(super) fn set_epoch(&self, epoch: u32) {
        self.ownership.lock_file().epoch = epoch;
        // The next heartbeat tries again.
        let _unwritten = self.ownership.refresh();
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(beating) = self.heartbeat.take() {
            // A panic there was reported already.
            drop(beating.join());
        }
        self.ownership.remove();
        // Closing is not enough: a child that was just forked keeps the file open until it
        // executes.
        let _closed_anyway = self.ownership.file.unlock();
    }
}

impl DirectoryOwnership {
    pub(super) fn owner(&self) -> LockOwner {
        self.lock_file().owner.clone()
    }

    pub(super) fn lost(&self) -> watch::Receiver<Option<LockLostError>> {
        self.lost.subscribe()
    }

    /// The lock info, which has the heartbeat.
    pub(super) fn lock_info_path(&self) -> PathBuf {
        self.layout.lock_info()
    }

    pub(super) fn unwritable(&self) -> watch::Receiver<Option<String>> {
        self.unwritable.subscribe()
    }

    pub(super) fn mark_lost(&self, lost: LockLostError) {
        self.lost.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(lost);
            first
        });
    }

    /// Checks whether another process owns the directory by now, and whether it is where it was.
    ///
    /// # Errors
    /// [`LockLostError`].
    pub(super) fn check(&self) -> Result<(), LockLostError> {
        if self.lost.borrow().is_none()
            && let Some(lost) = self.displacement().or_else(|| self.successor())
        {
            self.mark_lost(lost);
        }
        self.lost.borrow().clone().map_or(Ok(()), Err)
    }

    fn lock_file(&self) -> MutexGuard<'_, LockFile> {
        self.lock_info.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_heartbeats(&self, stopped: &Receiver<()>) {
        let mut failing_since = None;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(HEARTBEAT_INTERVAL) {
            if self.check().is_err() {
                return;
            }
            self.write_heartbeat(&mut failing_since, Instant::now());
        }
    }

    /// Writes a heartbeat. `failing_since` is the time of the first one that failed, if the last one did.
    pub(super) fn write_heartbeat(&self, failing_since: &mut Option<Instant>, now: Instant) {
        let failed = self.refresh().err();
        let is_lasting = |error: &std::io::Error| Shortage::from_io_error(error).is_none();
        let Some(error) = failed.filter(is_lasting) else {
            *failing_since = None;
            return;
        };
        let since = *failing_since.get_or_insert(now);
        if now.duration_since(since) >= UNWRITABLE_LIMIT {
            let reason = without_place(&error);
            self.unwritable.send_if_modified(|known| known.replace(reason).is_none());
        }
    }

    /// Replaces the lock info, with a new heartbeat.
    pub(super) fn refresh(&self) -> std::io::Result<()> {
        let mut note = self.lock_file();
        if note.owner.file.is_none() && matches!(try_lock(&self.file), Ok(Some(true))) {
            // The process that had it locked during the takeover is gone.
            note.owner.file = FileId::from_file(&self.file).ok();
        }
        note.last_heartbeat_at = Timestamp::now();
        let path = self.layout.lock_info();
        note.write(&path).inspect_err(|error| {
            let reason = without_place(error);
            UNWRITTEN.warn(&format_args!("cannot write {}: {reason}", path.display()));
        })
    }

    /// That the locked file is no longer at its path, if so. What is written below that path would go
    /// to another directory.
    fn displacement(&self) -> Option<LockLostError> {
        let is_gone = match fs::metadata(self.layout.lock()) {
            Ok(found) => {
                let number = |file: &Metadata| (file.dev(), file.ino());
                let own = self.file.metadata();
                self.is_local && own.is_ok_and(|own| number(&own) != number(&found))
            }
            // Other errors may end: the disk does not answer, or this user lost a right.
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        };
        let root = || self.layout.root().to_owned();
        is_gone.then(|| LockLostError::DirectoryGone { root: root() })
    }

    /// The next owner, if there is one. Epochs are assigned once: a lock info with an older epoch
    /// was written by a process that read it before this one wrote.
    fn successor(&self) -> Option<LockLostError> {
        let found = lock_file::read(&self.layout.lock_info()).ok()?;
        let found = found.as_deref().and_then(LockFile::parse);
        let own = self.lock_file();
        match found {
            Some(found) if found.owner.id == own.owner.id => None,
            Some(found) if found.epoch > own.epoch => {
                Some(LockLostError::TakenOver { by: found.describe_successor() })
            }
            // A successor that has ended removed its lock info. Its segment remains.
            _ => {
                let newest = journal::next_epoch(&self.layout).ok()? - 1;
                let by = || format!("session {newest}, which has ended");
                (newest > own.epoch).then(|| LockLostError::TakenOver { by: by() })
            }
        }
    }

    /// Removes the lock info if it names this process.
    fn remove(&self) {
        let path = self.layout.lock_info();
        let found = lock_file::read(&path).ok().flatten().and_then(|text| LockFile::parse(&text));
        if found.is_some_and(|found| found.owner.id == self.lock_file().owner.id) {
            // A leftover one names a dead process.
            drop(std::fs::remove_file(path));
        }
    }
}

/// Another process has locked the file, so it exists; it may be suspended or hang.
fn decide_locked_takeover(watched: WatchObservation, policy: &LockWaitPolicy) -> TakeoverDecision {
    let wait = policy.wait && policy.hung;
    decide_takeover(OwnerStatus::Unproven, watched, &LockWaitPolicy { wait, ..*policy })
}

/// Whether this process has locked the file now; `None` where the file system has no locks.
fn try_lock(file: &File) -> std::io::Result<Option<bool>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(true)),
        Err(TryLockError::WouldBlock) => Ok(Some(false)),
        Err(TryLockError::Error(error)) => {
            let number = Errno::from_io_error(&error);
            let lockless = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS];
            if number.is_some_and(|n| lockless.contains(&n)) { Ok(None) } else { Err(error) }
        }
    }
}

/// Whether a process may own the run directory. Changes nothing: the lock of a dead owner is held
/// only for the moment of this question.
pub(super) fn is_held(layout: &RunLayout) -> std::io::Result<bool> {
    let Some(text) = lock_file::read(&layout.lock_info())? else { return Ok(false) };
    let file = File::open(layout.lock())?;
    let answer = try_lock(&file)?;
    if answer == Some(false) {
        return Ok(true);
    }
    file.unlock()?;
    if answer.is_some() && is_local(layout.root()) {
        return Ok(false);
    }
    let (this, info) = (LockOwner::current(layout), LockFile::parse(&text));
    Ok(info.is_none_or(|info| !this.proves_dead(&info.owner)))
}

/// Whether other hosts may access the directory.
pub fn is_shared(path: &Path) -> bool {
    !is_local(path)
}

/// Whether no other host can access the directory.
#[cfg(target_os = "linux")]
fn is_local(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| {
        let kind = i128::from(found.f_type);
        LOCAL_FILE_SYSTEMS.iter().any(|local| i128::from(*local) == kind)
    })
}

#[cfg(not(target_os = "linux"))]
fn is_local(_: &Path) -> bool {
    false
}
