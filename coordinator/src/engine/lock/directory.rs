//! The lock of a run directory: a locked file, and a note that beats.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rollout_protocol::Timestamp;
use rustix::io::Errno;
use tokio::sync::watch;

use super::judge::{Other, Verdict, Watch, Watched, judge};
use super::note::{self, Note};
use super::owner::{FileId, LockOwner};
use super::{LockError, Lost, Patience};
use crate::engine::core::Takeover;
use crate::engine::file;
use crate::engine::journal::{self, Layout};

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_secs(5);

/// File systems that only this kernel has mounted, as statfs(2) names them: what one process
/// locks, no other has. Of all others it is not known.
#[cfg(target_os = "linux")]
const LOCAL: &[i64] = &[
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
    layout: Layout,
    owner: LockOwner,
    file: File,
    local: bool,
    /// The newest epoch that an owner gave itself, also one that opened no segment.
    newest: u32,
    watch: Watch<Option<Vec<u8>>>,
    started: Instant,
}

/// What became of an attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    /// The lock is ours, maybe taken over.
    Taken(Option<Takeover>),
    /// Somebody may have it.
    Wait,
}

/// The lock, while it lives.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    held: Arc<Held>,
    stop: Option<Sender<()>>,
    beating: Option<JoinHandle<()>>,
}

/// Tells whether a directory is still its owner's.
#[derive(Debug)]
pub(super) struct Held {
    layout: Layout,
    file: File,
    note: Mutex<Note>,
    lost: watch::Sender<Option<Lost>>,
}

impl Contender {
    pub(super) fn new(layout: &Layout) -> Result<Self, LockError> {
        let path = layout.lock();
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(LockError::io(&path))?;
        let (layout, owner) = (layout.clone(), LockOwner::current(layout));
        let local = is_local(layout.root());
        let (watch, started) = (Watch::new(), Instant::now());
        Ok(Self { layout, owner, file, local, newest: 0, watch, started })
    }

    #[cfg(test)]
    pub(super) fn pretend_local(&mut self, local: bool) {
        self.local = local;
    }

    /// Tries once. What may have to be waited for is let go of.
    pub(super) fn attempt(&mut self, patience: &Patience) -> Result<Attempt, LockError> {
        let path = self.layout.lock();
        let answer = try_lock(&self.file).map_err(LockError::io(&path))?;
        // Where files cannot be locked at all, the note is all there is.
        self.local &= answer.is_some();
        let locked = answer.unwrap_or(true);
        let text = note::read(&self.layout.lock_info())
            .map_err(LockError::io(&self.layout.lock_info()))?;
        let watched = self.watch.answered(self.started.elapsed(), text.clone());
        let note = text.as_deref().and_then(Note::parse);
        self.newest = note.as_ref().map_or(0, |note| note.epoch);
        let mine = FileId::of(&self.file).map_err(LockError::io(&path))?;
        self.owner.file = answer.unwrap_or(false).then_some(mine);
        let verdict = match (&note, &text) {
            (None, None) if locked => Verdict::Take(None),
            (None, Some(_)) if locked && self.local => Verdict::Take(None),
            (Some(note), _) if locked => judge(self.other(note), watched, patience),
            (None, Some(_)) if locked => judge(Other::Unproven, watched, patience),
            _ => judge_locked(watched, patience),
        };
        let holder = note.map_or_else(|| "another process".to_owned(), |note| note.describe());
        if let Verdict::Take(reason) = verdict {
            let takeover = reason.map(|reason| Takeover { former: holder, reason });
            return Ok(Attempt::Taken(takeover));
        }
        if self.owner.file.is_some() {
            self.file.unlock().map_err(LockError::io(&path))?;
        }
        match verdict {
            Verdict::Held => Err(LockError::Held { root: self.layout.root().to_owned(), holder }),
            Verdict::Take(_) | Verdict::Wait => Ok(Attempt::Wait),
        }
    }

    /// The owner that a note names although this process has the lock of the file.
    fn other(&self, note: &Note) -> Other {
        if self.local && note.owner.file.is_some() {
            // One that was copied with the directory speaks of another.
            let this = self.owner.holds_file_of(&note.owner);
            return if this { Other::Dead } else { Other::Released };
        }
        if self.owner.proves_dead(&note.owner) { Other::Dead } else { Other::Unproven }
    }

