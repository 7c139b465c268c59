//! The lock of a run across hosts: a KV entry, changed by compare-and-set only.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rollout_protocol::Timestamp;
use rollout_protocol::event::TakeoverReason;
use rollout_protocol::id::{OwnerId, RunId};
use rollout_protocol::wire::position::ReportPosition;
use rollout_queue::traits::{KvEntry, KvStore, QueueError};
use tokio::time::{Instant, timeout};

use super::kv_entry::RunEntry;
use super::owner::LockOwner;
use super::takeover_policy::{
    ChangeWatch, OwnerStatus, TakeoverDecision, WatchObservation, decide_takeover,
};
use super::{LockError, LockLostError, LockWaitPolicy, RunEntryInfo, warn_of_wait};
use crate::DurableState;
use crate::core::Takeover;
use crate::journal::{JournalError, JournalPrefix, MissingRecords};
use crate::manifest::RunState;

/// Time between two polls of another owner's entry.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Timeout of a read or a write. After it, the outcome is unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes in one renewal: another revision of this owner's entry is a write whose answer was lost.
const RENEW_ATTEMPTS: u32 = 3;

/// State of a run directory.
#[derive(Debug, Clone, Default)]
pub(super) struct RunDirectoryState {
    /// Whether no other host can access it.
    pub(super) is_local: bool,
    /// Its newest epoch.
    pub(super) newest: u32,
    /// Durable prefix of its journal.
    pub(super) durable_prefix: Option<JournalPrefix>,
    /// Whether a session ever held a lock in a KV store.
    pub(super) has_kv_lock: bool,
    /// The last owner of such a lock.
    pub(super) holder: Option<OwnerId>,
    /// Records of the given prefix that it lacks.
    pub(super) missing: Option<MissingRecords>,
}

/// Reads the state of the run directory, and compares it with a prefix if one is given.
pub(super) type RunDirectoryReader =
    Arc<dyn Fn(Option<JournalPrefix>) -> RunDirectoryRead + Send + Sync>;

/// A read in progress.
pub(super) type RunDirectoryRead = BoxFuture<'static, Result<RunDirectoryState, JournalError>>;

/// The last read state: a journal may be long, and while a watched owner makes no progress nothing
/// in it changes.
#[derive(Debug, Default)]
pub(super) struct RunDirectoryCache(Option<(Option<JournalPrefix>, RunDirectoryState)>);

impl RunDirectoryCache {
    async fn read(
        &mut self,
        look: &RunDirectoryReader,
        head: Option<JournalPrefix>,
    ) -> Result<RunDirectoryState, JournalError> {
        if let Some((of, view)) = &self.0
            && *of == head
        {
            return Ok(view.clone());
        }
        let view = look(head).await?;
        self.0 = Some((head, view.clone()));
        Ok(view)
    }
}

/// Decision about an entry that is missing or belongs to another owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KvLockDecision {
    /// Write this process's entry; a takeover when there is a reason.
    Take(Option<TakeoverReason>),
    /// The entry is this process's: the answer to a write was lost.
    Own,
    /// Keep watching.
    Wait,
    /// Leave the run to its owner.
    Held,
    /// The directory is a copy that lacks records.
    Incomplete(MissingRecords),
}

/// The lock in a KV store.
#[derive(Debug)]
pub(super) struct KvLock {
    target: KvLockTarget,
    entry: RunEntry,
    /// The state to restore when this session changed nothing, and whether the owner of then left
    /// work to the next one.
    previous: (RunState, bool),
    /// The revision of this owner's entry; unknown after a write without an answer.
    revision: Option<u64>,
}

/// The KV key of a run, and the directory whose owner wants it.
#[derive(Clone)]
pub(super) struct KvLockTarget {
    pub(super) kv_store: Arc<dyn KvStore>,
    pub(super) run: RunId,
    pub(super) read_directory: RunDirectoryReader,
    pub(super) info: RunEntryInfo,
}

