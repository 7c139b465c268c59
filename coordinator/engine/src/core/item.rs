//! State of one item.

use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, TryId, WorkerId};
use rollout_protocol::limits;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Execution, ExecutionEnd, ItemOutcome, LostReason};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::wire::offer::SizeClass;
use rollout_protocol::wire::report::ResultBody;

/// State of one item that was ever offered. Kept small: there is one for each item of the run.
#[derive(Debug)]
pub(super) struct ItemEntry {
    /// Position in the plan's order; `None` while no plan names the item.
    pub(super) ordinal: Option<u64>,
    /// Size class.
    pub(super) class: SizeClass,
    /// Its lane: its requirements of a worker.
    pub(super) lane: u16,
    /// Digest of the item's spec.
    pub(super) spec: Digest,
    /// The newest try.
    pub(super) current: TryId,
    /// Results of tries below this never settle the item.
    pub(super) floor: TryId,
    pub(super) state: ItemStatus,
    /// Infrastructure failures that count against the retry policy.
    pub(super) failures: u32,
    /// Whether a user cancelled it: it settles when none of its executions is open.
    pub(super) cancelled: bool,
    /// Whether the current try was offered to run alone on its worker.
    pub(super) solo: bool,
    /// Known executions; empty for an item that ran undisturbed.
    pub(super) executions: Vec<KnownExecution>,
}

// A million items must fit into a gigabyte with everything else.
const _: () = assert!(size_of::<ItemEntry>() <= 128);

/// Status of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemStatus {
    /// To be offered as soon as there is a permit.
    Pending,
    /// Waits before it is pending again.
    Waiting,
    /// The current try is offered and holds a permit.
    Offered,
    /// Has its one settlement.
    Settled(ItemOutcome),
}

/// A known execution.
#[derive(Debug, Clone)]
pub(super) struct KnownExecution {
    pub(super) exec: ExecId,
    pub(super) try_id: TryId,
    /// Order of first hearing; negative when first heard of by its result.
    pub(super) order: i64,
    pub(super) worker: WorkerId,
    /// Whether it ran alone on its worker.
    pub(super) solo: bool,
    /// Whether it belongs to a settlement from before the item was reopened.
    pub(super) superseded: bool,
    pub(super) state: ExecutionState,
}

/// State of a known execution.
#[derive(Debug, Clone)]
pub(super) enum ExecutionState {
    /// No result, not lost.
    Open,
    /// Lost.
    Lost(ExecutionLoss),
    /// Reported. The report is kept whole while the item is unsettled.
    Result {
        spec: Digest,
        /// The reason why it never settles the item, if there is one.
        void: Option<VoidReason>,
        body: Box<ResultBody>,
    },
}

/// Why a result cannot settle its item, whatever its try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VoidReason {
    /// An infrastructure failure that another try follows.
    Retried,
    /// It arrived after the item was cancelled.
    Late,
    /// It settled the item before a reopening, or was superseded at that time.
    Superseded,
}

/// An end without a verdict.
#[derive(Debug, Clone)]
pub(super) struct ExecutionLoss {
    pub(super) reason: LostReason,
    pub(super) phase: Option<Phase>,
    pub(super) cost: f64,
    pub(super) model_use: ModelUse,
    pub(super) record: Option<BlobRef>,
}

impl ExecutionLoss {
    /// A loss of which only the reason is known.
    pub(super) fn inferred(reason: LostReason) -> Self {
        Self { reason, phase: None, cost: 0.0, model_use: ModelUse::default(), record: None }
    }

    /// Whether the coordinator only inferred the loss; a report replaces it.
    pub(super) fn is_presumed(&self) -> bool {
        matches!(self.reason, LostReason::Unreachable | LostReason::Outage)
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

impl ItemEntry {
    pub(super) fn new(spec: Digest, try_id: TryId) -> Self {
        Self {
            ordinal: None,
            class: SizeClass::default(),
            lane: 0,
            spec,
            current: try_id,
            floor: try_id,
            state: ItemStatus::Pending,
            failures: 0,
            cancelled: false,
            solo: false,
            executions: Vec::new(),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, ItemStatus::Settled(_))
    }

    /// Whether another execution could still report what settles the item.
    pub(super) fn has_open(&self) -> bool {
        self.executions.iter().any(KnownExecution::is_open)
    }

    /// Whether it was tried, and neither offered nor settled since.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state, ItemStatus::Pending | ItemStatus::Waiting) && !self.cancelled
    }

    /// Executions that ended without settling the item and count as its own failures.
    pub(super) fn ended_executions(&self) -> u32 {
        let counts = |known: &&KnownExecution| match &known.state {
            ExecutionState::Open => false,
            ExecutionState::Lost(loss) => loss.reason.counts() && !known.superseded,
            ExecutionState::Result { void, .. } => *void == Some(VoidReason::Retried),
        };
        count(self.executions.iter().filter(counts))
    }

    /// Executions that died with their worker.
    pub(super) fn deaths(&self) -> u32 {
        count(self.executions.iter().filter(|known| known.is_dead()))
    }

    /// Whether the item is suspected of killing its workers, and must run alone.
    pub(super) fn is_suspected(&self) -> bool {
        self.deaths() >= limits::DEATHS_BEFORE_SOLO
    }

    /// Whether it killed too many workers to be tried again.
    pub(super) fn is_poisoned(&self) -> bool {
        let alone = count(self.executions.iter().filter(|known| known.solo && known.is_dead()));
        alone >= limits::SOLO_DEATHS || self.deaths() >= limits::MAX_DEATHS
    }

    /// The class in which it is offered.
    pub(super) fn offered_class(&self) -> SizeClass {
        if self.is_suspected() { SizeClass::SOLO } else { self.class }
    }

    pub(super) fn find(&mut self, exec: &ExecId) -> Option<&mut KnownExecution> {
        self.executions.iter_mut().find(|known| known.exec == *exec)
    }
}

impl KnownExecution {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, ExecutionState::Open)
    }

    fn is_dead(&self) -> bool {
        !self.superseded
            && matches!(&self.state, ExecutionState::Lost(loss) if loss.reason.is_death())
    }

    /// Whether it may still be running: no worker has reported its end.
    pub(super) fn may_run(&self) -> bool {
        match &self.state {
            ExecutionState::Open => true,
            ExecutionState::Lost(loss) => loss.is_presumed(),
            ExecutionState::Result { .. } => false,
        }
    }

    /// Whether a verdict of it would be new.
    pub(super) fn may_report(&self) -> bool {
        !matches!(self.state, ExecutionState::Result { .. })
    }

    /// Sort key of an item's executions: by try, then by first hearing.
    pub(super) fn order_key(&self) -> (TryId, i64) {
        (self.try_id, self.order)
    }

    /// The execution in the form used in terminal records.
    pub(super) fn into_execution(self) -> Execution {
        let (end, record, durations, timestamps) = match self.state {
            ExecutionState::Open => (ExecutionEnd::Open, None, None, None),
            ExecutionState::Lost(ExecutionLoss {
                reason, phase, cost, record, model_use, ..
            }) => (ExecutionEnd::Lost { reason, phase, cost, model_use }, record, None, None),
            ExecutionState::Result { body, .. } => {
                let body = *body;
                let end = ExecutionEnd::Reported { verdict: body.verdict };
                (end, body.record, Some(body.durations), Some(body.timestamps))
            }
        };
        Execution {
            try_id: self.try_id,
            exec: self.exec,
            worker: self.worker,
            end,
            record,
            durations,
            timestamps,
        }
    }
}
