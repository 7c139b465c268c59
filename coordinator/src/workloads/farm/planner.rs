//! The planner of a farm's run.

use std::collections::VecDeque;
use std::sync::Arc;

use rollout_engine::core::{ItemSettlement, NewItem};
use rollout_engine::{Planner, PlannerDecisions, SelectionStep, WorkerRequirements};
use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::farm::{FarmRecord, FarmSettings, SampleKey};
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::wire::command::TrialSelection;
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits};
use tokio::sync::Notify;

use super::core::{BegunSample, FarmEffect};
use super::handle::FarmHandle;
use super::outcome::sample_result;
use super::state::{FarmShared, FarmState, FarmStep};

/// Begun samples that may wait for a worker: if all are of one size class, and otherwise, where later
/// ones may fit a free worker.
const UNIFORM_AHEAD: usize = 8;
const MIXED_AHEAD: usize = 1024;

/// Fewest bytes by which a journal grows before it is compacted, unless the settings say less: a
/// compaction delays decisions by a moment.
const MIN_COMPACTED_BYTES: u64 = 16 * 1024 * 1024;

/// Runs the samples of a farm as items. Decisions of the farm are records of the run's journal, and
/// take effect when they are durable.
#[derive(Debug)]
pub struct FarmPlanner {
    shared: Arc<FarmShared>,
    lanes: Vec<WorkerRequirements>,
    rate_limits: RunRateLimits,
    /// Whether its samples have a model gateway.
    has_gateway: bool,
    /// Whether the run is paused: it has samples that wait for workers, and must not offer them.
    is_paused: bool,
    /// Effects of the last decisions.
    decided: Vec<FarmEffect>,
    /// Effects that wait for a batch of records.
    waiting: VecDeque<(u64, Vec<FarmEffect>)>,
}

impl FarmPlanner {
    /// A farm with these settings, whose samples have the requirements of these lanes, and a handle
    /// of it.
    pub fn new(settings: FarmSettings, lanes: Vec<WorkerRequirements>) -> (Self, FarmHandle) {
        let shared = Arc::new(FarmShared::new(settings));
        let handle = FarmHandle::new(Arc::clone(&shared));
        let planner = Self {
            shared,
            lanes,
            rate_limits: RunRateLimits::default(),
            has_gateway: false,
            is_paused: false,
            decided: Vec::new(),
            waiting: VecDeque::new(),
        };
        (planner, handle)
    }

    /// Sets the rate limits that workers observe for its samples.
    #[must_use]
    pub fn with_rate_limit(mut self, rate_limits: RunRateLimits) -> Self {
        self.rate_limits = rate_limits;
        self
    }

    /// Sets whether workers share the limits of its model servers, within leases.
    #[must_use]
    pub fn with_model_leases(mut self, model_leases: bool) -> Self {
        self.rate_limits.model_leases = model_leases;
        self
    }

    /// Sets whether its samples have a model gateway, whose calls a pause keeps back.
    #[must_use]
    pub fn with_gateway(mut self, has_gateway: bool) -> Self {
        self.has_gateway = has_gateway;
        self
    }
}

impl Drop for FarmPlanner {
    /// The run has ended, or was never opened.
    fn drop(&mut self) {
        self.shared.end();
    }
}

fn new_item(sample: &BegunSample) -> NewItem {
    let BegunSample { item, ordinal, trial_ref, class, lane } = *sample;
    NewItem { item, ordinal, spec: trial_ref.digest(), class, lane }
}

/// The key that events show for an ordinal whose sample is forgotten.
fn forgotten_sample(state: &FarmState) -> SampleKey {
    let farm = state.core.settings().name.clone();
    let group = "forgotten".parse().expect("letters are an id of a group");
    SampleKey { farm, group, index: 0, generation: 0 }
}

impl Planner for FarmPlanner {
    fn total(&self) -> u64 {
        self.shared.state().core.held_generations()
    }

    fn next(&mut self, max: usize) -> Vec<NewItem> {
        self.shared.state().core.begin_next(max).iter().map(new_item).collect()
    }

    /// Samples that wait in the farm are overtaken by those of a higher priority, and dropped when
    /// their policy version becomes too old.
    fn ready_ahead(&self) -> usize {
        let is_uniform = self.lanes.windows(2).all(|pair| pair[0].class == pair[1].class);
        if is_uniform { UNIFORM_AHEAD } else { MIXED_AHEAD }
    }

    /// The run has the item: its sample does not wait any more.
    fn find(&self, item: &ItemId) -> Option<NewItem> {
        self.shared.state().core.find_begun(item).as_ref().map(new_item)
    }

    fn offer(&self, run: RunId, item: ItemId, try_id: TryId, ordinal: u64) -> Offer {
        let state = self.shared.state();
        let sample = state.core.begun(ordinal);
        let model_calls = self.has_gateway.then(|| state.core.model_calls());
        drop(state);
        let BegunSample { trial_ref, class, .. } =
            sample.expect("a sample is known until its item is settled");
        Offer {
            run,
            item,
            try_id,
            spec: trial_ref.digest(),
            class,
            work: OfferedWork::Trial(trial_ref),
            rate_limits: self.rate_limits,
            model_calls,
        }
    }

    fn lanes(&self) -> &[WorkerRequirements] {
        &self.lanes
    }

