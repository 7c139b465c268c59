//! The planner of a job and its plan file.

mod lanes;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use rollout_engine::core::{AnnouncedChunk, NewItem};
use rollout_engine::journal::RunLayout;
use rollout_engine::{ItemLookup, Planner, RunError, SelectionStep, WorkerRequirements};
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::wire::command::{ReopenSelection, TrialSelection};
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits};
use tokio::sync::Notify;

use crate::plan::{JobPlan, PlanPlace};
use crate::results::view;

pub use lanes::JobLanes;
pub use requests::{EventChunkListener, TrialRequests};

/// Gives the engine the trials of a job in dispatch order.
#[derive(Debug)]
pub struct JobPlanner {
    plan: Arc<JobPlan>,
    dispatched: u64,
    /// Ordinals by key. Built only for resumed runs: a name cannot be derived from its key.
    ordinals: Arc<OnceLock<HashMap<ItemId, u64>>>,
    lanes: JobLanes,
    rate_limits: RunRateLimits,
    /// The trials to dispatch; `None` for all trials of the plan.
    requests: Option<Arc<TrialRequests>>,
    /// The plan of the last session.
    former: Option<FormerPlan>,
    changes: AcceptedChanges,
}

/// The plan of the last session.
#[derive(Debug)]
struct FormerPlan {
    plan: Arc<JobPlan>,
    /// Ordinals by key. Built only if the journal has a result that this plan does not make.
    ordinals: OnceLock<HashMap<ItemId, u64>>,
}

/// Differences between the plan of the last session and this one that are no errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AcceptedChanges {
    /// Trials with results may be planned no longer.
    pub removed: bool,
    /// Trials that do not run again keep results of other settings or files.
    pub kept: bool,
}

impl JobPlanner {
    /// A planner that has dispatched nothing yet. `by_agent`: whether each lane is of one agent.
    pub fn new(plan: Arc<JobPlan>, by_agent: bool) -> Self {
        let lanes = if by_agent { JobLanes::by_agent(&plan) } else { JobLanes::new(&plan) };
        let rate_limits = RunRateLimits::default();
        Self {
            plan,
            dispatched: 0,
            ordinals: Arc::default(),
            lanes,
            rate_limits,
            requests: None,
            former: None,
            changes: AcceptedChanges::default(),
        }
    }

    /// Compares known results with the plan of the last session.
    #[must_use]
    pub fn with_former(self, former: Option<Arc<JobPlan>>, changes: AcceptedChanges) -> Self {
        let former = former.map(|plan| FormerPlan { plan, ordinals: OnceLock::new() });
        Self { former, changes, ..self }
    }

    /// Sets the rate limits that workers observe for its trials.
    #[must_use]
    pub fn with_rate_limit(self, rate_limits: RunRateLimits) -> Self {
        Self { rate_limits, ..self }
    }

    /// Sets whether workers share the limits of its model servers, within leases.
    #[must_use]
    pub fn with_model_leases(mut self, model_leases: bool) -> Self {
        self.rate_limits.model_leases = model_leases;
        self
    }

    /// Dispatches requested trials only, and those that former sessions began.
    #[must_use]
    pub fn with_requests(self, requests: Arc<TrialRequests>) -> Self {
        Self { requests: Some(requests), ..self }
    }

    fn place(&self, ordinal: u64) -> PlanPlace {
        self.plan.place(ordinal).expect("only ordinals of the plan are requested")
    }

    fn new_item(&self, ordinal: u64) -> NewItem {
        let place = self.place(ordinal);
        NewItem {
            item: self.plan.item_at(place),
            ordinal,
            spec: self.plan.trial_ref_at(place).digest(),
            class: self.plan.tasks()[place.task].class,
            lane: self.lanes.lane(place.agent, place.task),
        }
    }
}

impl FormerPlan {
    fn place(&self, item: &ItemId) -> Option<PlanPlace> {
        let known = self.ordinals.get_or_init(|| ordinals(&self.plan));
        self.plan.place(*known.get(item)?)
    }
}

/// Ordinals of all trials, by key.
fn ordinals(plan: &JobPlan) -> HashMap<ItemId, u64> {
    plan.trials().map(|trial| (trial.item, trial.ordinal)).collect()
}

/// The trials that a selection names.
fn lookup(plan: &JobPlan, selection: &ReopenSelection) -> HashMap<String, ItemId> {
    match selection {
        ReopenSelection::Trials(keys) => lookup_keys(plan, keys),
        ReopenSelection::Filtered(filter) => {
            let named = plan.trials().filter(|trial| filter.names(&trial.name));
            named.map(|trial| (trial.name.to_string(), trial.item)).collect()
        }
        ReopenSelection::Failed | ReopenSelection::Infrastructure => HashMap::new(),
    }
}

