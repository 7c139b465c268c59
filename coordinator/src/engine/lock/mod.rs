//! The run lock: one process owns a run.
//!
//! # In the run directory
//! `run.lock` is locked by its owner (flock) and never renamed, rewritten or removed: where the file
//! system is of this kernel alone, that is all there is to ask. `run.lock.json` says who it is, and
//! beats every five seconds. On a file system that other hosts may share, and for an owner that is
//! stopped, the note decides: nobody compares clocks, the note is watched until it changed (its
//! owner lives) or was the same for the stale time.
//!
//! # On a board
//! A run whose workers are elsewhere has an entry on a board, too, under its id, changed only by
//! compare-and-set. It names the owner and the journal's durable [`JournalPrefix`](crate::engine::journal::JournalPrefix), so
//! that a copy of the run directory that lacks something cannot win. Reports are forgotten only up
//! to the position that an entry of this owner confirmed. Silence of the server never costs the
//! owner its run, only another one's entry does.
//!
//! # Why a woken owner is harmless
//! Each epoch has its own journal segment, created exclusively, and the next owner writes down how
//! much of the one before counts. A lock that is lost is therefore only a reason to stop, never what
//! keeps the results right.

mod directory;
mod kv_entry;
mod kv_lock;
mod lock_file;
mod owner;
mod renewal;
mod takeover_policy;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_protocol::id::RunId;
use rollout_protocol::limits::LOCK_STALE;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::ReportPosition;
use rollout_worker::queue::traits::{Dispatch, KvStore, QueueError};
use rollout_worker::supervise::{self, Task};
use tokio::sync::{mpsc, watch};

use self::directory::{Contender, DirectoryLock, DirectoryOwnership, LockAttempt};
pub use self::kv_entry::RunEntry;
use self::kv_lock::{KvLock, KvLockTarget, RunDirectoryReader, RunDirectoryState};
pub use self::owner::{FileId, LockOwner};
use self::renewal::LockRenewal;
use super::manifest::RunState;
use super::{DurableState, DurableStateListener, EngineMessage, RunError};
use crate::engine::core::Takeover;
use crate::engine::journal::{
    self, JournalError, JournalPrefix, MissingRecords, RunLayout, SegmentIndex,
};

/// Time between two looks at a directory that may be somebody else's.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How a run is taken.
#[derive(Debug, Clone, Default)]
pub struct LockOptions {
    /// How patiently.
    pub patience: LockWaitPolicy,
    /// Where other hosts ask, if workers are elsewhere.
    pub shared: Option<KvLockOptions>,
}

/// How patient the taking of a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockWaitPolicy {
    /// How long an owner says nothing before it is taken over.
    pub stale: Duration,
    /// Take the run over at once, whoever has it.
    pub force: bool,
    /// Watch an owner that may be dead. Otherwise the run is its as long as nothing is proven.
    pub wait: bool,
    /// Watch also one whose process exists, in case it is stopped or hangs.
    pub hung: bool,
}

impl Default for LockWaitPolicy {
    fn default() -> Self {
        Self { stale: LOCK_STALE, force: false, wait: true, hung: false }
    }
}

/// Where other hosts ask for the owner, and what they are told of the run.
#[derive(Debug, Clone)]
pub struct KvLockOptions {
    /// The board.
    pub board: Arc<dyn KvStore>,
    /// What is told.
    pub facts: RunEntryInfo,
}

/// What an entry says of a run beside its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunEntryInfo {
    /// Name of the job.
    pub job: String,
    /// Pool of its workers.
    pub pool: String,
    /// Identity of its blob store.
    pub store: String,
}

/// The lock of a run, held while this value lives. When the process dies, however it dies, others
/// can prove it.
#[derive(Debug)]
pub struct RunLock {
    // Let go of first.
    kept: Option<LockRenewal>,
    directory: DirectoryLock,
}

/// What came with the lock.
#[derive(Debug, Clone)]
pub(crate) struct LockGrant {
    pub(crate) run: Option<RunId>,
    pub(crate) owner: LockOwner,
    pub(crate) epoch: u32,
    /// What of the journal others know to be durable.
    pub(crate) head: Option<JournalPrefix>,
    pub(crate) takeover: Option<Takeover>,
    pub(crate) shared: bool,
    pub(crate) fence: Fence,
}

/// Somebody else has the run now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it was taken over by {by}")]
pub struct LockLostError {
    /// Who.
    pub by: String,
}

/// Tells whether this process still owns the run directory.
#[derive(Debug, Clone)]
pub struct Fence {
    held: Arc<DirectoryOwnership>,
    checked: Instant,
}

