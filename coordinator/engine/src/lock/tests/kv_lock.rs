//! Decisions about an entry, and a KV store in memory whose answers get lost.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_protocol::Timestamp;
use rollout_protocol::event::TakeoverReason;
use rollout_protocol::id::OwnerId;
use rollout_queue::traits::{KvEntry, KvStore, ListedKvEntry, QueueError};

use super::super::LockWaitPolicy;
use super::super::kv_entry::RunEntry;
use super::super::kv_lock::{KvLockDecision, RunDirectoryState, decide_kv_lock};
use super::super::owner::LockOwner;
use super::super::takeover_policy::WatchObservation;
use super::{dead_owner, remote_owner};
use crate::journal::{JournalPrefix, MissingRecords};
use crate::manifest::RunState;

/// A host whose machine is known.
const MACHINE: &str = "host/0123456789abcdef";

/// Fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KvStoreFault {
    /// It does not arrive.
    Lost,
    /// It is executed, and the answer does not arrive.
    Unanswered,
}

/// A KV store in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryKvStore {
    state: Mutex<MemoryKvState>,
}

#[derive(Debug, Default)]
struct MemoryKvState {
    entries: HashMap<String, KvEntry>,
    revision: u64,
    fault: Option<KvStoreFault>,
}

impl MemoryKvStore {
    /// Sets the fault of the next request.
    pub(super) fn fail(&self, fault: Option<KvStoreFault>) {
        self.with(|state| state.fault = fault);
    }

    pub(super) fn wipe(&self) {
        self.with(|state| state.entries.clear());
    }

    pub(super) fn entry(&self, key: &str) -> Option<RunEntry> {
        self.with(|state| state.entries.get(key).and_then(|entry| RunEntry::parse(&entry.value)))
    }