/// Why a renewal failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RenewError {
    /// Another process owns the run.
    #[error(transparent)]
    Lost(#[from] LockLostError),
    /// The KV store does not answer: this process still owns the run as far as is known.
    #[error(transparent)]
    Unreachable(#[from] QueueError),
}

/// Decides what an entry, or its absence, means for a process that wants the run.
pub(super) fn decide_kv_lock(
    entry: Option<&RunEntry>,
    me: &LockOwner,
    watched: WatchObservation,
    directory: &RunDirectoryState,
    policy: &LockWaitPolicy,
) -> KvLockDecision {
    let verdict = match entry {
        Some(entry) if entry.owner.id == me.id => return KvLockDecision::Own,
        Some(_) if directory.missing.is_some() => {
            return directory.missing.map_or(KvLockDecision::Wait, KvLockDecision::Incomplete);
        }
        Some(entry) if entry.state != RunState::Running => {
            decide_takeover(OwnerStatus::Released, watched, policy)
        }
        Some(entry) if me.proves_dead(&entry.owner) => {
            decide_takeover(OwnerStatus::Dead, watched, policy)
        }
        Some(entry) if directory.is_local && me.is_of_earlier_boot(&entry.owner) => {
            decide_takeover(OwnerStatus::EarlierBoot, watched, policy)
        }
        Some(_) => decide_takeover(OwnerStatus::Unproven, watched, policy),
        // No other process can know of it.
        None if !directory.has_kv_lock => TakeoverDecision::Take(None),
        // The KV store lost the entry; a living owner writes it again.
        None => decide_takeover(
            OwnerStatus::Unproven,
            WatchObservation { changed: false, ..watched },
            policy,
        ),
    };
    match verdict {
        TakeoverDecision::Take(reason) => KvLockDecision::Take(reason),
        TakeoverDecision::Wait => KvLockDecision::Wait,
        TakeoverDecision::Held => KvLockDecision::Held,
    }
}

impl KvLock {
    /// Takes the lock, and waits as long as its owner may be alive. Safe to drop: a written entry
    /// names a process that released it or is dead.
    pub(super) async fn acquire(
        target: KvLockTarget,
        me: LockOwner,
        policy: &LockWaitPolicy,
    ) -> Result<(Self, Option<Takeover>), LockError> {
        let started = Instant::now();
        let mut watch = ChangeWatch::new();
        let mut looked = RunDirectoryCache::default();
        let mut is_told = false;
        loop {
            match target.read().await {
                Ok(found) => {
                    let revision = found.as_ref().map(|entry| entry.revision);
                    let watched = watch.record_value(started.elapsed(), revision);
                    let holder = describe_holder(found.as_ref());
                    if let Some(taken) =
                        target.attempt(found, &me, watched, policy, &mut looked).await?
                    {
                        return Ok(taken);
                    }
                    if !std::mem::replace(&mut is_told, true) {
                        warn_of_wait(&holder, policy);
                    }
                }
                Err(error @ QueueError::Denied { .. }) => return Err(LockError::KvStore(error)),
                Err(error) => {
                    tracing::warn!("cannot query the owner of the run: {error}");
                    watch.record_failure();
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// The epoch that belongs to the lock.
    pub(super) fn epoch(&self) -> u32 {
        self.entry.epoch
    }

    /// The durable prefix of the journal, as recorded in the KV entry.
    pub(super) fn durable_prefix(&self) -> Option<JournalPrefix> {
        self.entry.head
    }

    /// Renews the entry with the owner's progress. Returns the position up to which reports may be
    /// purged from now on.
    pub(super) async fn renew(
        &mut self,
        state: Option<&DurableState>,
    ) -> Result<Option<ReportPosition>, RenewError> {
        if let Some(standing) = state {
            self.entry.head = Some(standing.prefix);
            self.entry.position = standing.position.or(self.entry.position);
            (self.entry.total, self.entry.settled) = (standing.total, standing.settled);
        }
        self.entry.updated_at = Timestamp::now();
        for _ in 0..RENEW_ATTEMPTS {
            let revision = match self.revision.take() {
                Some(revision) => Some(revision),
                None => self.revision_to_replace(state.is_some()).await?,
            };
            self.revision = self.target.write(self.entry.to_bytes(), revision).await?;
            if self.revision.is_some() {
                return Ok(self.entry.position);
            }
        }
        Err(unreachable("other processes write the entry at the same time").into())
    }

    /// Releases the run in a state, or in its previous one when the session changed nothing.
    pub(super) async fn release(
        &mut self,
        standing: Option<&DurableState>,
        state: Option<RunState>,
    ) -> Result<Option<ReportPosition>, RenewError> {
        match state {
            Some(state) => self.entry.state = state,
            None => (self.entry.state, self.entry.hands_over) = self.previous,
        }
        self.renew(standing).await
    }

    /// The revision to replace after a write that failed or was not answered; `None` to create the
    /// entry.
    async fn revision_to_replace(&self, has_record: bool) -> Result<Option<u64>, RenewError> {
        let Some(found) = self.target.read().await? else {
            // The directory names the owner that took it over meanwhile.
            let directory =
                (self.target.read_directory)(None).await.map_err(|e| unreachable(e.to_string()))?;
            if directory.holder == Some(self.entry.owner.id) {
                return Ok(None);
            }
            return if has_record {
                Err(LockLostError::TakenOver {
                    by: "the next owner of the run directory".to_owned(),
                }
                .into())
            } else {
                Err(unreachable("the entry was lost before the session began").into())
            };
        };
        match RunEntry::parse(&found.value) {
            Some(entry) if (entry.owner.id, entry.epoch) == (self.entry.owner.id, self.epoch()) => {
                Ok(Some(found.revision))
            }
            // The server lost everything, and a previous owner woke before this one could write the
            // entry again: an owner that takes a run over has a higher epoch than all before it.
            Some(entry) if entry.epoch < self.epoch() => Ok(Some(found.revision)),
            Some(entry) => Err(LockLostError::TakenOver { by: entry.owner.describe() }.into()),
            None => {
                Err(LockLostError::TakenOver { by: "another version of rollout".to_owned() }.into())
            }
        }
    }
}

impl KvLockTarget {
    /// Acts on an entry; `None` when it must be watched further.
    pub(super) async fn attempt(
        &self,
        found: Option<KvEntry>,
        me: &LockOwner,
        watched: WatchObservation,
        policy: &LockWaitPolicy,
        looked: &mut RunDirectoryCache,
    ) -> Result<Option<(KvLock, Option<Takeover>)>, LockError> {
        let revision = found.as_ref().map(|found| found.revision);
        let entry = match found {
            Some(found) => Some(RunEntry::parse(&found.value).ok_or(LockError::Unreadable)?),
            None => None,
        };
        let view =
            looked.read(&self.read_directory, entry.as_ref().and_then(|entry| entry.head)).await?;
        let reason = match decide_kv_lock(entry.as_ref(), me, watched, &view, policy) {
            KvLockDecision::Take(reason) => reason,
            KvLockDecision::Wait => return Ok(None),
            KvLockDecision::Own => {
                let entry = entry.expect("the entry of this process");
                let previous = (RunState::Running, entry.hands_over);
                return Ok(Some((self.new_lock(entry, previous, revision), None)));
            }
            KvLockDecision::Held => {
                let holder = entry.map(|entry| entry.owner.describe());
                let holder = holder.unwrap_or_else(|| "a process that may come back".to_owned());
                return Err(LockError::RunHeld { run: self.run, holder });
            }
            KvLockDecision::Incomplete(lack) => {
                let owner = entry.expect("an entry with a missing prefix").owner;
                let holder = owner.describe();
                return Err(LockError::Copy { run: self.run, lack, holder });
            }
        };
        let former = entry.as_ref().map(|entry| entry.owner.describe());
        let takeover = reason.map(|reason| Takeover {
            former: former.unwrap_or_else(|| "an owner that the server no longer knows".to_owned()),
            reason,
        });
        let previous = (entry.as_ref())
            .map_or((RunState::Stopped, false), |entry| (entry.state, entry.hands_over));
        let own = self.new_entry(entry.as_ref(), me, &view);
        match self.write(own.to_bytes(), revision).await {
            Ok(Some(revision)) => {
                Ok(Some((self.new_lock(own, previous, Some(revision)), takeover)))
            }
            // Another process was faster, or the outcome is unknown: the next poll shows it.
            Ok(None) | Err(_) => Ok(None),
        }
    }

    fn new_lock(
        &self,
        entry: RunEntry,
        (former, handed_over): (RunState, bool),
        revision: Option<u64>,
    ) -> KvLock {
        // A previous owner that died was running, and is not any more.
        let state = if former == RunState::Running { RunState::Stopped } else { former };
        KvLock { target: self.clone(), entry, previous: (state, handed_over), revision }
    }

    /// This process's entry, which follows the previous owner's.
    fn new_entry(
        &self,
        previous: Option<&RunEntry>,
        me: &LockOwner,
        directory: &RunDirectoryState,
    ) -> RunEntry {
        let head = previous.and_then(|former| former.head).or(directory.durable_prefix);
        let taken = previous.map_or(0, |former| former.epoch);
        let newest = directory.newest.max(taken).max(head.map_or(0, |head| head.epoch));
        let now = Timestamp::now();
        let RunEntryInfo { job, pool, store, hands_over } = self.info.clone();
        RunEntry {
            format: RunEntry::FORMAT,
            owner: me.clone(),
            epoch: newest.saturating_add(1),
            state: RunState::Running,
            head,
            position: previous.and_then(|former| former.position),
            job,
            pool,
            store,
            hands_over,
            total: previous.map_or(0, |former| former.total),
            settled: previous.map_or(0, |former| former.settled),
            started_at: now,
            updated_at: now,
        }
    }

    fn key(&self) -> String {
        self.run.to_string()
    }

    pub(super) async fn read(&self) -> Result<Option<KvEntry>, QueueError> {
        with_timeout(self.kv_store.read(&self.key())).await
    }

    async fn write(
        &self,
        value: bytes::Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>, QueueError> {
        with_timeout(self.kv_store.write(&self.key(), value, revision)).await
    }
}

impl std::fmt::Debug for KvLockTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("run", &self.run).field("facts", &self.info).finish()
    }
}

/// The owner that an entry names, for people.
fn describe_holder(found: Option<&KvEntry>) -> String {
    let entry = found.and_then(|found| RunEntry::parse(&found.value));
    entry.map_or_else(|| "which the server no longer knows".to_owned(), |e| e.owner.describe())
}

async fn with_timeout<T>(
    asked: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    match timeout(REQUEST_TIMEOUT, asked).await {
        Ok(answered) => answered,
        Err(_) => Err(unreachable(format!("no answer for {} s", REQUEST_TIMEOUT.as_secs()))),
    }
}

fn unreachable(reason: impl Into<String>) -> QueueError {
    QueueError::Unreachable { reason: reason.into() }
}
