use rollout_engine::core::HexDigest;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorType};
use rollout_protocol::id::TryId;
use rollout_protocol::item_name::ItemName;
use rollout_protocol::phase::Phase;

use super::*;
use crate::results::testing;

fn trial() -> rollout_protocol::spec::trial::TrialName {
    testing::trial("agent", "task", 1)
}

/// The execution of [`testing::phase`].
const EXEC: ExecId = ExecId::from_bytes([9; 16]);

fn lost(exec: ExecId) -> RunEvent {
    let (item, name) = (trial().item(), ItemName::from(trial()));
    testing::event(3, EventKind::TrialLost { item, name, try_id: TryId::first(1), exec })
}

fn state_after(events: &[RunEvent]) -> Result<&'static str, ExecutorError> {
    let states = TrialStates::default();
    states.start(trial().item()).expect("it runs");
    states.apply(events);
    states.status(&trial().item()).map(|status| status.as_str())
}

#[test]
fn trial_state_follows_events() {
    let phase = testing::phase(trial(), Phase::AgentExecution);
    let error = testing::error(ErrorType::InternalError, ErrorClass::Infrastructure, "a cause");
    let retry = testing::event(
        3,
        EventKind::TrialRetry {
            item: trial().item(),
            name: trial().into(),
            try_id: TryId::first(1),
            exec: EXEC,
            error,
            wait_ms: 1500,
        },
    );
    let settled = testing::settled(0, testing::settlement(trial(), 1, testing::passed(1.0)));
    let other = ExecId::from_bytes([8; 16]);
    for (events, expected) in [
        (vec![], "queued"),
        (vec![phase.clone()], "running"),
        (vec![phase.clone(), lost(EXEC)], "queued"),
        (vec![phase.clone(), lost(other)], "running"),
        (vec![phase.clone(), retry.clone()], "waiting"),
        (vec![phase.clone(), settled.clone()], "settled"),
        (vec![phase.clone(), settled, lost(EXEC)], "settled"),
    ] {
        assert_eq!(state_after(&events).expect("started"), expected, "{events:?}");
    }
    let states = TrialStates::default();
    states.apply(&[phase, retry]);
    let TrialStatus::Waiting { next_try_at, .. } =
        states.status(&trial().item()).expect("known from events")
    else {
        panic!("it waits");
    };
    assert_eq!(next_try_at, testing::at(3) + Duration::from_millis(1500));
}

#[test]
fn trial_that_was_not_started_is_unknown() {
    let states = TrialStates::default();
    let unknown = states.status(&trial().item());
    assert!(matches!(unknown, Err(ExecutorError::UnknownTrial { .. })), "{unknown:?}");
}

#[tokio::test]
async fn waiting_call_ends_with_settlement_or_run() {
    let states = Arc::new(TrialStates::default());
    let item = trial().item();
    states.start(item).expect("it runs");
    let mut waiting = Box::pin(states.wait_progress(&item, 0));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    states.apply(&[testing::settled(0, testing::settlement(trial(), 1, testing::passed(1.0)))]);
    let settlement = match waiting.await.expect("settled") {
        TrialProgress::Settled(settlement) => settlement,
        other => panic!("{other:?}"),
    };
    assert_eq!(settlement.item, item);

    let other = testing::trial("agent", "task", 2).item();
    states.start(other).expect("it runs");
    let mut waiting = Box::pin(states.wait_progress(&other, 0));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    drop(StatesSink(Arc::clone(&states)));
    assert!(matches!(waiting.await, Err(ExecutorError::Ended)));
    assert!(matches!(states.status(&other), Err(ExecutorError::Ended)));
    assert!(states.status(&item).is_ok(), "a result stays");
    assert!(matches!(states.start(other), Err(ExecutorError::Ended)));
}

#[tokio::test]
async fn run_that_ends_before_it_is_opened_is_not_opened() {
    let states = Arc::new(TrialStates::default());
    let mut waiting = Box::pin(states.wait_opened());
    states.apply(&[testing::started(1)]);
    assert!(futures_util::poll!(&mut waiting).is_pending());
    drop(StatesSink(Arc::clone(&states)));
    assert_eq!(waiting.await, None);

    let states = TrialStates::default();
    states.apply(&[testing::started(1), testing::event(1, EventKind::RunOpened)]);
    assert_eq!(states.wait_opened().await, Some(testing::run()));
}

fn chunk(try_id: TryId, exec: ExecId, offset: u64) -> AnnouncedChunk {
    AnnouncedChunk {
        item: trial().item(),
        try_id,
        exec,
        worker: "w".parse().expect("a token"),
        log: 1,
        step: 0,
        offset,
        size_bytes: 1,
        chunk_hex: HexDigest(Digest::sha256(b"x")),
        last_seq: None,
        total: 1,
        violations: 0,
    }
}

/// Executions and offsets of the announcements after a revision.
async fn announced(states: &TrialStates, seen: u64) -> (u64, Vec<(ExecId, u64)>) {
    match states.wait_progress(&trial().item(), seen).await.expect("it runs") {
        TrialProgress::Announced { revision, chunks } => {
            (revision, chunks.iter().map(|chunk| (chunk.exec, chunk.offset)).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn announcements_are_those_of_newest_execution_until_settlement() {
    let states = TrialStates::default();
    let (first, second) = (TryId::first(1), TryId { n: 2, ..TryId::first(1) });
    let other = ExecId::from_bytes([8; 16]);
    states.on_event_chunk(chunk(first, EXEC, 0));
    let (revision, chunks) = announced(&states, 0).await;
    assert_eq!(chunks, [(EXEC, 0)], "known from its announcement");
    let mut waiting = Box::pin(announced(&states, revision));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    states.on_event_chunk(chunk(first, EXEC, 1));
    assert_eq!(waiting.await.1, [(EXEC, 0), (EXEC, 1)]);
    states.on_event_chunk(chunk(first, other, 0));
    assert_eq!(announced(&states, 0).await.1.len(), 2, "which of them is newer is not known");
    states.on_event_chunk(chunk(second, other, 5));
    assert_eq!(announced(&states, 0).await.1, [(other, 5)]);
    states.on_event_chunk(chunk(first, EXEC, 2));
    assert_eq!(announced(&states, 0).await.1, [(other, 5)], "an earlier try");
    states.apply(&[testing::settled(0, testing::settlement(trial(), 1, testing::passed(1.0)))]);
    let progress = states.wait_progress(&trial().item(), 0).await.expect("settled");
    assert!(matches!(progress, TrialProgress::Settled(_)), "{progress:?}");
    assert!(states.fold().trials[&trial().item()].chunks.is_empty());
}

#[tokio::test]
async fn announcements_of_running_execution_replace_those_of_same_try() {
    let states = TrialStates::default();
    let first = TryId::first(1);
    states.on_event_chunk(chunk(first, ExecId::from_bytes([8; 16]), 0));
    states.apply(&[testing::phase(trial(), Phase::AgentExecution)]);
    states.on_event_chunk(chunk(first, EXEC, 3));
    assert_eq!(announced(&states, 0).await.1, [(EXEC, 3)]);
}
