//! Tests of the core alone: the merge rule, and random schedules against the invariants.

mod budgets;
mod cancelling;
mod claiming;
mod dying;
mod fleet;
mod merging;
mod offering;
mod parking;
mod pausing;
mod reconciling;
mod reopening;
mod schedules;

use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorCode, ErrorType, TrialError};
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::record::{Durations, ItemOutcome, LostReason, Timestamps, Verdict};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::event_chunk::EventChunk;
use rollout_protocol::wire::heartbeat::{ActiveExecution, ReceivedHeartbeat};
use rollout_protocol::wire::offer::SizeClass;
use rollout_protocol::wire::position::{Incarnation, PositionedReport, ReportPosition};
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};

use super::item::{ItemEntry, ItemStatus};
use super::{
    Core, CoreEffect, CoreInput, CoreOutput, CoreSettings, InputTime, ItemSettlement,
    JournalRecord, NewItem, RemoteTimeouts, SessionStart,
};
use crate::testing;

const FIRST: TryId = TryId { epoch: 1, n: 1 };
const SECOND: TryId = TryId { epoch: 1, n: 2 };

const RUN: RunId = RunId::from_bytes([7; 16]);

/// A core with its journal in memory.
struct CoreFixture {
    core: Core,
    journal: Vec<(Timestamp, JournalRecord)>,
    effects: Vec<CoreEffect>,
    now_ms: u64,
    sequence: u64,
    epoch: u32,
    permits: usize,
}

impl CoreOutput for (&mut Vec<(Timestamp, JournalRecord)>, &mut Vec<CoreEffect>) {
    fn record(&mut self, at: Timestamp, record: &JournalRecord) {
        self.0.push((at, record.clone()));
    }
    fn effects(&mut self) -> &mut Vec<CoreEffect> {
        self.1
    }
}

fn policy() -> RetryPolicy {
    RetryPolicy { max_attempts: 3, ..RetryPolicy::default() }
}

fn settings(epoch: u32, permits: usize) -> CoreSettings {
    CoreSettings { run: RUN, epoch, permits, retry: policy(), timeouts: RemoteTimeouts::default() }
}

fn opened(epoch: u32, retry: RetryPolicy) -> JournalRecord {
    let session = testing::session_start(epoch, None);
    JournalRecord::Opened(Box::new(SessionStart { run: RUN, plan: spec(0), retry, ..session }))
}

fn item(n: u8) -> ItemId {
    ItemId::from_bytes([n; 16])
}

fn exec(n: u64) -> ExecId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&n.to_be_bytes());
    ExecId::from_bytes(bytes)
}

fn spec(n: u8) -> Digest {
    Digest::from_bytes([n; 32])
}

fn verdict(outcome: ItemOutcome, error: Option<TrialError>, reward: Option<f64>) -> ReportBody {
    let at = Timestamp::UNIX_EPOCH;
    ReportBody::Result(Box::new(ResultBody {
        verdict: Verdict { outcome, reward, error, ..Verdict::cancelled(0.0) },
        durations: Durations::default(),
        timestamps: Timestamps::instant(at),
        record: None,
    }))
}

fn ok(reward: f64) -> ReportBody {
    verdict(ItemOutcome::Completed, None, Some(reward))
}

fn outage() -> ReportBody {
    let kind = ErrorType::EnvironmentStartFailed;
    let error = TrialError::transient(kind, ErrorCode::UNREACHABLE, "no answer");
    verdict(ItemOutcome::Failed, Some(error), None)
}

fn lost(reason: LostReason) -> ReportBody {
    ReportBody::Lost { reason, phase: None, record: None, cost: 0.0, model_use: Default::default() }
}

fn events(number: u32) -> ReportBody {
    let blob = BlobRef::for_bytes(b"{}\n", MediaType::Text);
    let (log, step, offset, last_seq) = (1, 0, u64::from(number), Some(1));
    let chunk = EventChunk { number, log, step, offset, blob, last_seq, total: 1, violations: 0 };
    ReportBody::Events(Box::new(chunk))
}

/// Replays a journal, as a new session does: reopened items keep the executions of their former
/// settlement. Returns every settlement.
fn replay_journal(core: &mut Core, journal: &[(Timestamp, JournalRecord)]) -> Vec<ItemSettlement> {
    let mut settlements: Vec<ItemSettlement> = Vec::new();
    for (at, record) in journal {
        let mut effects = Vec::new();
        core.apply(*at, record.clone(), &mut effects);
        let reopened = match record {
            JournalRecord::Opened(opened) => &opened.reopened[..],
            JournalRecord::Reopened { items, .. } => items,
            _ => &[],
        };
        for item in reopened {
            let former = settlements.iter().rev().find(|settled| settled.item == *item).cloned();
            if let Some(former) = former {
                let executions = former.superseded.into_iter().chain(former.by).collect();
                core.restore_executions(*item, *at, executions);
            }
        }
        settlements.extend(effects.into_iter().filter_map(|effect| match effect {
            CoreEffect::Settled(settled) => Some(*settled),
            _ => None,
        }));
    }
    settlements
}

