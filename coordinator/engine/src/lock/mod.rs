//! The run lock: one process owns a run.
//!
//! # In the run directory
//! `run.lock` is locked by its owner (flock) and never renamed, rewritten or removed. On a file
//! system that only this kernel mounts, this lock alone decides. `run.lock.json`, the lock info,
//! names the owner and gets a heartbeat every five seconds. On a file system that other hosts may
//! share, and for an owner that is suspended, the lock info decides. Clocks of hosts are never
//! compared: the lock info is watched until it changes (its owner lives) or stays the same for the
//! stale time.
//!
//! # In a KV store
//! A run with remote workers also has an entry in a KV store, under its id, changed only by
//! compare-and-set. It names the owner and the journal's durable
//! [`JournalPrefix`](crate::journal::JournalPrefix), so a copy of the run directory that
//! lacks records cannot win. Reports are purged only up to the position that an entry of this owner
//! confirmed. Silence of the server never costs the owner its run; only another owner's entry does.
//!
//! # Why a woken owner is harmless
//! Each epoch has its own journal segment, created exclusively, and the next owner records how much
//! of the previous one counts. A lost lock is therefore only a reason to stop. The results are
//! right without it.

mod directory;
mod kv_entry;
mod kv_lock;
mod lock_file;
mod observed_owner;
mod owner;
mod renewal;
mod takeover_policy;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_base::shown_path::shown;
use rollout_base::supervise::{self, Task};
use rollout_protocol::id::RunId;
use rollout_protocol::limits::LOCK_STALE;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::ReportPosition;
use rollout_queue::traits::{Dispatch, KvStore, QueueError};
use tokio::sync::{mpsc, watch};

pub use self::directory::is_shared;
use self::directory::{Contender, DirectoryLock, DirectoryOwnership, LockAttempt};
pub use self::kv_entry::RunEntry;
use self::kv_lock::{KvLock, KvLockTarget, RunDirectoryReader, RunDirectoryState};
pub use self::observed_owner::ObservedOwner;
pub use self::owner::{FileId, LockOwner};
use self::renewal::LockRenewal;
use super::manifest::RunState;
use super::{DurableState, DurableStateListener, EngineMessage, RunError};
use crate::core::Takeover;
use crate::journal::{
    self, JournalError, JournalMirror, JournalPrefix, MissingRecords, RunLayout, SegmentIndex,
};

/// Time between two polls of a directory that another process may own.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Options for taking the lock of a run.
#[derive(Debug, Clone, Default)]
pub struct LockOptions {
    /// Wait policy.
    pub wait_policy: LockWaitPolicy,
    /// The lock across hosts, if workers are remote.
    pub kv: Option<KvLockOptions>,
    /// The second place of the run's journal, if it has one.
    pub mirror: Option<Arc<dyn JournalMirror>>,
}

/// How long to wait for an owner, and when to take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockWaitPolicy {
    /// How long an owner is silent before it is taken over.
    pub stale: Duration,
    /// Take the run over at once, whatever its owner does.
    pub force: bool,
    /// Watch an owner that may be dead. Otherwise the run stays its own until its death is proven.
    pub wait: bool,
    /// Also watch an owner whose process exists, in case it is suspended or hangs.
    pub hung: bool,
}

impl Default for LockWaitPolicy {
    fn default() -> Self {
        Self { stale: LOCK_STALE, force: false, wait: true, hung: false }
    }
}

/// The lock across hosts: a KV store, and the description of the run in it.
#[derive(Debug, Clone)]
pub struct KvLockOptions {
    /// The KV store.
    pub kv_store: Arc<dyn KvStore>,
    /// Description of the run.
    pub info: RunEntryInfo,
}

/// Description of a run in its KV entry, beside its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunEntryInfo {
    /// Name of the job.
    pub job: String,
    /// Pool of its workers.
    pub pool: String,
    /// Identity of its blob store.
    pub store: String,
    /// Whether a stopped owner leaves offers and executions to the next one.
    pub hands_over: bool,
}

/// The lock of a run, held while this value lives. After any death of the process, others can prove
/// it.
#[derive(Debug)]
pub struct RunLock {
    // Released first.
    renewal: Option<LockRenewal>,
    directory: DirectoryLock,
}

