//! What a search asks for, as its run's engine wants it.

use std::sync::Arc;

use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::wire::command::Selection;
use rollout_protocol::wire::offer::{Offer, Pacing, SizeClass, Work};
use tokio::sync::Notify;

use super::asked::{Asked, Try};
use crate::core::{NewItem, Settled};
use crate::plan::Needs;
use crate::run::Planner;
use crate::run::tickets::Tickets;

/// Hands out tries of evals as the search asks for them. All need the same of a worker.
#[derive(Debug)]
pub struct EvalPlanner {
    asked: Arc<Asked>,
    needs: [Needs; 1],
    tickets: Option<Arc<Tickets>>,
}

impl EvalPlanner {
    /// Hands out what is asked for there.
    pub fn new(asked: Arc<Asked>, needs: Needs) -> Self {
        Self { asked, needs: [needs], tickets: None }
    }

    /// Has some of their commands wait for tickets.
    #[must_use]
    pub fn limited(self, tickets: Option<Arc<Tickets>>) -> Self {
        Self { tickets, ..self }
    }

    fn class(&self) -> SizeClass {
        let [needs] = &self.needs;
        needs.class
    }

    fn new_item(&self, ordinal: u64, wanted: &Try) -> NewItem {
        let (item, spec, class) = (wanted.item, wanted.spec, self.class());
        NewItem { item, ordinal, spec, class, lane: 0 }
    }

    fn at(&self, ordinal: u64) -> Try {
        self.asked.at(ordinal).expect("only ordinals that were handed out are asked for")
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
        let spec = self.at(ordinal).spec;
        let tickets = self.tickets.as_ref().map(|tickets| tickets.asked_for());
        let pacing = Pacing { tickets: tickets.unwrap_or_default(), ..Pacing::default() };
        let class = self.class();
        Offer { run, item, try_id, spec, class, work: Work::Eval, pacing }
    }

    fn lanes(&self) -> &[Needs] {
        &self.needs
    }

    /// Nothing: what a search needs to go on cannot be cancelled alone.
    fn select(&self, _selection: &Selection) -> Vec<NewItem> {
        Vec::new()
    }

    fn name(&self, ordinal: u64) -> TrialName {
        self.at(ordinal).name
    }

    fn growth(&self) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.asked.growth))
    }

    fn tickets(&self) -> Option<Arc<Tickets>> {
        self.tickets.clone()
    }

    fn is_open(&self) -> bool {
        self.asked.is_open()
    }

    fn settled(&self, settled: &Settled) {
        self.asked.settled(settled);
    }
}
