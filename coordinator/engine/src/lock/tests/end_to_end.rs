//! Tests of the whole lock, on real directories and journals.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::event::TakeoverReason;
use rollout_protocol::id::{ExecId, RunId};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::version::RUN_FORMAT;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::{Incarnation, ReportPosition};
use rollout_protocol::wire::report::ReportKind;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::{
    KvLockOptions, LockError, LockGrant, LockOptions, LockWaitPolicy, RunEntryInfo, RunLock,
};
use super::kv_lock::MemoryKvStore;
use crate::DurableState;
use crate::core::{JournalRecord, SessionStart};
use crate::journal::{self, JournalWriter, RunLayout};
use crate::manifest::RunState;

const DEADLINE: Duration = Duration::from_secs(120);

/// A session without a core.
struct LockedSession {
    lock: RunLock,
    taken: LockGrant,
    writer: JournalWriter,
}

fn lock_options(kv_store: &Arc<MemoryKvStore>, wait_policy: LockWaitPolicy) -> LockOptions {
    let shared = KvLockOptions { kv_store: kv_store.clone(), info: RunEntryInfo::default() };
    LockOptions { wait_policy, kv: Some(shared), mirror: None }
}

fn no_wait() -> LockWaitPolicy {
    LockWaitPolicy { wait: false, ..LockWaitPolicy::default() }
}

fn force() -> LockWaitPolicy {
    LockWaitPolicy { force: true, ..LockWaitPolicy::default() }
}

async fn acquire(root: &Path, taking: &LockOptions) -> Result<(RunLock, LockGrant), LockError> {
    let (_nobody, mut stops) = mpsc::channel::<StopLevel>(1);
    let layout = RunLayout::new(root);
    let acquired = RunLock::acquire(&layout, taking, &mut stops);
    timeout(DEADLINE, acquired).await.expect("decided")
}

async fn begin(root: &Path, taking: &LockOptions) -> Result<LockedSession, LockError> {
    let (lock, taken) = acquire(root, taking).await?;
    let layout = RunLayout::new(root);
    let replay = journal::replay(&layout, &[], |_, _| {})?;
    let opened = SessionStart {
        format: RUN_FORMAT,
        // Without a KV store nothing else names it.
        run: taken.run.unwrap_or(RunId::from_bytes([7; 16])),
        epoch: taken.epoch,
        plan: Digest::sha256(b"plan"),
        retry: RetryPolicy::default(),
        version: "test".to_owned(),
        owner: "test".to_owned(),
        former: replay.map(|replay| replay.head),
        holder: Some(taken.owner.id),
        takeover: taken.takeover.clone(),
        pool: None,
        replaces: Vec::new(),
        reopened: Vec::new(),
        reopened_within: Vec::new(),
    };
    let writer = JournalWriter::create(&layout, Timestamp::UNIX_EPOCH, opened)?;
    Ok(LockedSession { lock, taken, writer })
}

impl LockedSession {
    /// Journals a record, and waits until the KV entry confirms it.
    async fn append_confirmed(&mut self, sequence: u64) {
        self.writer
            .record(Timestamp::UNIX_EPOCH, &JournalRecord::Stopping { level: StopLevel::Drain });
        self.writer.submit();
        self.writer.durable().await.expect("written");
        let anchor = ExecId::from_bytes([0; 16]);
        let position = Some(ReportPosition {
            incarnation: Incarnation(1),
            sequence,
            anchor,
            said: ReportKind::Result,
            number: 0,
        });
        let prefix = self.writer.durable_prefix();
        self.lock.publish_durable_state(DurableState {
            prefix,
            position,
            total: 9,
            settled: 1,
            closed: false,
        });
        let mut confirmed = self.lock.confirmed();
        let there = confirmed.wait_for(|confirmed| *confirmed == position);
        timeout(DEADLINE, there).await.expect("confirmed").expect("it is kept");
    }
}

fn copy(from: &Path, to: &Path) {
    let (from, to) = (RunLayout::new(from), RunLayout::new(to));
    std::fs::create_dir_all(to.journal()).expect("a directory");
    for epoch in 1..9 {
        if from.segment(epoch).exists() {
            std::fs::copy(from.segment(epoch), to.segment(epoch)).expect("copied");
        }
    }
    drop(std::fs::copy(from.lock_info(), to.lock_info()));
}