/// Data that comes with the lock.
#[derive(Debug, Clone)]
pub struct LockGrant {
    /// The run; `None` if it is new and only the directory is locked.
    pub(crate) run: Option<RunId>,
    /// This process.
    pub(crate) owner: LockOwner,
    /// Epoch of the session that begins.
    pub epoch: u32,
    /// The journal prefix that others know to be durable.
    pub(crate) durable_prefix: Option<JournalPrefix>,
    /// How the run was taken from its former owner, if it was.
    pub takeover: Option<Takeover>,
    /// Whether the lock is also held in the KV store.
    pub(crate) shared: bool,
    /// A check of the directory.
    pub fence: Fence,
}

/// This process no longer owns the run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockLostError {
    /// Another process owns it.
    #[error("it was taken over by {by}")]
    TakenOver {
        /// The new owner, and if known when it took the run over.
        by: String,
    },
    /// The locked file is no longer at its path, and neither may the other files be.
    #[error("its directory {} was moved, removed or replaced", shown(root))]
    DirectoryGone {
        /// The run directory.
        root: PathBuf,
    },
}

/// A check whether this process still owns the run directory.
#[derive(Debug, Clone)]
pub struct Fence {
    ownership: Arc<DirectoryOwnership>,
    checked: Instant,
}

/// How long a check of the fence is valid. A process that slept for longer checks again before
/// anything else.
const FENCE_CHECK_VALIDITY: Duration = Duration::from_secs(1);

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process owns the directory.
    #[error("the run in {} is owned by {holder}", shown(root))]
    Held {
        /// The run directory.
        root: PathBuf,
        /// The owner, as far as is known.
        holder: String,
    },
    /// Another process owns the run, maybe with another copy of the directory.
    #[error("run {run} is owned by {holder}")]
    RunHeld {
        /// The run.
        run: RunId,
        /// The owner, as far as is known.
        holder: String,
    },
    /// The directory is a copy that lacks records of the run.
    #[error("the directory is a copy of run {run} that lacks results: {lack}; {holder} has them")]
    Copy {
        /// The run.
        run: RunId,
        /// The missing records.
        lack: MissingRecords,
        /// The last owner of the run.
        holder: String,
    },
    /// The entry of the run is of a newer version.
    #[error("cannot read the server's entry for this run: it has a format unknown to this version")]
    Unreadable,
    /// The KV store failed.
    #[error("cannot take the run's lock on the server")]
    KvStore(#[source] QueueError),
    /// The lock file cannot be used.
    #[error("cannot lock {}", shown(path))]
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
    /// A user interrupted the wait for the owner.
    #[error("stopped while waiting for the owner of the run")]
    Interrupted,
}

impl LockError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

impl RunLock {
    /// Whether a process may own the run directory: on a file system that hosts share, an owner
    /// whose death is not proven counts. A process that is just taking the lock does not.
    ///
    /// # Errors
    /// If the lock files cannot be read.
    pub fn is_held(layout: &RunLayout) -> std::io::Result<bool> {
        directory::is_held(layout)
    }