/// How long a check of the fence holds. Whoever slept for longer looks again before anything else.
const FENCE_CHECK_VALIDITY: Duration = Duration::from_secs(1);

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has the directory.
    #[error("the run in {} is owned by {holder}", root.display())]
    Held {
        /// The run directory.
        root: PathBuf,
        /// Who, as far as is known.
        holder: String,
    },
    /// Another process has the run, maybe with another copy of the directory.
    #[error("run {run} is owned by {holder}")]
    Elsewhere {
        /// The run.
        run: RunId,
        /// Who, as far as is known.
        holder: String,
    },
    /// The directory is a copy that lacks what the run has.
    #[error("the directory is a copy of run {run} that lacks results: {lack}; {holder} has them")]
    Copy {
        /// The run.
        run: RunId,
        /// What it lacks.
        lack: MissingRecords,
        /// Who had the run last.
        holder: String,
    },
    /// The entry of the run is of a newer version.
    #[error("the server holds an entry for this run that this version cannot read")]
    Unreadable,
    /// The board does not work.
    #[error("the run's lock cannot be taken on the server")]
    Board(#[source] QueueError),
    /// The lock file cannot be used.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The journal is damaged.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A user did not want to wait for an owner any longer.
    #[error("stopped while its owner was being watched")]
    Interrupted,
}

impl LockError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

