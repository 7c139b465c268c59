//! The snapshot of a run: header, counts and figures.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_engine::core::{ItemProgress, ItemStage};
use rollout_engine::{ObservedOwner, QueueOutage, RunManifest};
use rollout_protocol::Timestamp;
use rollout_protocol::error::ErrorType;
use rollout_protocol::event::WaitingItems;
use rollout_protocol::id::RunId;
use rollout_protocol::limits::LOCK_STALE;
use rollout_protocol::record::ItemOutcome;
use serde::Serialize;

use super::fold::RunFold;
use super::sessions::LastSession;
use super::trials::{TrialState, unsettled_state};
use crate::results::metrics::Tally;

/// The snapshot of a run.
#[derive(Debug)]
pub struct RunView {
    /// Identity, state and owner.
    pub header: RunHeaderView,
    /// Items by state.
    pub counts: ItemCounts,
    /// Totals of the settled items.
    pub tally: Tally,
    /// Settled items by the type of their error.
    pub errors: BTreeMap<ErrorType, u64>,
    /// Settled items per hour in the last session; `None` before it has settled any.
    pub settled_per_hour: Option<f64>,
    /// Items that wait for a worker that could run them, while an owner may be alive.
    pub waiting_for_worker: Vec<WaitingItems>,
    /// The outage of the queue, while there is one and an owner may be alive.
    pub queue_outage: Option<QueueOutage>,
    pub(super) fold: RunFold,
}

/// Identity, state and owner of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunHeaderView {
    /// The run; `None` before its first session wrote its journal.
    pub run: Option<RunId>,
    /// Name of the job.
    pub job: String,
    /// Kind of the run.
    pub kind: RunKind,
    /// State of the run.
    pub state: RunViewState,
    /// Whether a user paused its last session.
    pub paused: bool,
    /// Start of the first session.
    pub created_at: Option<Timestamp>,
    /// Last change of the run's state.
    pub updated_at: Option<Timestamp>,
    /// Number of the last session, from 1; 0 before the first one.
    pub epoch: u32,
    /// Start of the last session.
    pub opened_at: Option<Timestamp>,
    /// Version of the program of the last session.
    pub version: Option<String>,
    /// Host and process of the last session, for people.
    pub opened_by: Option<String>,
    /// The pool whose workers run the trials; `None` if they run in the owner's process.
    pub pool: Option<String>,
    /// The process that owns the run, or owned it and died.
    pub owner: Option<OwnerView>,
}

/// Kinds of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// Trials of a job.
    Job,
    /// Evals and ideas of a search.
    Search,
}

/// State of a run, as a reader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunViewState {
    /// Its first session has not written its journal or its plan.
    New,
    /// Its owner is alive, as far as is known.
    Running,
    /// Its owner sends no heartbeats, and may be alive on another host.
    Silent,
    /// Its owner died; items are pending.
    Interrupted,
    /// Its last session was stopped; items are pending, or more may come.
    Stopped,
    /// Everything is settled.
    Completed,
    /// A search that only simulated its commands: it has no journal.
    Simulated,
}

/// The owner of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OwnerView {
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When it took the run.
    pub since: Timestamp,
    /// When it last sent a heartbeat, on its clock.
    pub last_heartbeat_at: Timestamp,
    /// Seconds since then, whatever the clock of its host shows; for a run on a NATS server, since it
    /// answered.
    pub heartbeat_age_sec: f64,
    /// Whether the reader's host proves that it has ended.
    pub dead: bool,
}

/// Items by state. The total is the sum of the settled, running, waiting and queued ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ItemCounts {
    /// Items of the plan.
    pub total: u64,
    /// Items with a terminal record: the sum of the next four.
    pub settled: u64,
    /// The verifier produced a reward.
    pub completed: u64,
    /// An error prevented a reward.
    pub failed: u64,
    /// Cancelled by the user.
    pub cancelled: u64,
    /// Ran to the end without a verifier.
    pub unverified: u64,
    /// An execution runs.
    pub running: u64,
    /// Wait before they are tried again.
    pub waiting: u64,
    /// The others.
    pub queued: u64,
    /// Settled items that are no longer in the plan. They are in no other count.
    pub unplanned: u64,
}