    /// None: samples are cancelled by their groups.
    fn select(&self, _selection: &TrialSelection, _ordinal: u64) -> SelectionStep {
        SelectionStep::End
    }

    fn name(&self, ordinal: u64) -> ItemName {
        let state = self.shared.state();
        let key = state.core.sample(ordinal).unwrap_or_else(|| forgotten_sample(&state));
        ItemName::Rollout(key)
    }

    fn growth_signal(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.shared.growth))
    }

    fn is_open(&self) -> bool {
        !self.shared.state().core.is_over()
    }

    fn on_settled(&self, settled: &ItemSettlement, _spec: Option<Digest>) {
        self.shared.state().add_settled(settled.item, sample_result(settled));
        self.shared.growth.notify_one();
    }

    fn keeps_settlements(&self) -> bool {
        false
    }

    /// Each sample has several, until a compaction.
    fn has_short_records(&self) -> bool {
        true
    }

    fn on_record(&self, at: Timestamp, record: &FarmRecord) {
        self.shared.state().replay(at, record);
    }

    fn session_start(&self, wall: Timestamp) -> Timestamp {
        self.shared.state().core.session_start(wall)
    }

    fn decide(&mut self, now: Timestamp) -> PlannerDecisions {
        let mut state = self.shared.state();
        let is_first = !state.has_started();
        let FarmStep { records, withdrawn, forgotten, effects } = state.decide(now);
        let cancelled = withdrawn.into_iter().filter_map(|ordinal| state.core.begun(ordinal));
        let cancelled = cancelled.map(|sample| new_item(&sample)).collect();
        let model_calls = state.core.model_calls();
        drop(state);
        if is_first {
            self.shared.calls.want(model_calls);
        }
        let was_paused = std::mem::replace(&mut self.is_paused, model_calls.paused);
        let pause = (was_paused != self.is_paused).then_some(self.is_paused);
        // A reader may have come before the journal was replayed.
        self.shared.wake_readers();
        self.decided = effects;
        PlannerDecisions { records, cancelled, forgotten, pause }
    }

    fn decided(&mut self, batch: u64) {
        let effects = std::mem::take(&mut self.decided);
        if !effects.is_empty() {
            self.waiting.push_back((batch, effects));
        }
    }

    fn has_effects(&self, batch: u64) -> bool {
        self.waiting.front().is_some_and(|(of, _)| *of <= batch)
    }

    fn on_durable(&mut self, batch: u64) {
        while self.has_effects(batch)
            && let Some((_, effects)) = self.waiting.pop_front()
        {
            self.shared.carry_out(effects);
        }
    }

    fn compaction(&self, journal_bytes: u64) -> Option<Vec<FarmRecord>> {
        let state = self.shared.state();
        // Half of such a journal is not needed any more, or more than that.
        let wasteful = state.core.snapshot_bytes().saturating_mul(2).max(MIN_COMPACTED_BYTES);
        let due = wasteful.min(state.core.settings().limits.journal_bytes);
        (journal_bytes >= due).then(|| state.core.snapshot())
    }

    fn next_due(&self) -> Option<Timestamp> {
        self.shared.state().core.next_due()
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::farm::{AdmittedGroup, FarmLimits, GroupRequest, RolloutSpec};
    use rollout_protocol::wire::offer::SizeClass;

    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn planner(journal_bytes: u64) -> FarmPlanner {
        let limits = FarmLimits { journal_bytes, ..FarmLimits::default() };
        let settings = FarmSettings { limits, ..FarmSettings::new("f") };
        let (mut planner, _handle) = FarmPlanner::new(settings, Vec::new());
        let _configured = planner.decide(Timestamp::UNIX_EPOCH);
        planner
    }

    /// Lets the farm hold a group of 15 MiB, which counts the metadata of each sample.
    fn hold_group(planner: &FarmPlanner, name: &str) {
        let text = serde_json::Value::String("x".repeat(256 * 1024));
        let metadata = Arc::new([("prompt".to_owned(), text)].into_iter().collect());
        let request = GroupRequest::new(name.parse().expect("an id"), "d/t", 60);
        let request = GroupRequest { metadata, ..request };
        let digest = Digest::from_bytes([7; 32]);
        let class = SizeClass::default();
        let spec = RolloutSpec { settings: digest, agent: digest, task: digest, class, lane: 0 };
        let content = request.content().expect("a digest");
        let admitted = AdmittedGroup { request, content, spec };
        planner.on_record(Timestamp::UNIX_EPOCH, &FarmRecord::Admitted(Box::new(admitted)));
    }

    #[test]
    fn journal_is_compacted_when_half_of_it_is_not_needed() {
        let planner = planner(FarmLimits::default().journal_bytes);
        let is_compacted = |bytes| planner.compaction(bytes).is_some();
        assert!(!is_compacted(16 * MIB - 1) && is_compacted(16 * MIB));
        for name in ["g", "h"] {
            hold_group(&planner, name);
        }
        assert!(!is_compacted(59 * MIB) && is_compacted(64 * MIB));
    }

    #[test]
    fn journal_is_compacted_at_the_limit_of_the_settings() {
        let planner = planner(MIB);
        hold_group(&planner, "g");
        assert!(planner.compaction(MIB - 1).is_none() && planner.compaction(MIB).is_some());
    }
}
