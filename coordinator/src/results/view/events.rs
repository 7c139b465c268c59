//! The durable events of a run, with numbers that do not depend on when they are read.
//!
//! Each record of the journal has as many numbers as it can cause events, whether it caused them or
//! not: the number of an event follows from the records before it alone.

use std::sync::Arc;

use rollout_engine::core::{Core, CoreEffect, ItemRetry, ItemSettlement, JournalRecord, Takeover};
use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::ItemId;
use rollout_protocol::record::Settlement;
use serde::Serialize;

use super::sessions::SessionHistory;
use crate::plan::JobPlan;

/// An event with its number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NumberedEvent {
    /// Ascending in the order of the events. Numbers may be missing.
    pub seq: u64,
    /// The event, as `rollout run --json` prints it.
    #[serde(flatten)]
    pub event: RunEvent,
}

/// Facts that events need besides the journal.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventContext<'a> {
    pub(super) job: &'a str,
    pub(super) plan: Option<&'a JobPlan>,
    pub(super) total: u64,
}

/// Numbers that a record has.
pub(super) fn numbers_of(record: &JournalRecord) -> u64 {
    match record {
        // The start, the acceptance, and a takeover.
        JournalRecord::Opened(_) => 3,
        // A loss and a settlement.
        JournalRecord::Reported { .. }
        | JournalRecord::Recovered { .. }
        | JournalRecord::Lost { .. } => 2,
        JournalRecord::Cancelled { items } | JournalRecord::GivenUp { items, .. } => {
            items.len() as u64
        }
        JournalRecord::Reopened { items, .. } => items.len() as u64,
        JournalRecord::Stopping { .. }
        | JournalRecord::Paused { .. }
        | JournalRecord::Closed(_) => 1,
        JournalRecord::Offered { .. }
        | JournalRecord::Claimed { .. }
        | JournalRecord::EventChunk { .. }
        | JournalRecord::Respecified { .. }
        | JournalRecord::Retried { .. }
        | JournalRecord::Farm(_)
        | JournalRecord::Heard { .. }
        | JournalRecord::Withdrawn { .. } => 0,
    }
}

/// The events of a record alone, in a core without it. `sessions` includes the record.
pub(super) fn of_record(
    record: &JournalRecord,
    core: &Core,
    sessions: &SessionHistory,
    context: EventContext<'_>,
) -> Vec<EventKind> {
    match record {
        JournalRecord::Opened(opened) => {
            let started = EventKind::RunStarted {
                run: opened.run,
                job: context.job.to_owned(),
                epoch: opened.epoch,
                total: context.total,
                started_at: sessions.first.map_or(Timestamp::UNIX_EPOCH, |(_, at)| at),
            };
            let takeover = opened.takeover.clone();
            let takeover = takeover
                .map(|Takeover { former, reason }| EventKind::LockTakeover { former, reason });
            [started, EventKind::RunOpened].into_iter().chain(takeover).collect()
        }
        JournalRecord::Reopened { items, .. } => {
            items.iter().filter_map(|item| reopened(core, *item, context.plan?)).collect()
        }
        JournalRecord::Stopping { level } => vec![EventKind::RunStopping { level: *level }],
        JournalRecord::Paused { is_paused: true } => vec![EventKind::RunPaused],
        JournalRecord::Paused { is_paused: false } => vec![EventKind::RunContinued],
        JournalRecord::Closed(end) => {
            vec![EventKind::RunEnded { cancelled: end.cancelled, owed: end.owed }]
        }
        _ => Vec::new(),
    }
}

/// Whether an effect is an event: such effects are numbered in their order, also those of items
/// that have no name.
pub(super) fn is_event(effect: &CoreEffect) -> bool {
    matches!(effect, CoreEffect::Settled(_) | CoreEffect::Retry(_) | CoreEffect::Lost { .. })
}

/// The event of an effect; `None` for one without an event, and for an item that the plan does not
/// name.
pub(super) fn of_effect(core: &Core, effect: CoreEffect, plan: &JobPlan) -> Option<EventKind> {
    match effect {
        CoreEffect::Settled(settled) => {
            let (ordinal, settlement) = settlement(core, *settled, plan)?;
            let settlement = Arc::new(settlement);
            Some(EventKind::TrialSettled { ordinal, replayed: false, settlement })
        }
        CoreEffect::Retry(retry) => {
            let ItemRetry { item, ordinal, try_id, exec, error, .. } = *retry;
            let name = plan.trial(ordinal)?.name.into();
            let wait_ms = core.wait_ms(&item);
            Some(EventKind::TrialRetry { item, name, try_id, exec, error, wait_ms })
        }
        CoreEffect::Lost { item, ordinal, try_id, exec } => {
            let name = plan.trial(ordinal)?.name.into();
            Some(EventKind::TrialLost { item, name, try_id, exec })
        }
        _ => None,
    }
}

/// The event of a trial that is pending again.
fn reopened(core: &Core, item: ItemId, plan: &JobPlan) -> Option<EventKind> {
    let ordinal = core.ordinal(&item)?;
    let name = plan.trial(ordinal)?.name.into();
    Some(EventKind::TrialReopened { item, name, ordinal, former: None })
}

/// The terminal record of a settled trial, and its position in the plan.
pub(super) fn settlement(
    core: &Core,
    settled: ItemSettlement,
    plan: &JobPlan,
) -> Option<(u64, Settlement)> {
    let ordinal = core.ordinal(&settled.item)?;
    let trial = plan.trial(ordinal)?;
    let task_git_commit_id = plan.tasks()[trial.task].git_commit_id.clone();
    let ItemSettlement { item, by, verdict, superseded, at, .. } = settled;
    let name = trial.name.into();
    let settled_at = at;
    let settlement =
        Settlement { item, name, by, verdict, superseded, settled_at, task_git_commit_id };
    Some((ordinal, settlement))
}
