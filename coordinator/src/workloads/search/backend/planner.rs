//! What a search asks for, as its run's engine wants it.

use std::sync::{Arc, OnceLock};

use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::command::TrialSelection;
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits, SizeClass};
use tokio::sync::Notify;

use super::past_requests::PastRequests;
use super::requests::{WorkKind, WorkRequest, WorkRequests};
use crate::engine::concurrency::ConcurrencyLimiter;
use crate::engine::core::{ItemSettlement, NewItem};
use crate::engine::{Planner, WorkerRequirements};
use crate::workloads::search::driver::SearchDirectory;

/// Hands out tries of evals and commands for ideas as the search asks for them. All work of one kind
/// has the same demands on a worker.
#[derive(Debug)]
pub struct EvalPlanner {
    asked: Arc<WorkRequests>,
    /// By the number of the kind.
    needs: [WorkerRequirements; 2],
    directory: SearchDirectory,
    former: OnceLock<PastRequests>,
    tickets: Option<Arc<ConcurrencyLimiter>>,
    /// Longest wait of an eval for a service that gives no answer, seconds; the usual one if absent.
    max_park_sec: Option<u32>,
}

impl EvalPlanner {
    /// Hands out the work that is asked for there. `needs` are the demands of evals and of ideas.
    pub(crate) fn new(
        asked: Arc<WorkRequests>,
        needs: [WorkerRequirements; 2],
        directory: SearchDirectory,
    ) -> Self {
        let (former, tickets) = (OnceLock::new(), None);
        Self { asked, needs, directory, former, tickets, max_park_sec: None }
    }

    /// Has evals wait so long for a service that gives no answer.
    #[must_use]
    pub fn with_max_park(self, max_park_sec: u32) -> Self {
        let usual = RetryPolicy::default().max_park_sec;
        Self { max_park_sec: Some(max_park_sec).filter(|sec| *sec != usual), ..self }
    }

    /// Has some of their commands wait for tickets.
    #[must_use]
    pub fn with_limiter(self, tickets: Option<Arc<ConcurrencyLimiter>>) -> Self {
        Self { tickets, ..self }
    }

    /// What former sittings may have asked for.
    fn past_requests(&self) -> &PastRequests {
        self.former.get_or_init(|| match self.directory.read() {
            Ok(manifest) => manifest.as_ref().map(PastRequests::from_manifest).unwrap_or_default(),
            Err(error) => {
                // The search says so, too, and does not go on.
                tracing::debug!("what was asked for before is not known: {error}");
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
        self.asked.get(ordinal).expect("only ordinals that were handed out are asked for")
    }
}

impl Planner for EvalPlanner {
    fn total(&self) -> u64 {
        self.asked.len()
    }

    fn next(&mut self, max: usize) -> Vec<NewItem> {
        let next = self.asked.next(max);
        next.iter().map(|(ordinal, wanted)| self.new_item(*ordinal, wanted)).collect()
    }

    fn find(&self, item: &ItemId) -> Option<NewItem> {
        let (ordinal, wanted) = self.asked.find(item)?;
        Some(self.new_item(ordinal, &wanted))
    }

    fn offer(&self, run: RunId, item: ItemId, try_id: TryId, ordinal: u64) -> Offer {
        let WorkRequest { kind, spec, .. } = self.at(ordinal);
        let tickets = self.tickets.as_ref().map(|tickets| tickets.limited_stages());
        let tickets = tickets.unwrap_or_default();
        let pacing =
            RunRateLimits { tickets, max_park_sec: self.max_park_sec, ..RunRateLimits::default() };
        let class = self.class(kind);
        let work = match kind {
            WorkKind::Eval => OfferedWork::Eval,
            WorkKind::Ideas => OfferedWork::Ideas,
        };
        Offer { run, item, try_id, spec, class, work, pacing }
    }

    fn lanes(&self) -> &[WorkerRequirements] {
        &self.needs
    }

    /// Nothing: what a search needs to go on cannot be cancelled alone.
    fn select(&self, _selection: &TrialSelection) -> Vec<NewItem> {
        Vec::new()
    }

    fn name(&self, ordinal: u64) -> ItemName {
        self.at(ordinal).name
    }

    fn growth_signal(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.asked.growth))
    }

    fn concurrency_limiter(&self) -> Option<Arc<ConcurrencyLimiter>> {
        self.tickets.clone()
    }

    fn is_open(&self) -> bool {
        self.asked.is_open()
    }

    /// What a former sitting asked for, and what was settled then, is asked for from now on: the
    /// run's records name everything that it ever settled.
    fn on_settled(&self, settled: &ItemSettlement, spec: Option<Digest>) {
        if let (None, Some(spec)) = (self.asked.find(&settled.item), spec)
            && let Some((kind, name)) = self.past_requests().name(&settled.item, &spec)
        {
            self.asked.add_settled(WorkRequest { kind, item: settled.item, spec, name });
        }
        self.asked.on_settled(settled);
    }
}
