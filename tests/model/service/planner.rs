//! The plan of a schedule: attempts of one trial.

use std::collections::BTreeSet;
use std::sync::Arc;

use rollout_engine::core::{ItemSettlement, NewItem};
use rollout_engine::{Planner, SelectionStep, WorkerRequirements};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::wire::command::TrialSelection;
use rollout_protocol::wire::offer::{Offer, SizeClass};
use rollout_worker::testing::SampleRun;

use super::log::ExecutionLog;

/// Plans the first attempts of a sample run, for one session.
#[derive(Debug)]
pub(crate) struct SamplePlanner {
    sample: SampleRun,
    attempts: u32,
    planned: u32,
    lanes: [WorkerRequirements; 1],
    log: Arc<ExecutionLog>,
    session: usize,
}

impl SamplePlanner {
    pub(crate) fn new(sample: SampleRun, attempts: u32, log: Arc<ExecutionLog>) -> Self {
        let lane = WorkerRequirements {
            class: SizeClass(0),
            cpus: 1,
            memory_mb: 1,
            provider: ProviderKind::Process,
            second_provider: None,
            variables: BTreeSet::new(),
        };
        let session = log.begin_session();
        Self { sample, attempts, planned: 0, lanes: [lane], log, session }
    }

    fn new_item(&self, ordinal: u32) -> NewItem {
        let offer = self.sample.offer(ordinal, TryId::first(1));
        let Offer { item, spec, class, .. } = offer;
        NewItem { item, ordinal: u64::from(ordinal), spec, class, lane: 0 }
    }

    fn attempt(ordinal: u64) -> u32 {
        u32::try_from(ordinal).expect("few items")
    }
}

impl Planner for SamplePlanner {
    fn total(&self) -> u64 {
        u64::from(self.attempts)
    }

    fn next(&mut self, max: usize) -> Vec<NewItem> {
        let from = self.planned;
        self.planned = self.attempts.min(from + u32::try_from(max).expect("few permits"));
        (from..self.planned).map(|ordinal| self.new_item(ordinal)).collect()
    }

    fn find(&self, item: &ItemId) -> Option<NewItem> {
        (0..self.attempts).map(|ordinal| self.new_item(ordinal)).find(|new| new.item == *item)
    }

    fn offer(&self, run: RunId, _: ItemId, try_id: TryId, ordinal: u64) -> Offer {
        Offer { run, ..self.sample.offer(Self::attempt(ordinal), try_id) }
    }

    fn lanes(&self) -> &[WorkerRequirements] {
        &self.lanes
    }

    fn select(&self, _: &TrialSelection, _: u64) -> SelectionStep {
        SelectionStep::End
    }

    fn name(&self, ordinal: u64) -> ItemName {
        ItemName::Trial(TrialName {
            agent: "agent".into(),
            dataset: "dataset".into(),
            task: "task".into(),
            attempt: Self::attempt(ordinal),
        })
    }

    fn on_settled(&self, settled: &ItemSettlement, _: Option<Digest>) {
        self.log.record_settlement(self.session, settled);
    }
}