impl CoreFixture {
    fn new(items: u8, permits: usize) -> Self {
        let mut world = Self::without_items(permits);
        world.begin(items);
        world
    }

    /// A core that has got no items yet.
    fn without_items(permits: usize) -> Self {
        Self {
            core: Core::new(settings(1, permits)),
            journal: vec![(Timestamp::UNIX_EPOCH, opened(1, policy()))],
            effects: Vec::new(),
            now_ms: 0,
            sequence: 0,
            epoch: 1,
            permits,
        }
    }

    /// A core with remote workers.
    fn remote(items: u8, permits: usize) -> Self {
        let mut world = Self::without_items(permits);
        world.resume_remote(&vec![1; usize::from(items)]);
        world
    }

    /// A session begins: the plan is fed under these specs, previous executions may still run.
    fn resume_remote(&mut self, specs: &[u8]) {
        let planned = (0..).zip(specs).map(|(n, under)| fleet::planned(n, *under)).collect();
        self.handle(CoreInput::Items(planned));
        self.handle(CoreInput::PlanComplete);
        self.handle(CoreInput::ResumeRemote);
    }

    /// Another process takes the run over.
    fn take_over(&mut self, specs: &[u8]) -> Vec<ItemSettlement> {
        let replayed = self.replay(policy());
        self.resume_remote(specs);
        replayed
    }

    /// Asserts that the journal alone gives the core's state.
    fn assert_replay_matches(&self) {
        let mut again = Core::new(settings(self.epoch, self.permits));
        replay_journal(&mut again, &self.journal);
        for (item, row) in self.core.items.iter().filter(|(_, row)| row.current.n > 0) {
            let same = again.items.get(item).expect("the journal knows it");
            let view = |row: &ItemEntry| {
                // A waiting item is pending when its wait is not known.
                let waits = row.state == ItemStatus::Waiting;
                let state = if waits { ItemStatus::Pending } else { row.state };
                let ItemEntry { spec, current, floor, failures, cancelled, solo, .. } = row;
                format!(
                    "{spec} {current} {floor} {failures} {cancelled} {solo} {state:?} {:?}",
                    row.executions
                )
            };
            assert_eq!(view(row), view(same), "item {item}: {:#?}", self.journal);
        }
        assert_eq!(self.core.position(), again.position());
        assert_eq!(self.core.in_flight(), again.in_flight());
    }

    /// A session begins: the plan is fed, previous executors are dead.
    fn begin(&mut self, items: u8) {
        let planned = (0..items)
            .map(|n| NewItem {
                item: item(n),
                ordinal: u64::from(n),
                spec: spec(1),
                class: SizeClass(0),
                lane: 0,
            })
            .collect();
        self.handle(CoreInput::Items(planned));
        self.handle(CoreInput::PlanComplete);
        self.handle(CoreInput::PreviousExecutorsDead);
    }

    /// Handles an input. The queue accepts the offers that follow at once.
    fn handle(&mut self, input: CoreInput) {
        let before = self.effects.len();
        self.handle_unpublished(input);
        let offered = self.effects[before..].iter().filter_map(|effect| match effect {
            CoreEffect::Offer { item, try_id, .. } => Some((*item, *try_id)),
            _ => None,
        });
        let offered: Vec<_> = offered.collect();
        if !offered.is_empty() {
            self.handle_unpublished(CoreInput::Published(offered));
        }
    }