    /// Takes the lock of an existing run directory, and of the run in the KV store. A stop ends the
    /// wait for another owner; one that comes later stays in `stops`.
    ///
    /// # Errors
    /// [`LockError`].
    pub async fn acquire(
        layout: &RunLayout,
        options: &LockOptions,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<(Self, LockGrant), LockError> {
        let wait_policy = options.wait_policy;
        let (directory, mut takeover) = acquire_directory(layout, wait_policy, stops).await?;
        let owner = directory.ownership().owner();
        if let Some(mirror) = &options.mirror {
            mirror.fetch(layout).await?;
        }
        let (survey_of, shared) = (layout.clone(), options.kv.clone());
        let survey = supervise::blocking(move || SegmentIndex::read(&survey_of)).await?;
        let known = survey.openings().next().map(|opened| opened.run);
        let mut taken = LockGrant {
            run: known,
            owner: owner.clone(),
            epoch: directory.epoch().max(survey.next_epoch()),
            durable_prefix: None,
            takeover: None,
            shared: shared.is_some(),
            fence: Fence::new(directory.ownership()),
        };
        let mut renewal = None;
        if let Some(KvLockOptions { kv_store, info }) = shared {
            let run = known.unwrap_or_else(|| RunId::from_bytes(rand::random()));
            let place = KvLockTarget {
                kv_store,
                run,
                read_directory: run_directory_reader(layout.clone(), options.mirror.clone()),
                info,
            };
            let lock = tokio::select! {
                taken = KvLock::acquire(place, owner, &wait_policy) => taken,
                () = wait_for_stop(stops) => Err(LockError::Interrupted),
            };
            let (lock, over) = lock?;
            (taken.run, taken.durable_prefix) = (Some(run), lock.durable_prefix());
            taken.epoch = taken.epoch.max(lock.epoch());
            takeover = over.or(takeover);
            renewal = Some(LockRenewal::start(lock, Arc::clone(directory.ownership())));
        }
        directory.set_epoch(taken.epoch);
        taken.takeover = takeover;
        Ok((Self { renewal, directory }, taken))
    }

    /// Takes only the lock of an existing run directory, whatever its journal holds. A stop ends
    /// the wait for another owner.
    ///
    /// # Errors
    /// [`LockError`].
    pub async fn acquire_directory_only(
        layout: &RunLayout,
        wait_policy: LockWaitPolicy,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<Self, LockError> {
        let (directory, _) = acquire_directory(layout, wait_policy, stops).await?;
        Ok(Self { renewal: None, directory })
    }

    /// The epoch that belongs to the lock of the directory.
    pub fn epoch(&self) -> u32 {
        self.directory.epoch()
    }

    /// The listener for durable state, if the run has a KV entry.
    pub fn durable_state_listener(&self) -> Option<DurableStateListener> {
        self.renewal.as_ref().map(|kept| DurableStateListener::Lock(kept.state.clone()))
    }

    /// Publishes the durable state.
    pub(super) fn publish_durable_state(&self, state: DurableState) {
        if let Some(kept) = &self.renewal {
            kept.state.send_replace(Some(state));
        }
    }

    /// The position up to which this owner's KV entry covers the reports: they may be purged. Stays
    /// empty when the run has no KV entry.
    pub fn confirmed(&self) -> watch::Receiver<Option<ReportPosition>> {
        match &self.renewal {
            Some(kept) => kept.confirmed.clone(),
            None => watch::channel(None).1,
        }
    }

    /// Completes when another process owns the run, and never otherwise.
    pub fn lost(&self) -> impl Future<Output = LockLostError> + Send + use<> {
        first_value(self.directory.ownership().lost())
    }

    /// Completes when the directory has taken no writes for too long, and never otherwise.
    fn unwritable(&self) -> impl Future<Output = RunError> + Send + use<> {
        let ownership = self.directory.ownership();
        let (reason, path) = (first_value(ownership.unwritable()), ownership.lock_info_path());
        async move {
            let source = std::io::Error::other(reason.await);
            RunError::File { action: "write", path, source }
        }
    }

    /// Lets the queue purge what is confirmed, and reports a lost lock or a directory that takes no writes
    /// to the engine, while the task lives.
    pub fn monitor(
        &self,
        run: RunId,
        dispatch: Arc<dyn Dispatch>,
        to: mpsc::Sender<EngineMessage>,
    ) -> Task<()> {
        let (lost, unwritable) = (self.lost(), self.unwritable());
        let mut confirmed = self.confirmed();
        supervise::spawn("lock monitor", async move {
            let forget = async {
                while confirmed.changed().await.is_ok() {
                    let position = *confirmed.borrow_and_update();
                    let Some(position) = position else { continue };
                    if let Err(error) = dispatch.mark_journaled(run, position).await {
                        // The next position covers this one.
                        tracing::debug!("cannot purge reports: {error}");
                    }
                }
                std::future::pending::<()>().await;
            };
            let error = tokio::select! {
                biased;
                lost = lost => RunError::LockLost(lost),
                error = unwritable => error,
                () = forget => return,
            };
            // An engine that ended does not need it.
            drop(to.send(EngineMessage::Failed(error)).await);
        })
    }

    /// A check whether this process still owns the run, for use before replacing a file of the run
    /// directory.
    pub fn fence(&self) -> Fence {
        Fence::new(self.directory.ownership())
    }

    /// Releases the run in the KV store: in this state, or in its previous one when the session
    /// changed nothing. The directory stays locked until this value is dropped. Returns whether the
    /// KV store has the entry: what it covers is not needed in the queue any more.
    ///
    /// # Errors
    /// [`LockLostError`] when another process owned it by then: the last actions of this session do
    /// not count.
    pub async fn release(&self, state: Option<RunState>) -> Result<bool, LockLostError> {
        let is_released = match &self.renewal {
            Some(kept) => kept.release(state).await,
            None => false,
        };
        self.fence().check()?;
        Ok(is_released)
    }
}

impl Fence {
    fn new(held: &Arc<DirectoryOwnership>) -> Self {
        Self { ownership: Arc::clone(held), checked: Instant::now() }
    }

    /// Checks whether another process owns the run by now.
    ///
    /// # Errors
    /// [`LockLostError`].
    pub fn check(&self) -> Result<(), LockLostError> {
        self.ownership.check()
    }

    /// The same, unless it was checked a moment ago: for frequent callers.
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
    wait_policy: LockWaitPolicy,
    stops: &mut mpsc::Receiver<StopLevel>,
) -> Result<(DirectoryLock, Option<Takeover>), LockError> {
    let of = layout.clone();
    let mut contender = supervise::blocking(move || Contender::new(&of)).await?;
    let mut is_told = false;
    loop {
        let (tried, attempt) = supervise::blocking(move || {
            let attempt = contender.attempt(&wait_policy);
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
        if !std::mem::replace(&mut is_told, true) {
            warn_of_wait(contender.holder(), &wait_policy);
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = wait_for_stop(stops) => return Err(LockError::Interrupted),
        }
    }
}

/// Tells that the run waits for its owner, which may be alive, and how long.
fn warn_of_wait(holder: &str, wait_policy: &LockWaitPolicy) {
    tracing::warn!("{}", wait_message(holder, wait_policy));
}

fn wait_message(holder: &str, wait_policy: &LockWaitPolicy) -> String {
    let seconds = wait_policy.stale.as_secs();
    let after_boot = takeover_policy::silence_after_boot(wait_policy).as_secs();
    format!(
        "waiting for the owner of the run, {holder}: the run is taken over when the owner has been \
         silent for {seconds} s, for {after_boot} s if this machine was started again since, or as \
         soon as it is proven dead"
    )
}

/// The first value of a channel; without one it never completes.
async fn first_value<T: Clone>(mut values: watch::Receiver<Option<T>>) -> T {
    let found = values.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
    match found {
        Some(value) => value,
        None => std::future::pending().await,
    }
}

/// Completes when a user requests a stop.
async fn wait_for_stop(stops: &mut mpsc::Receiver<StopLevel>) {
    if stops.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Reads the state of a run directory on which the KV lock depends.
fn run_directory_reader(
    layout: RunLayout,
    mirror: Option<Arc<dyn JournalMirror>>,
) -> RunDirectoryReader {
    Arc::new(move |wanted| {
        let (layout, mirror) = (layout.clone(), mirror.clone());
        Box::pin(async move {
            if let Some(mirror) = mirror {
                mirror.fetch(&layout).await?;
            }
            supervise::blocking(move || read_run_directory(&layout, wanted)).await
        })
    })
}

fn read_run_directory(
    layout: &RunLayout,
    wanted: Option<JournalPrefix>,
) -> Result<RunDirectoryState, JournalError> {
    let survey = SegmentIndex::read(layout)?;
    let mut view = RunDirectoryState {
        is_local: !is_shared(layout.root()),
        newest: survey.next_epoch() - 1,
        has_kv_lock: survey.openings().any(|opened| opened.holder.is_some()),
        holder: survey.openings().next_back().and_then(|opened| opened.holder),
        ..RunDirectoryState::default()
    };
    match wanted {
        Some(head) => view.missing = survey.find_missing_records(head)?,
        None => view.durable_prefix = survey.durable_prefix()?,
    }
    if let Some(head) = view.durable_prefix {
        // Its writer may have died before it was synced.
        journal::sync_segment(layout, head.epoch)?;
    }
    Ok(view)
}

/// Name of this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