    /// Notes down that this process is the owner, and lets that note beat.
    pub(super) fn hold(self) -> Result<DirectoryLock, LockError> {
        let Self { layout, owner, file: locked, newest, .. } = self;
        let epoch = journal::next_epoch(&layout)?.max(newest.saturating_add(1));
        let note = Note::new(owner, epoch);
        file::sweep(layout.root()).map_err(LockError::io(layout.root()))?;
        let path = layout.lock_info();
        note.write(&path).map_err(LockError::io(&path))?;
        let (lost, note) = (watch::Sender::new(None), Mutex::new(note));
        let held = Arc::new(Held { layout, file: locked, note, lost });
        let (stop, stopped) = channel();
        let beats = Arc::clone(&held);
        let beating = rollout_worker::supervise::thread("run lock", move || beats.beat(&stopped));
        let beating = beating.map_err(LockError::io(&path))?;
        Ok(DirectoryLock { held, stop: Some(stop), beating: Some(beating) })
    }
}

impl DirectoryLock {
    pub(super) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// The epoch that goes with the lock.
    pub(super) fn epoch(&self) -> u32 {
        self.held.note().epoch
    }

    /// The epoch became another one.
    pub(super) fn set_epoch(&self, epoch: u32) {
        self.held.note().epoch = epoch;
        self.held.refresh();
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(beating) = self.beating.take() {
            // A panic there was told already.
            drop(beating.join());
        }
        self.held.remove();
        // Closing is not enough: a child that was just forked has the file until it executes.
        let _closed_anyway = self.held.file.unlock();
    }
}

impl Held {
    pub(super) fn owner(&self) -> LockOwner {
        self.note().owner.clone()
    }

    pub(super) fn lost(&self) -> watch::Receiver<Option<Lost>> {
        self.lost.subscribe()
    }

    pub(super) fn lose(&self, lost: Lost) {
        self.lost.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(lost);
            first
        });
    }

    /// Looks whether somebody else has the directory by now.
    ///
    /// # Errors
    /// [`Lost`].
    pub(super) fn check(&self) -> Result<(), Lost> {
        if self.lost.borrow().is_none()
            && let Some(lost) = self.successor()
        {
            self.lose(lost);
        }
        self.lost.borrow().clone().map_or(Ok(()), Err)
    }

    fn note(&self) -> MutexGuard<'_, Note> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn beat(&self, stopped: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(BEAT) {
            if self.check().is_err() {
                return;
            }
            self.refresh();
        }
    }

    pub(super) fn refresh(&self) {
        let mut note = self.note();
        if note.owner.file.is_none() && matches!(try_lock(&self.file), Ok(Some(true))) {
            // Who had it when this process took over is gone.
            note.owner.file = FileId::of(&self.file).ok();
        }
        note.last_heartbeat_at = Timestamp::now();
        if let Err(error) = note.write(&self.layout.lock_info()) {
            tracing::warn!("cannot write {}: {error}", self.layout.lock_info().display());
        }
    }

    /// The owner after this one. Epochs are given once: a note with an older one was written by
    /// somebody who read before this process wrote.
    fn successor(&self) -> Option<Lost> {
        let found = note::read(&self.layout.lock_info()).ok()?;
        let found = found.as_deref().and_then(Note::parse);
        let mine = self.note();
        match found {
            Some(found) if found.owner.id == mine.owner.id => None,
            Some(found) if found.epoch > mine.epoch => Some(Lost { by: found.describe() }),
            // A successor that has ended took its note away. Its segment stays.
            _ => {
                let newest = journal::next_epoch(&self.layout).ok()? - 1;
                let by = || format!("sitting {newest}, which has ended");
                (newest > mine.epoch).then(|| Lost { by: by() })
            }
        }
    }

    /// Removes the note if it is ours.
    fn remove(&self) {
        let path = self.layout.lock_info();
        let found = note::read(&path).ok().flatten().and_then(|text| Note::parse(&text));
        if found.is_some_and(|found| found.owner.id == self.note().owner.id) {
            // A leftover one names a dead process.
            drop(std::fs::remove_file(path));
        }
    }
}

/// Somebody has the file locked, so its process exists; it may be stopped or hang.
fn judge_locked(watched: Watched, patience: &Patience) -> Verdict {
    let wait = patience.wait && patience.hung;
    judge(Other::Unproven, watched, &Patience { wait, ..*patience })
}

/// Whether the file is ours now; none where the file system has no locks.
fn try_lock(file: &File) -> std::io::Result<Option<bool>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(true)),
        Err(TryLockError::WouldBlock) => Ok(Some(false)),
        Err(TryLockError::Error(error)) => {
            let number = error.raw_os_error().map(Errno::from_raw_os_error);
            let lockless = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS];
            if number.is_some_and(|n| lockless.contains(&n)) { Ok(None) } else { Err(error) }
        }
    }
}

/// Whether no other host can have the directory.
#[cfg(target_os = "linux")]
fn is_local(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| {
        let kind = i128::from(found.f_type);
        LOCAL.iter().any(|local| i128::from(*local) == kind)
    })
}

#[cfg(not(target_os = "linux"))]
fn is_local(_: &Path) -> bool {
    false
}