    /// Handles an input. Offers that follow wait for the disk or for the queue.
    fn handle_unpublished(&mut self, input: CoreInput) {
        let wall =
            i64::try_from(self.now_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let now = InputTime { monotonic_ms: self.now_ms, wall: wall.expect("a short test") };
        self.core.handle(now, input, &mut (&mut self.journal, &mut self.effects));
        if let Err(broken) = self.core.check_invariants() {
            panic!("{broken}; journal: {:#?}", self.journal);
        }
    }

    /// The process dies; the journal keeps its first `records`; a new session begins.
    fn crash(&mut self, records: usize, items: u8) -> Vec<ItemSettlement> {
        self.resume(records, items, policy())
    }

    /// The same, with another retry policy in the new session.
    fn resume(&mut self, records: usize, items: u8, retry: RetryPolicy) -> Vec<ItemSettlement> {
        self.journal.truncate(records);
        let replayed = self.replay(retry);
        self.begin(items);
        replayed
    }

    fn replay(&mut self, retry: RetryPolicy) -> Vec<ItemSettlement> {
        self.epoch += 1;
        self.core = Core::new(settings(self.epoch, self.permits));
        let replayed = replay_journal(&mut self.core, &self.journal);
        self.effects.clear();
        self.core.begin_session(RUN, retry);
        self.journal.push((Timestamp::UNIX_EPOCH, opened(self.epoch, retry)));
        replayed
    }

    fn report(&mut self, n: u8, try_id: TryId, e: u64, under: u8, body: ReportBody) {
        let reported = self.reported(n, try_id, e, under, body);
        self.handle(reported);
    }

    /// The next report of the stream.
    fn reported(&mut self, n: u8, try_id: TryId, e: u64, under: u8, body: ReportBody) -> CoreInput {
        self.sequence += 1;
        let position = ReportPosition {
            incarnation: Incarnation(u128::from(self.epoch)),
            sequence: self.sequence,
            anchor: exec(e),
            said: body.kind(),
            number: body.number(),
        };
        let report = Report {
            run: RUN,
            item: item(n),
            try_id,
            exec: exec(e),
            spec: spec(under),
            worker: "w".parse().expect("valid"),
            body,
        };
        CoreInput::Reported(Box::new(PositionedReport { position, report }))
    }

    fn claim(&mut self, n: u8, try_id: TryId, e: u64) -> ClaimAnswer {
        let claim = Claim {
            run: RUN,
            item: item(n),
            try_id,
            exec: exec(e),
            spec: spec(1),
            worker: "w".parse().expect("valid"),
            stage: None,
        };
        self.handle(CoreInput::Claim { id: e, claim });
        let mut answers = self.effects.iter().filter_map(|effect| match effect {
            CoreEffect::Answer { id, answer } if *id == e => Some(*answer),
            _ => None,
        });
        answers.next_back().expect("every claim is answered")
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        self.handle(CoreInput::Tick);
    }

    /// Seconds pass; in each of them these workers send heartbeats that show these executions.
    fn watch(&mut self, seconds: u64, shown: &[(&str, &[ActiveExecution])]) {
        for _ in 0..seconds {
            self.now_ms += 1000;
            self.show(shown);
            self.handle(CoreInput::Tick);
        }
    }

    /// These workers send heartbeats that show these executions; of other workers nothing is known.
    fn show(&mut self, shown: &[(&str, &[ActiveExecution])]) {
        let heartbeats = shown.iter().map(|(worker, executions)| ReceivedHeartbeat {
            heartbeat: fleet::heartbeat(worker, executions.to_vec()),
            age: Duration::ZERO,
        });
        let heartbeats = heartbeats.collect();
        self.handle(CoreInput::Heartbeats(heartbeats));
    }

    /// A reconciliation round.
    fn observe(&mut self, listed: &[(u8, TryId, bool)]) {
        let listed = listed.iter().map(|(n, try_id, delivered)| QueuedOffer {
            item: item(*n),
            try_id: *try_id,
            delivered: *delivered,
        });
        let listed = listed.collect();
        self.handle(CoreInput::Observed(listed));
    }

    /// Claims under an id; returns the answer, if there is one yet.
    fn ask(&mut self, id: u64, n: u8, try_id: TryId, e: u64) -> Option<ClaimAnswer> {
        let worker = "w".parse().expect("valid");
        let (item, exec, spec) = (item(n), exec(e), spec(1));
        let claim = Claim { run: RUN, item, try_id, exec, spec, worker, stage: None };
        self.handle(CoreInput::Claim { id, claim });
        self.answer(id)
    }

    fn answer(&self, id: u64) -> Option<ClaimAnswer> {
        self.effects.iter().find_map(|effect| match effect {
            CoreEffect::Answer { id: of, answer } if *of == id => Some(*answer),
            _ => None,
        })
    }

    fn lost_executions(&self) -> Vec<(ExecId, LostReason)> {
        let lost = self.journal.iter().filter_map(|(_, record)| match record {
            JournalRecord::Lost { exec, reason, .. } => Some((*exec, *reason)),
            _ => None,
        });
        lost.collect()
    }

    fn stops(&self) -> Vec<ExecId> {
        let stops = self.effects.iter().filter_map(|effect| match effect {
            CoreEffect::StopExecution { exec, .. } => Some(*exec),
            _ => None,
        });
        stops.collect()
    }

    fn withdrawn(&self) -> Vec<(ItemId, TryId)> {
        let withdrawn = self.effects.iter().filter_map(|effect| match effect {
            CoreEffect::Withdraw { item, try_id } => Some((*item, *try_id)),
            _ => None,
        });
        withdrawn.collect()
    }

    fn lookups(&self) -> usize {
        self.effects.iter().filter(|e| matches!(e, CoreEffect::LookForResults { .. })).count()
    }

    fn offered(&self) -> Vec<(ItemId, TryId)> {
        let offers = self.effects.iter().filter_map(|effect| match effect {
            CoreEffect::Offer { item, try_id, .. } => Some((*item, *try_id)),
            _ => None,
        });
        offers.collect()
    }

    fn settled(&self) -> Vec<&ItemSettlement> {
        let settled = self.effects.iter().filter_map(|effect| match effect {
            CoreEffect::Settled(settled) => Some(&**settled),
            _ => None,
        });
        settled.collect()
    }
}