#[tokio::test]
async fn lock_is_refused_to_stale_copy_of_run_dir_even_by_force() {
    let directories = tempfile::tempdir().expect("a directory");
    let (original, stale, whole) =
        (directories.path().join("a"), directories.path().join("b"), directories.path().join("c"));
    std::fs::create_dir(&original).expect("a directory");
    let kv_store = Arc::new(MemoryKvStore::default());
    let mut first = begin(&original, &lock_options(&kv_store, no_wait())).await.expect("new");
    first.append_confirmed(1).await;
    copy(&original, &stale);
    first.append_confirmed(2).await;
    copy(&original, &whole);
    let key = first.taken.run.expect("it has an id").to_string();
    assert_eq!(kv_store.entry(&key).expect("an entry").head, Some(first.writer.durable_prefix()));

    let held =
        begin(&whole, &lock_options(&kv_store, no_wait())).await.err().expect("its owner lives");
    assert!(matches!(held, LockError::RunHeld { .. }), "{held}");
    for wait_policy in [no_wait(), force()] {
        let copied =
            begin(&stale, &lock_options(&kv_store, wait_policy)).await.err().expect("it is stale");
        let text = copied.to_string();
        assert!(matches!(copied, LockError::Copy { .. }), "{text}");
        assert!(text.contains("the last 1 are missing"), "{text}");
    }

    first.lock.release(Some(RunState::Stopped)).await.expect("still ours");
    drop(first);
    let second = begin(&whole, &lock_options(&kv_store, no_wait())).await.expect("let go");
    assert_eq!((second.taken.epoch, second.taken.takeover), (2, None));
    second.lock.release(None).await.expect("still ours");
    assert_eq!(kv_store.entry(&key).expect("in the KV store").state, RunState::Stopped);
    // The second one journalled nothing that was published.
    assert!(acquire(&original, &lock_options(&kv_store, no_wait())).await.is_ok());
}

#[tokio::test]
async fn lock_taken_by_force_invalidates_late_journal_records() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    let kv_store = Arc::new(MemoryKvStore::default());
    let mut first = begin(root, &lock_options(&kv_store, no_wait())).await.expect("new");
    first.append_confirmed(1).await;
    let refused =
        begin(root, &lock_options(&kv_store, no_wait())).await.err().expect("its owner lives");
    assert!(matches!(refused, LockError::Held { .. }), "{refused}");

    let second = begin(root, &lock_options(&kv_store, force())).await.expect("by force");
    let takeover = second.taken.takeover.clone().expect("from the first");
    assert_eq!((takeover.reason, second.taken.epoch), (TakeoverReason::Forced, 2));
    first.writer.record(Timestamp::UNIX_EPOCH, &JournalRecord::Stopping { level: StopLevel::Kill });
    first.writer.submit();
    first.writer.durable().await.expect("written, to no effect");
    timeout(DEADLINE, first.lock.lost()).await.expect("it finds out");
    assert!(first.lock.release(Some(RunState::Completed)).await.is_err());
    drop(first);
    second.lock.release(Some(RunState::Stopped)).await.expect("still the second's");

    let mut kills = 0;
    let mut takeovers = Vec::new();
    journal::replay(&RunLayout::new(root), &[], |_, record| match record {
        JournalRecord::Stopping { level: StopLevel::Kill } => kills += 1,
        JournalRecord::Opened(opened) => takeovers.extend(opened.takeover),
        _ => {}
    })
    .expect("whole");
    assert_eq!((kills, takeovers), (0, vec![takeover]));
    let key = second.taken.run.expect("it has an id").to_string();
    let entry = kv_store.entry(&key).expect("in the KV store");
    assert_eq!((entry.epoch, entry.state), (2, RunState::Stopped));
}

#[tokio::test]
async fn lock_owner_resumed_after_successor_ended_detects_loss() {
    let directory = tempfile::tempdir().expect("a directory");
    let alone = |wait_policy| LockOptions { wait_policy, ..LockOptions::default() };
    let first = begin(directory.path(), &alone(no_wait())).await.expect("new");
    first.lock.fence().check().expect("no other process came");
    let second = begin(directory.path(), &alone(force())).await.expect("by force");
    drop(second);
    assert!(!RunLayout::new(directory.path()).lock_info().exists(), "it removed its lock info");
    assert!(first.lock.fence().check().is_err());
}