/// The trials that keys name: each key is a name or an item.
fn lookup_keys(plan: &JobPlan, keys: &[String]) -> HashMap<String, ItemId> {
    let names: HashSet<&str> = keys.iter().map(String::as_str).collect();
    let mut found = HashMap::new();
    for trial in plan.trials() {
        let (name, item) = (trial.name.to_string(), trial.item.to_string());
        let given = [name, item].into_iter().filter(|key| names.contains(key.as_str()));
        found.extend(given.map(|key| (key, trial.item)));
    }
    found
}

impl Planner for JobPlanner {
    fn total(&self) -> u64 {
        self.plan.len()
    }

    fn next(&mut self, max: usize) -> Vec<NewItem> {
        if let Some(requests) = &self.requests {
            let requested = requests.next(max).into_iter();
            return requested.map(|ordinal| self.new_item(ordinal)).collect();
        }
        let begin = self.dispatched;
        let end = self.plan.len().min(begin + max as u64);
        self.dispatched = end;
        let ordinals = (begin..end).filter_map(|k| self.plan.dispatch_ordinal(k));
        ordinals.map(|ordinal| self.new_item(ordinal)).collect()
    }

    fn find(&self, item: &ItemId) -> Option<NewItem> {
        let ordinals = self.ordinals.get_or_init(|| ordinals(&self.plan));
        ordinals.get(item).map(|ordinal| self.new_item(*ordinal))
    }

    fn removed(&self, item: &ItemId) -> Option<ItemName> {
        let former = self.former.as_ref().filter(|_| !self.changes.removed)?;
        Some(former.plan.name_at(former.place(item)?).into())
    }

    fn keeps_result(&self, planned: &NewItem) -> bool {
        let same = |former: &FormerPlan| {
            let place = former.place(&planned.item)?;
            Some(former.plan.trial_ref_at(place).digest() == planned.spec)
        };
        self.changes.kept || self.former.as_ref().and_then(same).unwrap_or(false)
    }

    fn offer(&self, run: RunId, item: ItemId, try_id: TryId, ordinal: u64) -> Offer {
        let place = self.place(ordinal);
        let trial_ref = self.plan.trial_ref_at(place);
        Offer {
            run,
            item,
            try_id,
            spec: trial_ref.digest(),
            class: self.plan.tasks()[place.task].class,
            work: OfferedWork::Trial(trial_ref),
            rate_limits: self.rate_limits,
            model_calls: None,
        }
    }

    fn lanes(&self) -> &[WorkerRequirements] {
        self.lanes.needs()
    }

    fn agents_of_lanes(&self) -> Vec<u16> {
        self.lanes.agents()
    }

    fn lane_totals(&self) -> Vec<u64> {
        // A plan whose trials are requested one by one is not owed as a whole.
        match self.requests {
            Some(_) => Vec::new(),
            None => self.lanes.totals(u64::from(self.plan.n_attempts())),
        }
    }

    fn lane(&self, ordinal: u64) -> Option<u16> {
        self.plan.place(ordinal).map(|place| self.lanes.lane(place.agent, place.task))
    }

    fn select(&self, selection: &TrialSelection, ordinal: u64) -> SelectionStep {
        match self.plan.next_selected(selection, ordinal) {
            Some(next) if next == ordinal => SelectionStep::Named(self.new_item(ordinal)),
            Some(next) => SelectionStep::Skip(next),
            None => SelectionStep::End,
        }
    }

    fn item_lookup(&self) -> Option<ItemLookup> {
        let (plan, known) = (Arc::clone(&self.plan), Arc::clone(&self.ordinals));
        Some(Box::new(move |selection| {
            known.get_or_init(|| ordinals(&plan));
            lookup(&plan, selection)
        }))
    }

    fn name(&self, ordinal: u64) -> ItemName {
        self.plan.name_at(self.place(ordinal)).into()
    }

    fn commit(&self, ordinal: u64) -> Option<String> {
        self.plan.tasks()[self.place(ordinal).task].git_commit_id.clone()
    }

    fn growth_signal(&self) -> Option<Arc<Notify>> {
        self.requests.as_ref().map(|requests| requests.growth_signal())
    }

    fn is_open(&self) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.is_open())
    }

    fn on_event_chunk(&self, chunk: AnnouncedChunk) {
        if let Some(requests) = &self.requests {
            requests.on_event_chunk(chunk);
        }
    }
}

/// Reads the plan of the previous session; `None` if the file is missing.
pub(crate) fn read_previous_plan(layout: &RunLayout) -> Result<Option<JobPlan>, RunError> {
    let path = layout.plan();
    let failed = |source| RunError::File { action: "read", path: path.clone(), source };
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    view::parse_plan(&path, &bytes).map(Some)
}