    fn with<T>(&self, change: impl FnOnce(&mut MemoryKvState) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One atomic request, after other tasks ran first.
    async fn request<T>(&self, act: impl FnOnce(&mut MemoryKvState) -> T) -> Result<T, QueueError> {
        yield_once().await;
        self.with(|state| {
            let unreachable = || QueueError::Unreachable { reason: "as the test wants".into() };
            match state.fault.take() {
                Some(KvStoreFault::Lost) => Err(unreachable()),
                Some(KvStoreFault::Unanswered) => {
                    act(state);
                    Err(unreachable())
                }
                None => Ok(act(state)),
            }
        })
    }
}

/// Yields to other tasks, once.
pub(super) async fn yield_once() {
    let mut paused = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

#[async_trait]
impl KvStore for MemoryKvStore {
    async fn read(&self, key: &str) -> Result<Option<KvEntry>, QueueError> {
        self.request(|state| state.entries.get(key).cloned()).await
    }

    async fn write(
        &self,
        key: &str,
        value: Bytes,
        revision: Option<u64>,
    ) -> Result<Option<u64>, QueueError> {
        self.request(|state| {
            if state.entries.get(key).map(|entry| entry.revision) != revision {
                return None;
            }
            state.revision += 1;
            let revision = state.revision;
            state.entries.insert(key.to_owned(), KvEntry { revision, value });
            Some(revision)
        })
        .await
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<bool, QueueError> {
        self.request(|state| {
            let there = state.entries.get(key).is_some_and(|entry| entry.revision == revision);
            there && state.entries.remove(key).is_some()
        })
        .await
    }

    async fn entries(&self) -> Result<Vec<ListedKvEntry>, QueueError> {
        self.request(|state| {
            let listed = state.entries.iter().map(|(key, entry)| ListedKvEntry {
                key: key.clone(),
                entry: entry.clone(),
                age: Duration::ZERO,
            });
            listed.collect()
        })
        .await
    }
}

const STALE: Duration = Duration::from_secs(30);
const WAIT: LockWaitPolicy = LockWaitPolicy { stale: STALE, force: false, wait: true, hung: true };
const NO_WAIT: LockWaitPolicy = LockWaitPolicy { wait: false, ..WAIT };
const FORCE: LockWaitPolicy = LockWaitPolicy { force: true, ..WAIT };

fn entry(owner: &LockOwner, state: RunState) -> RunEntry {
    let at = Timestamp::UNIX_EPOCH;
    RunEntry {
        format: 1,
        owner: owner.clone(),
        epoch: 3,
        state,
        head: Some(prefix()),
        position: None,
        job: "job".to_owned(),
        pool: "default".to_owned(),
        store: "store".to_owned(),
        hands_over: false,
        total: 10,
        settled: 4,
        started_at: at,
        updated_at: at,
    }
}

fn prefix() -> JournalPrefix {
    let chain = "00000000000000ff".parse().expect("hexadecimal");
    JournalPrefix { epoch: 3, records: 5, bytes: 700, chain }
}

#[test]
fn lock_entry_of_newer_format_is_refused() {
    let entry = entry(&remote_owner(1), RunState::Running);
    assert_eq!(RunEntry::parse(&entry.to_bytes()), Some(entry.clone()));
    assert_eq!(RunEntry::parse(&RunEntry { format: 2, ..entry }.to_bytes()), None);
}

#[test]
fn lock_entry_of_run_uses_pool_until_its_work_is_gone() {
    let owner = remote_owner(1);
    let of = |state, hands_over| RunEntry { hands_over, ..entry(&owner, state) };
    assert!(of(RunState::Running, false).uses_pool());
    assert!(of(RunState::Stopped, true).uses_pool(), "the next owner takes its executions");
    assert!(!of(RunState::Stopped, false).uses_pool());
    assert!(!of(RunState::Completed, true).uses_pool());
    let earlier = of(RunState::Stopped, false).to_bytes();
    assert!(!String::from_utf8_lossy(&earlier).contains("hands_over"), "as earlier versions write");
    assert_eq!(RunEntry::parse(&earlier), Some(of(RunState::Stopped, false)));
}

#[test]
fn lock_entry_decides_takeover_wait_or_refusal() {
    use RunState::{Completed, Running, Stopped};
    use TakeoverReason::{Dead, Forced, Silent};
    let me = LockOwner::current(&crate::journal::RunLayout::new("/nowhere"));
    let (alive, gone) = (remote_owner(1), dead_owner());
    let seconds = |unchanged, changed| WatchObservation {
        unchanged: Duration::from_secs(unchanged),
        changed,
    };
    let (fresh, beating, silent) = (seconds(0, false), seconds(0, true), seconds(30, false));
    let whole = RunDirectoryState { has_kv_lock: true, ..RunDirectoryState::default() };
    let lack = MissingRecords { wanted: prefix(), found: None };
    let stale = RunDirectoryState { missing: Some(lack), ..whole };
    let take = |reason: TakeoverReason| KvLockDecision::Take(Some(reason));
    // It ran on this machine before the last boot, or on a copy of the machine.
    let (mut here, mut before) = (me.clone(), me.clone());
    (here.process.host, before.process.host) = (MACHINE.to_owned(), MACHINE.to_owned());
    (here.process.boot_id, before.process.boot_id) = ("now".to_owned(), "earlier".to_owned());
    (here.file, before.file) = (remote_owner(1).file, remote_owner(1).file);
    before.id = OwnerId::from_bytes([7; 16]);
    let local = RunDirectoryState { is_local: true, ..whole };
    let rebooted = seconds(10, false);
    for (watched, view, wait_policy, expected) in [
        (fresh, &local, WAIT, KvLockDecision::Wait),
        (rebooted, &local, WAIT, take(Dead)),
        (beating, &local, WAIT, KvLockDecision::Held),
        (rebooted, &local, NO_WAIT, KvLockDecision::Held),
        (rebooted, &whole, WAIT, KvLockDecision::Wait),
    ] {
        let entry = entry(&before, Running);
        let decided = decide_kv_lock(Some(&entry), &here, watched, view, &wait_policy);
        assert_eq!(decided, expected, "{watched:?} {view:?} {wait_policy:?}");
    }
    for (owner, state, watched, view, wait_policy, expected) in [
        (&alive, Running, fresh, &whole, WAIT, KvLockDecision::Wait),
        (&alive, Running, fresh, &whole, NO_WAIT, KvLockDecision::Held),
        (&alive, Running, fresh, &whole, FORCE, take(Forced)),
        (&alive, Running, beating, &whole, WAIT, KvLockDecision::Held),
        (&alive, Running, silent, &whole, WAIT, take(Silent)),
        (&alive, Stopped, fresh, &whole, NO_WAIT, KvLockDecision::Take(None)),
        (&alive, Completed, beating, &whole, NO_WAIT, KvLockDecision::Take(None)),
        (&gone, Running, fresh, &whole, NO_WAIT, take(Dead)),
        (&me, Running, fresh, &whole, NO_WAIT, KvLockDecision::Own),
        // A copy never wins, whatever the state of the owner.
        (&alive, Running, silent, &stale, WAIT, KvLockDecision::Incomplete(lack)),
        (&alive, Running, fresh, &stale, FORCE, KvLockDecision::Incomplete(lack)),
        (&alive, Completed, fresh, &stale, WAIT, KvLockDecision::Incomplete(lack)),
        (&gone, Running, fresh, &stale, WAIT, KvLockDecision::Incomplete(lack)),
    ] {
        let entry = entry(owner, state);
        let decided = decide_kv_lock(Some(&entry), &me, watched, view, &wait_policy);
        assert_eq!(decided, expected, "{owner:?} {state:?} {watched:?} {wait_policy:?}");
    }
    let unshared = RunDirectoryState::default();
    for (watched, view, wait_policy, expected) in [
        (fresh, &unshared, NO_WAIT, KvLockDecision::Take(None)),
        (fresh, &whole, WAIT, KvLockDecision::Wait),
        (fresh, &whole, NO_WAIT, KvLockDecision::Held),
        // It was there a moment ago: its owner may be about to write it again.
        (beating, &whole, WAIT, KvLockDecision::Wait),
        (silent, &whole, WAIT, take(Silent)),
        (fresh, &whole, FORCE, take(Forced)),
    ] {
        let decided = decide_kv_lock(None, &me, watched, view, &wait_policy);
        assert_eq!(decided, expected, "{watched:?} {view:?} {wait_policy:?}");
    }
}