impl RunKind {
    /// The word used in documents and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Search => "search",
        }
    }
}

impl RunViewState {
    /// The word used in documents and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Running => "running",
            Self::Silent => "silent",
            Self::Interrupted => "interrupted",
            Self::Stopped => "stopped",
            Self::Completed => "completed",
            Self::Simulated => "simulated",
        }
    }

    /// Whether an owner may be alive.
    pub const fn may_be_owned(self) -> bool {
        matches!(self, Self::Running | Self::Silent)
    }
}

impl OwnerView {
    pub(super) fn new(owner: &ObservedOwner, dead: bool, age: Duration) -> Self {
        Self {
            host: owner.host().to_owned(),
            pid: owner.pid(),
            since: owner.created_at(),
            last_heartbeat_at: owner.last_heartbeat_at(),
            heartbeat_age_sec: age.as_secs_f64(),
            dead,
        }
    }

    /// Whether it has sent no heartbeat for so long that another process may take the run over.
    fn is_silent(&self) -> bool {
        Duration::try_from_secs_f64(self.heartbeat_age_sec).is_ok_and(|age| age > LOCK_STALE)
    }
}

/// State of a run with this last session and owner. `owner_epoch` is the session of the owner.
pub(super) fn state(last: Option<&LastSession>, owner: Option<(&OwnerView, u32)>) -> RunViewState {
    let end = last.and_then(|last| last.end);
    let is_later = |epoch| last.is_none_or(|last| epoch > last.epoch);
    // An owner whose session ended is about to release the lock.
    let owner = owner.filter(|(owner, epoch)| !owner.dead && (end.is_none() || is_later(*epoch)));
    match (owner, last, end) {
        (Some((owner, _)), ..) if owner.is_silent() => RunViewState::Silent,
        (Some(_), ..) => RunViewState::Running,
        (None, None, _) => RunViewState::New,
        (None, Some(_), None) => RunViewState::Interrupted,
        (None, Some(_), Some(end)) if end.cancelled => RunViewState::Stopped,
        (None, Some(_), Some(_)) => RunViewState::Completed,
    }
}

impl RunView {
    /// The snapshot of a run of which every record was read.
    pub(super) fn new(
        fold: RunFold,
        kind: RunKind,
        manifest: Option<&RunManifest>,
        owner: Option<(OwnerView, u32)>,
        now: Timestamp,
    ) -> Self {
        let sessions = &fold.sessions;
        let last = sessions.last.as_ref();
        let state = match (kind, manifest) {
            (RunKind::Search, None) => RunViewState::Simulated,
            // The first session writes its journal, then the plan.
            (RunKind::Job, _) if fold.plan.is_none() && fold.total() == 0 => RunViewState::New,
            _ => state(last, owner.as_ref().map(|(owner, epoch)| (owner, *epoch))),
        };
        let header = RunHeaderView {
            run: sessions.first.map(|(run, _)| run).or(manifest.map(|manifest| manifest.run)),
            job: fold.job.clone(),
            kind,
            state,
            paused: fold.core().is_paused(),
            created_at: sessions.first.map(|(_, at)| at),
            updated_at: sessions.updated_at.max(manifest.map(|manifest| manifest.updated_at)),
            epoch: last.map_or(0, |last| last.epoch),
            opened_at: last.map(|last| last.opened_at),
            version: last.map(|last| last.version.clone()),
            opened_by: last.map(|last| last.owner.clone()),
            pool: last.and_then(|last| last.pool.clone()),
            owner: owner.map(|(owner, _)| owner),
        };
        let until = if state.may_be_owned() { Some(now) } else { sessions.updated_at };
        let settled_per_hour = last.zip(until).and_then(|(last, until)| rate(last, until));
        let (tally, errors) = tally(&fold);
        let mut view = Self {
            header,
            counts: ItemCounts::default(),
            tally,
            errors,
            settled_per_hour,
            waiting_for_worker: Vec::new(),
            queue_outage: None,
            fold,
        };
        view.counts = view.count();
        view
    }