impl RunLock {
    /// Takes the lock of an existing run directory, and of the run where other hosts ask. A stop
    /// ends the wait for another owner; one that comes later stays in `stops`.
    ///
    /// # Errors
    /// [`LockError`].
    pub(crate) async fn acquire(
        layout: &RunLayout,
        taking: &LockOptions,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<(Self, LockGrant), LockError> {
        let patience = taking.patience;
        let (directory, mut takeover) = acquire_directory(layout, patience, stops).await?;
        let owner = directory.ownership().owner();
        let (survey_of, shared) = (layout.clone(), taking.shared.clone());
        let survey = supervise::blocking(move || SegmentIndex::read(&survey_of)).await?;
        let known = survey.openings().next().map(|opened| opened.run);
        let mut taken = LockGrant {
            run: known,
            owner: owner.clone(),
            epoch: directory.epoch(),
            head: None,
            takeover: None,
            shared: shared.is_some(),
            fence: Fence::new(directory.ownership()),
        };
        let mut kept = None;
        if let Some(KvLockOptions { board, facts }) = shared {
            let run = known.unwrap_or_else(|| RunId::from_bytes(rand::random()));
            let place =
                KvLockTarget { board, run, look: run_directory_reader(layout.clone()), facts };
            let lock = tokio::select! {
                taken = KvLock::acquire(place, owner, &patience) => taken,
                () = wait_for_stop(stops) => Err(LockError::Interrupted),
            };
            let (lock, over) = lock?;
            (taken.run, taken.head) = (Some(run), lock.durable_prefix());
            taken.epoch = taken.epoch.max(lock.epoch());
            takeover = over.or(takeover);
            kept = Some(LockRenewal::start(lock, Arc::clone(directory.ownership())));
        }
        directory.set_epoch(taken.epoch);
        taken.takeover = takeover;
        Ok((Self { kept, directory }, taken))
    }

    /// Takes the lock of an existing run directory alone, whatever its journal holds. A stop ends
    /// the wait for another owner.
    ///
    /// # Errors
    /// [`LockError`].
    pub(crate) async fn acquire_directory_only(
        layout: &RunLayout,
        patience: LockWaitPolicy,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<Self, LockError> {
        let (directory, _) = acquire_directory(layout, patience, stops).await?;
        Ok(Self { kept: None, directory })
    }

    /// The epoch that goes with the lock of the directory.
    pub(crate) fn epoch(&self) -> u32 {
        self.directory.epoch()
    }

    /// Whom the engine tells what is durable, if the run is on a board.
    pub fn durable_state_listener(&self) -> Option<DurableStateListener> {
        self.kept.as_ref().map(|kept| DurableStateListener::Lock(kept.standing.clone()))
    }

    /// Says what is durable.
    pub(super) fn publish_durable_state(&self, standing: DurableState) {
        if let Some(kept) = &self.kept {
            kept.standing.send_replace(Some(standing));
        }
    }

    /// The position up to which the board's entry of this owner covers the reports: they may be
    /// forgotten. Stays empty when the run is on no board.
    pub fn confirmed(&self) -> watch::Receiver<Option<ReportPosition>> {
        match &self.kept {
            Some(kept) => kept.confirmed.clone(),
            None => watch::channel(None).1,
        }
    }

    /// Comes back when somebody else has the run, and never otherwise.
    pub fn lost(&self) -> impl Future<Output = LockLostError> + Send + use<> {
        let mut lost = self.directory.ownership().lost();
        async move {
            let found = lost.wait_for(Option::is_some).await.ok().and_then(|lost| lost.clone());
            match found {
                Some(lost) => lost,
                None => std::future::pending().await,
            }
        }
    }

    /// Lets the queue forget what is confirmed, and tells the engine when the lock is lost, while
    /// the task lives.
    pub fn monitor(
        &self,
        run: RunId,
        dispatch: Arc<dyn Dispatch>,
        to: mpsc::Sender<EngineMessage>,
    ) -> Task<()> {
        let (lost, mut confirmed) = (self.lost(), self.confirmed());
        supervise::spawn("lock news", async move {
            let forget = async {
                while confirmed.changed().await.is_ok() {
                    let position = *confirmed.borrow_and_update();
                    let Some(position) = position else { continue };
                    if let Err(error) = dispatch.mark_journaled(run, position).await {
                        // The next position covers this one.
                        tracing::debug!("reports could not be purged: {error}");
                    }
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                lost = lost => {
                    // An engine that ended does not care.
                    drop(to.send(EngineMessage::Failed(RunError::LockLost(lost))).await);
                }
                () = forget => {}
            }
        })
    }

    /// Whether the run is still ours, for whoever is about to replace a file of the run directory.
    pub fn fence(&self) -> Fence {
        Fence::new(self.directory.ownership())
    }

    /// Lets the run go where other hosts ask: in this state, or as it was before when nothing came
    /// of the sitting. The directory stays locked until this value is dropped.
    ///
    /// # Errors
    /// [`LockLostError`] when it was somebody else's by then: what this sitting did last does not count.
    pub async fn release(&self, state: Option<RunState>) -> Result<(), LockLostError> {
        if let Some(kept) = &self.kept {
            kept.release(state).await;
        }
        self.fence().check()
    }
}

impl Fence {
    fn new(held: &Arc<DirectoryOwnership>) -> Self {
        Self { held: Arc::clone(held), checked: Instant::now() }
    }

    /// Looks whether somebody else has the run by now.
    ///
    /// # Errors
    /// [`LockLostError`].
    pub fn check(&self) -> Result<(), LockLostError> {
        self.held.check()
    }

    /// The same, unless that was done a moment ago: for whoever asks again and again.
    ///
    /// # Errors
    /// [`LockLostError`].
    pub fn check_when_due(&mut self) -> Result<(), LockLostError> {
        if self.checked.elapsed() >= FENCE_CHECK_VALIDITY {
            self.check()?;
            self.checked = Instant::now();
        }
        Ok(())
    }
}

async fn acquire_directory(
    layout: &RunLayout,
    patience: LockWaitPolicy,
    stops: &mut mpsc::Receiver<StopLevel>,
) -> Result<(DirectoryLock, Option<Takeover>), LockError> {
    let of = layout.clone();
    let mut contender = supervise::blocking(move || Contender::new(&of)).await?;
    loop {
        let (tried, attempt) = supervise::blocking(move || {
            let attempt = contender.attempt(&patience);
            (contender, attempt)
        })
        .await;
        match attempt? {
            LockAttempt::Taken(takeover) => {
                let lock = supervise::blocking(move || tried.into_lock()).await?;
                return Ok((lock, takeover));
            }
            LockAttempt::Wait => contender = tried,
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = wait_for_stop(stops) => return Err(LockError::Interrupted),
        }
    }
}

/// Comes back when a user asked for a stop.
async fn wait_for_stop(stops: &mut mpsc::Receiver<StopLevel>) {
    if stops.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Looks into a run directory for what the lock on a board depends on.
fn run_directory_reader(layout: RunLayout) -> RunDirectoryReader {
    Arc::new(move |wanted| {
        let layout = layout.clone();
        Box::pin(supervise::blocking(move || read_run_directory(&layout, wanted)))
    })
}

fn read_run_directory(
    layout: &RunLayout,
    wanted: Option<JournalPrefix>,
) -> Result<RunDirectoryState, JournalError> {
    let survey = SegmentIndex::read(layout)?;
    let mut view = RunDirectoryState {
        newest: survey.next_epoch() - 1,
        shared: survey.openings().any(|opened| opened.holder.is_some()),
        holder: survey.openings().next_back().and_then(|opened| opened.holder),
        ..RunDirectoryState::default()
    };
    match wanted {
        Some(head) => view.lack = survey.find_missing_records(head)?,
        None => view.head = survey.durable_prefix()?,
    }
    if let Some(head) = view.head {
        // Its writer may have died before it was synced.
        journal::sync_segment(layout, head.epoch)?;
    }
    Ok(view)
}

/// Name of this host.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
