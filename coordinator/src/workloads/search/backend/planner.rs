//! The planner of a search's run.

use std::sync::{Arc, OnceLock};

use rollout_engine::concurrency::ConcurrencyLimiter;
use rollout_engine::core::{ItemSettlement, NewItem};
use rollout_engine::{Planner, SelectionStep, WorkerRequirements};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::command::TrialSelection;
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits, SizeClass};
use tokio::sync::Notify;

use super::past_requests::PastRequests;
use super::requests::{WorkKind, WorkRequest, WorkRequests};
use crate::workloads::search::driver::SearchDirectory;

/// Dispatches the tries and idea commands that the search requests. All requests of one kind have
/// the same requirements on a worker.
#[derive(Debug)]
pub struct EvalPlanner {
    requests: Arc<WorkRequests>,
    /// Requirements by the number of the kind.
    needs: [WorkerRequirements; 2],
    directory: SearchDirectory,
    past_requests: OnceLock<PastRequests>,
    limiter: Option<Arc<ConcurrencyLimiter>>,
    /// Maximum wait of an eval for an unavailable service, seconds; `None` for the default.
    max_park_sec: Option<u32>,
    /// Whether workers share the limits of the model servers, within leases.
    model_leases: bool,
}

impl EvalPlanner {
    /// Dispatches the given requests. `needs` are the requirements of evals and of ideas.
    pub(crate) fn new(
        requests: Arc<WorkRequests>,
        needs: [WorkerRequirements; 2],
        directory: SearchDirectory,
    ) -> Self {
        let (past_requests, limiter) = (OnceLock::new(), None);
        Self {
            requests,
            needs,
            directory,
            past_requests,
            limiter,
            max_park_sec: None,
            model_leases: false,
        }
    }

    /// Sets the maximum wait of evals for an unavailable service.
    #[must_use]
    pub fn with_max_park(self, max_park_sec: u32) -> Self {
        let usual = RetryPolicy::default().max_park_sec;
        Self { max_park_sec: Some(max_park_sec).filter(|sec| *sec != usual), ..self }
    }

    /// Sets whether workers share the limits of the model servers, within leases.
    #[cfg(feature = "nats")]
    #[must_use]
    pub fn with_model_leases(self, model_leases: bool) -> Self {
        Self { model_leases, ..self }
    }

    /// Sets the concurrency limits of their commands.
    #[must_use]
    pub fn with_limiter(self, limiter: Option<Arc<ConcurrencyLimiter>>) -> Self {
        Self { limiter, ..self }
    }

    /// The possible requests of former sessions.
    fn past_requests(&self) -> &PastRequests {
        self.past_requests.get_or_init(|| match self.directory.read() {
            Ok(manifest) => manifest.as_ref().map(PastRequests::from_manifest).unwrap_or_default(),
            Err(error) => {
                // The search reports the error as well and ends.
                tracing::debug!("cannot read the requests of former sessions: {error}");
                PastRequests::default()
            }
        })
    }

    fn class(&self, kind: WorkKind) -> SizeClass {
        self.needs[kind as usize].class
    }

    fn new_item(&self, ordinal: u64, wanted: &WorkRequest) -> NewItem {
        let (item, spec, class) = (wanted.item, wanted.spec, self.class(wanted.kind));
        NewItem { item, ordinal, spec, class, lane: wanted.kind as u16 }
    }

    fn at(&self, ordinal: u64) -> WorkRequest {
        self.requests.get(ordinal).expect("only dispatched ordinals are requested")
    }
}

impl Planner for EvalPlanner {
    fn total(&self) -> u64 {
        self.requests.len()
    }

    fn next(&mut self, max: usize) -> Vec<NewItem> {
        let next = self.requests.next(max);
        next.iter().map(|(ordinal, wanted)| self.new_item(*ordinal, wanted)).collect()
    }

    fn find(&self, item: &ItemId) -> Option<NewItem> {
        let (ordinal, wanted) = self.requests.find(item)?;
        Some(self.new_item(ordinal, &wanted))
    }

    fn offer(&self, run: RunId, item: ItemId, try_id: TryId, ordinal: u64) -> Offer {
        let WorkRequest { kind, spec, .. } = self.at(ordinal);
        let limited_stages = self.limiter.as_ref().map(|limiter| limiter.limited_stages());
        let permits = limited_stages.unwrap_or_default();
        let rate_limits = RunRateLimits {
            permits,
            max_park_sec: self.max_park_sec,
            model_leases: self.model_leases,
            ..RunRateLimits::default()
        };
        let class = self.class(kind);
        let work = match kind {
            WorkKind::Eval => OfferedWork::Eval,
            WorkKind::Ideas => OfferedWork::Ideas,
        };
        Offer { run, item, try_id, spec, class, work, rate_limits, model_calls: None }
    }

    fn lanes(&self) -> &[WorkerRequirements] {
        &self.needs
    }

    /// None: a search needs all of its items, so none can be cancelled alone.
    fn select(&self, _selection: &TrialSelection, _ordinal: u64) -> SelectionStep {
        SelectionStep::End
    }

    fn name(&self, ordinal: u64) -> ItemName {
        self.at(ordinal).name
    }

    fn growth_signal(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.requests.growth_signal))
    }

    fn concurrency_limiter(&self) -> Option<Arc<ConcurrencyLimiter>> {
        self.limiter.clone()
    }

    fn is_open(&self) -> bool {
        self.requests.is_open()
    }

    /// Registers an item that was requested and settled in a former session: the run's records name
    /// everything that it ever settled.
    fn on_settled(&self, settled: &ItemSettlement, spec: Option<Digest>) {
        if let (None, Some(spec)) = (self.requests.find(&settled.item), spec)
            && let Some((kind, name)) = self.past_requests().name(&settled.item, &spec)
        {
            self.requests.add_settled(WorkRequest { kind, item: settled.item, spec, name });
        }
        self.requests.on_settled(settled);
    }
}
