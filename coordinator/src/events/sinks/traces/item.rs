//! The trace of one item, as the coordinator sees it.

use rollout_base::traces::{
    SpanAttribute, SpanEvent, TraceSpan, error_attributes, verdict_attributes, verdict_error,
};
use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::farm::SampleKey;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::item_name::{EvalName, IdeasName, ItemName};
use rollout_protocol::record::{Execution, Settlement};
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::trace_id::{SpanId, TraceId};

/// Events of one item that are kept: more tries than the retry policy allows by default.
const MAX_EVENTS: usize = 64;

/// The run of all items.
#[derive(Debug)]
pub(super) struct RunTrace {
    pub(super) run: RunId,
    pub(super) job: String,
    pub(super) session: u32,
    /// Since when items without an event wait; `None` when they come with time.
    pub(super) started_at: Option<Timestamp>,
}

/// An item that is not settled.
#[derive(Debug, Default)]
pub(super) struct ItemTrace {
    /// Since when it waits for its next execution, if it does.
    queued_at: Option<Timestamp>,
    /// When a user reopened it.
    reopened_at: Option<Timestamp>,
    /// When the first event of it was seen.
    first_seen: Option<Timestamp>,
    /// Executions whose wait has ended.
    begun: Vec<ExecId>,
    events: Vec<SpanEvent>,
}

impl ItemTrace {
    /// An item that waits since `at`, if that is known.
    pub(super) fn queued(at: Option<Timestamp>) -> Self {
        Self { queued_at: at, ..Self::default() }
    }

    /// An item that was settled and waits again.
    pub(super) fn reopened(at: Timestamp) -> Self {
        Self { queued_at: Some(at), reopened_at: Some(at), ..Self::default() }
    }

    /// Notes that there was an event at this time.
    pub(super) fn see(&mut self, at: Timestamp) {
        self.first_seen.get_or_insert(at);
    }

    /// Sets since when it waits.
    pub(super) fn wait_since(&mut self, at: Option<Timestamp>) {
        self.queued_at = at;
    }

    /// Begins an execution; returns the span of the wait before it, once.
    pub(super) fn begin(
        &mut self,
        run: RunId,
        item: ItemId,
        (try_id, exec): (TryId, ExecId),
        at: Timestamp,
    ) -> Option<TraceSpan> {
        self.see(at);
        if self.begun.contains(&exec) {
            return None;
        }
        self.begun.push(exec);
        // Several executions of one item can run at the same time; the first one ends the wait.
        let queued_at = self.queued_at.take()?;
        Some(TraceSpan {
            trace: TraceId::for_item(run, item),
            id: SpanId::for_wait(exec),
            parent: Some(SpanId::for_item(run, item)),
            name: "wait",
            started_at: queued_at.min(at),
            ended_at: at,
            attributes: vec![
                ("rollout.try", try_id.to_string().into()),
                ("rollout.execution", exec.to_string().into()),
            ],
            events: Vec::new(),
            error: None,
        })
    }

    /// Notes what happened to an execution.
    pub(super) fn note(&mut self, at: Timestamp, name: &'static str, exec: ExecId) {
        self.add(at, name, exec, []);
    }

    /// Returns the item to the queue after an execution without a verdict.
    pub(super) fn requeue(&mut self, at: Timestamp, name: &'static str, exec: ExecId) {
        self.note(at, name, exec);
        self.queued_at = Some(at);
    }

    /// Returns the item to the queue after a failed execution.
    pub(super) fn retry(&mut self, at: Timestamp, exec: ExecId, error: &TrialError) {
        self.add(at, "retry", exec, error_attributes(error));
        self.queued_at = Some(at);
    }

    fn add<const N: usize>(
        &mut self,
        at: Timestamp,
        name: &'static str,
        exec: ExecId,
        facts: [SpanAttribute; N],
    ) {
        if self.events.len() < MAX_EVENTS {
            let mut attributes = vec![("rollout.execution", exec.to_string().into())];
            attributes.extend(facts);
            self.events.push(SpanEvent { name, at, attributes });
        }
    }

    /// The span of the item.
    pub(super) fn settled(self, run: &RunTrace, settlement: &Settlement) -> TraceSpan {
        let item = settlement.item;
        let root = SpanId::for_item(run.run, item);
        let by = settlement.by.as_ref();
        // The root of the trace exists already when an item is settled once more.
        let again = self.reopened_at.and(by).map(|by| SpanId::for_retried_item(by.exec));
        let started_at = self.reopened_at.or(run.started_at).or(self.first_seen);
        let ended_at = settlement.settled_at;
        let (name, mut attributes) = name_attributes(&settlement.name);
        attributes.extend(run_attributes(run, item));
        attributes.push(("rollout.tries", tries(settlement).into()));
        if let Some(Execution { exec, worker, .. }) = by {
            attributes.push(("rollout.execution", exec.to_string().into()));
            attributes.push(("rollout.worker", worker.to_string().into()));
        }
        attributes.extend(verdict_attributes(&settlement.verdict));
        TraceSpan {
            trace: TraceId::for_item(run.run, item),
            id: again.unwrap_or(root),
            parent: again.map(|_| root),
            name,
            started_at: started_at.unwrap_or(ended_at).min(ended_at),
            ended_at,
            attributes,
            events: self.events,
            error: verdict_error(&settlement.verdict),
        }
    }
}

/// Tries of an item, those of earlier sessions included.
fn tries(settlement: &Settlement) -> u32 {
    let executions = settlement.superseded.iter().chain(&settlement.by);
    executions.map(|execution| execution.try_id.n).max().unwrap_or(0)
}

fn run_attributes(run: &RunTrace, item: ItemId) -> [SpanAttribute; 4] {
    [
        ("rollout.run", run.run.to_string().into()),
        ("rollout.run.name", run.job.clone().into()),
        ("rollout.session", run.session.into()),
        ("rollout.item", item.to_string().into()),
    ]
}

/// The kind of an item, and the parts of its name.
fn name_attributes(name: &ItemName) -> (&'static str, Vec<SpanAttribute>) {
    match name {
        ItemName::Trial(TrialName { agent, dataset, task, attempt }) => (
            "trial",
            vec![
                ("rollout.agent", agent.clone().into()),
                ("rollout.dataset", dataset.clone().into()),
                ("rollout.task", task.clone().into()),
                ("rollout.attempt", (*attempt).into()),
            ],
        ),
        ItemName::Eval(EvalName { search, node, eval, attempt }) => (
            "eval",
            vec![
                ("rollout.search", search.clone().into()),
                ("rollout.node", node.to_string().into()),
                ("rollout.eval", eval.to_string().into()),
                ("rollout.attempt", (*attempt).into()),
            ],
        ),
        ItemName::Ideas(IdeasName { search, node, attempt }) => (
            "ideas",
            vec![
                ("rollout.search", search.clone().into()),
                ("rollout.node", node.to_string().into()),
                ("rollout.attempt", (*attempt).into()),
            ],
        ),
        ItemName::Rollout(SampleKey { farm, group, index, generation }) => (
            "rollout",
            vec![
                ("rollout.farm", farm.clone().into()),
                ("rollout.group", group.as_str().to_owned().into()),
                ("rollout.index", (*index).into()),
                ("rollout.generation", (*generation).into()),
            ],
        ),
    }
}