    /// The view of a run whose directory shows these items to wait for a worker, and this outage of the
    /// queue.
    pub(super) fn with_hints(
        self,
        waiting: Vec<WaitingItems>,
        queue_outage: Option<QueueOutage>,
    ) -> Self {
        let (waiting_for_worker, queue_outage) = match self.header.state.may_be_owned() {
            true => (waiting, queue_outage),
            false => (Vec::new(), None),
        };
        Self { waiting_for_worker, queue_outage, ..self }
    }

    /// The view of a copy. A session that has not ended may go on at another host: it counts as
    /// running while its last sign of life is recent.
    pub(super) fn without_owner(mut self, age: Option<Duration>) -> Self {
        if self.header.state == RunViewState::Interrupted {
            let is_recent = age.is_some_and(|age| age < LOCK_STALE);
            self.header.state = match is_recent {
                true => RunViewState::Running,
                false => RunViewState::Silent,
            };
        }
        self
    }

    /// Number of items with an execution that runs or may run, by state of the others.
    fn count(&self) -> ItemCounts {
        let core = self.fold.core();
        let mut counts = ItemCounts { total: self.fold.total(), ..ItemCounts::default() };
        let mut known = 0;
        for item in core.items() {
            let Some(progress) = core.progress(&item) else { continue };
            if self.fold.plan.is_some() && core.ordinal(&item).is_none() {
                counts.unplanned += u64::from(matches!(progress.stage, ItemStage::Settled(_)));
                continue;
            }
            known += 1;
            match self.item_state(progress) {
                TrialState::Completed => counts.completed += 1,
                TrialState::Failed => counts.failed += 1,
                TrialState::Cancelled => counts.cancelled += 1,
                TrialState::Unverified => counts.unverified += 1,
                TrialState::Running => counts.running += 1,
                TrialState::Waiting => counts.waiting += 1,
                TrialState::Queued => {}
            }
        }
        counts.settled = counts.completed + counts.failed + counts.cancelled + counts.unverified;
        counts.total = counts.total.max(known);
        counts.queued = counts.total - counts.settled - counts.running - counts.waiting;
        counts
    }

    /// The state of an item.
    pub(super) fn item_state(&self, progress: ItemProgress) -> TrialState {
        match progress.stage {
            ItemStage::Settled(ItemOutcome::Completed) => TrialState::Completed,
            ItemStage::Settled(ItemOutcome::Failed) => TrialState::Failed,
            ItemStage::Settled(ItemOutcome::Cancelled) => TrialState::Cancelled,
            ItemStage::Settled(ItemOutcome::Unverified) => TrialState::Unverified,
            ItemStage::Pending | ItemStage::Waiting | ItemStage::Offered => {
                let header = &self.header;
                unsettled_state(progress, header.pool.is_some(), header.state.may_be_owned())
            }
        }
    }

    /// The state of the run, record by record.
    pub fn fold(&self) -> &RunFold {
        &self.fold
    }
}

/// Items per hour that a session settled until a time.
fn rate(session: &LastSession, until: Timestamp) -> Option<f64> {
    let milliseconds = until.as_millisecond() - session.opened_at.as_millisecond();
    let hours = milliseconds as f64 / 3_600_000.0;
    (session.settled > 0 && hours > 0.0).then(|| session.settled as f64 / hours)
}

/// Totals of the settled items, in the plan's order: sums do not depend on the order of the rows.
fn tally(fold: &RunFold) -> (Tally, BTreeMap<ErrorType, u64>) {
    let (mut tally, mut errors) = (Tally::default(), BTreeMap::new());
    let core = fold.core();
    let is_counted = |ordinal: &Option<u64>| fold.plan.is_none() || ordinal.is_some();
    let mut rows: Vec<_> =
        fold.settled.iter().map(|(item, row)| (core.ordinal(item), *item, row)).collect();
    rows.retain(|(ordinal, ..)| is_counted(ordinal));
    rows.sort_unstable_by_key(|(ordinal, item, _)| (*ordinal, *item));
    for (_, _, row) in rows {
        tally.add(&row.score);
        if let Some(error) = &row.error {
            *errors.entry(error.kind).or_insert(0) += 1;
        }
    }
    (tally, errors)
}
