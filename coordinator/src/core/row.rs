//! What the core knows of one item.

use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, TryId, WorkerId};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Execution, ExecutionEnd, LostReason, Outcome};
use rollout_protocol::wire::offer::SizeClass;
use rollout_protocol::wire::report::ResultBody;

/// One item that was ever offered. Kept small: there is one for each item of the run.
#[derive(Debug)]
pub(super) struct Row {
    /// Position in the plan's order; `None` while no plan names the item.
    pub(super) ordinal: Option<u64>,
    /// Size class.
    pub(super) class: SizeClass,
    /// What it needs of a worker.
    pub(super) lane: u16,
    /// Digest of what the item runs under.
    pub(super) spec: Digest,
    /// The newest try.
    pub(super) current: TryId,
    /// Results of tries below this never settle the item.
    pub(super) floor: TryId,
    pub(super) state: State,
    /// Infrastructure failures that count against the retry policy.
    pub(super) failures: u32,
    /// Executions that ended without settling, of whatever cause.
    pub(super) ended: u32,
    /// Executions heard of; empty for an item that nothing ever disturbed.
    pub(super) executions: Vec<Known>,
}

// A million items must fit into a gigabyte with everything else.
const _: () = assert!(size_of::<Row>() <= 128);

/// Where an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// To be offered as soon as there is a permit.
    Owed,
    /// To be owed again later.
    Waiting,
    /// The current try is offered and holds a permit.
    Offered,
    /// Has its one settlement.
    Settled(Outcome),
}

/// An execution that was heard of.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) exec: ExecId,
    pub(super) try_id: TryId,
    /// Order of first hearing; negative when first heard of by its result.
    pub(super) order: i64,
    pub(super) worker: WorkerId,
    pub(super) end: End,
}

/// How a known execution stands.
#[derive(Debug)]
pub(super) enum End {
    /// No result, not lost.
    Open,
    /// Lost.
    Lost(Loss),
    /// It reported. The report is kept whole while the item is unsettled.
    Result {
        spec: Digest,
        /// Whether it is an infrastructure failure that another try follows.
        retried: bool,
        body: Box<ResultBody>,
    },
}

/// An end without a verdict.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) reason: LostReason,
    pub(super) phase: Option<Phase>,
    pub(super) cost: f64,
    pub(super) record: Option<BlobRef>,
}

impl Row {
    pub(super) fn new(spec: Digest, try_id: TryId) -> Self {
        Self {
            ordinal: None,
            class: SizeClass::default(),
            lane: 0,
            spec,
            current: try_id,
            floor: try_id,
            state: State::Owed,
            failures: 0,
            ended: 0,
            executions: Vec::new(),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled(_))
    }

    pub(super) fn find(&mut self, exec: &ExecId) -> Option<&mut Known> {
        self.executions.iter_mut().find(|known| known.exec == *exec)
    }
}

impl Known {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.end, End::Open)
    }

    /// The order of executions of one item: by try, then by first hearing.
    pub(super) fn age(&self) -> (TryId, i64) {
        (self.try_id, self.order)
    }

    /// The execution as records show it.
    pub(super) fn into_execution(self) -> Execution {
        let (end, record, durations, timestamps) = match self.end {
            End::Open => (ExecutionEnd::Open, None, None, None),
            End::Lost(Loss { reason, phase, cost, record }) => {
                (ExecutionEnd::Lost { reason, phase, cost }, record, None, None)
            }
            End::Result { body, .. } => {
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
