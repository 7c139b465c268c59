//! Selection of the settled trials that run again, from the beginning of a session or within it.

use std::collections::{BTreeSet, HashMap, HashSet};

use rollout_protocol::error::ErrorClass;
use rollout_protocol::id::ItemId;
use rollout_protocol::item_name::ItemName;
use rollout_protocol::record::{Execution, ItemOutcome};
pub use rollout_protocol::wire::command::{OutcomeFilter, ReopenSelection, TrialFilter};

use super::replay::{CoreReplay, reopened_items};
use crate::core::{CoreEffect, ItemSettlement};
use crate::journal::{JournalError, JournalPrefix, ReplayExtent, RunLayout, SegmentIndex};
use crate::unsettled::UnsettledSelection;

/// Whether a selection names the settlement of an item.
fn selects(selection: &ReopenSelection, settled: &ItemSettlement, name: &ItemName) -> bool {
    let is_named = match selection {
        ReopenSelection::Failed | ReopenSelection::Infrastructure => true,
        ReopenSelection::Trials(keys) => {
            let (name, item) = (name.to_string(), settled.item.to_string());
            keys.iter().any(|key| *key == name || *key == item)
        }
        ReopenSelection::Filtered(filter) => name.trial().is_some_and(|trial| filter.names(trial)),
    };
    is_named && has_outcome(selection, settled)
}

/// Whether a settlement has an outcome that a selection takes.
fn has_outcome(selection: &ReopenSelection, settled: &ItemSettlement) -> bool {
    let outcome = match selection {
        ReopenSelection::Failed => OutcomeFilter::Failed,
        ReopenSelection::Infrastructure => OutcomeFilter::Infrastructure,
        ReopenSelection::Trials(_) => OutcomeFilter::Any,
        ReopenSelection::Filtered(filter) => filter.outcome,
    };
    let failed = settled.verdict.outcome == ItemOutcome::Failed;
    let error = settled.verdict.error.as_ref();
    match outcome {
        OutcomeFilter::Any => true,
        OutcomeFilter::Failed => failed,
        OutcomeFilter::Infrastructure => {
            failed && error.is_some_and(|error| error.class == ErrorClass::Infrastructure)
        }
    }
}

/// The settlements in effect that a selection names.
#[derive(Debug, Default)]
pub(super) struct FoundSettlements {
    /// The settlements, with the tries of their items until then.
    pub(super) settled: HashMap<ItemId, (u32, ItemSettlement)>,
    /// Number of trials that the selection names and the plan has.
    pub(super) named: usize,
    /// Trials, agents and tasks of the selection that name no trial that was ever settled.
    pub(super) unsettled: UnsettledSelection,
}

/// Reads the settlements that a selection names from the durable part of a journal, which may grow.
/// `lookup` finds the items that a selection names. Blocks.
///
/// # Errors
/// [`JournalError`].
pub(super) fn find_settlements(
    layout: &RunLayout,
    durable: JournalPrefix,
    selection: &ReopenSelection,
    lookup: &dyn Fn(&ReopenSelection) -> HashMap<String, ItemId>,
) -> Result<FoundSettlements, JournalError> {
    let items = lookup(selection);
    let index = SegmentIndex::read(layout)?;
    let mut replay = CoreReplay::for_reader(index.reopenings()?.times, []);
    let mut found = FoundSettlements::default();
    let named: HashSet<ItemId> = items.values().copied().collect();
    let mut known: HashSet<ItemId> = HashSet::new();
    let durable = [(durable.epoch, durable.bytes)];
    index.replay(&durable, ReplayExtent::Durable, |at, record| {
        for item in reopened_items(&record) {
            found.settled.remove(item);
        }
        replay.read(at, record, |core, effect| {
            let CoreEffect::Settled(settled) = effect else { return };
            let item = settled.item;
            let is_filtered = matches!(selection, ReopenSelection::Filtered(_));
            let is_named = named.contains(&item);
            if is_named || is_filtered {
                known.insert(item);
            }
            let by_name = is_filtered || matches!(selection, ReopenSelection::Trials(_));
            if (is_named || !by_name) && has_outcome(selection, &settled) {
                let tries = core.progress(&item).map_or(0, |progress| progress.tries);
                found.settled.insert(item, (tries, *settled));
            }
        });
    })?;
    match selection {
        ReopenSelection::Trials(keys) => {
            found.named = named.len();
            let is_settled =
                |key: &&String| items.get(key.as_str()).is_some_and(|item| known.contains(item));
            found.unsettled.trials = keys.iter().filter(|key| !is_settled(key)).cloned().collect();
        }
        ReopenSelection::Filtered(filter) => {
            found.unsettled = unsettled_parts(filter, &known, lookup);
        }
        ReopenSelection::Failed | ReopenSelection::Infrastructure => {}
    }
    Ok(found)
}

/// The agents and the tasks of a filter that no settled trial has. `known` are the items of these.
fn unsettled_parts(
    filter: &TrialFilter,
    known: &HashSet<ItemId>,
    lookup: &dyn Fn(&ReopenSelection) -> HashMap<String, ItemId>,
) -> UnsettledSelection {
    let is_unsettled = |part: TrialFilter| {
        let items = lookup(&ReopenSelection::Filtered(part));
        !items.values().any(|item| known.contains(item))
    };
    let is_agent_unsettled = |agent: &&String| {
        is_unsettled(TrialFilter { agents: vec![(*agent).clone()], ..TrialFilter::default() })
    };
    let is_task_unsettled = |task: &&String| {
        is_unsettled(TrialFilter { tasks: vec![(*task).clone()], ..TrialFilter::default() })
    };
    let agents: Vec<String> = filter.agents.iter().filter(is_agent_unsettled).cloned().collect();
    let mut known_agents = BTreeSet::new();
    if !agents.is_empty() {
        let all = lookup(&ReopenSelection::Filtered(TrialFilter::default()));
        let settled = all.into_iter().filter(|(_, item)| known.contains(item));
        // The name of a trial begins with its agent.
        known_agents
            .extend(settled.filter_map(|(name, _)| Some(name.split_once('/')?.0.to_owned())));
    }
    UnsettledSelection {
        trials: Vec::new(),
        agents,
        tasks: filter.tasks.iter().filter(is_task_unsettled).cloned().collect(),
        known_agents: known_agents.into_iter().collect(),
    }
}

/// The settlements that no longer count: those that previous sessions reopened, and those that this
/// one reopens.
#[derive(Debug, Default)]
pub(super) struct SupersededResults {
    /// How often previous sessions reopened items, minus those replayed.
    pending: HashMap<ItemId, u32>,
    /// The executions that settled items until they were reopened.
    executions: HashMap<ItemId, Vec<Execution>>,
    /// The selection of this session, and its items in the order of the journal.
    selection: Option<ReopenSelection>,
    chosen: Vec<ItemId>,
    /// Names and items of the selected settlements, as users give them.
    names: HashSet<String>,
    /// Agents and tasks of the selection that no settled trial has so far.
    unseen: TrialFilter,
    /// Agents of settled trials.
    agents: BTreeSet<String>,
}

impl SupersededResults {
    pub(super) fn new(pending: HashMap<ItemId, u32>, selection: Option<ReopenSelection>) -> Self {
        let unseen = match &selection {
            Some(ReopenSelection::Filtered(filter)) => filter.clone(),
            _ => TrialFilter::default(),
        };
        Self { pending, selection, unseen, ..Self::default() }
    }

    /// Takes a settlement that no longer counts; otherwise returns it. A selected one that an
    /// earlier session reopened is not reopened again.
    pub(super) fn take(
        &mut self,
        settled: ItemSettlement,
        name: &ItemName,
    ) -> Option<ItemSettlement> {
        let later = self.is_reopened_later(&settled.item);
        let selected = self.selection.as_ref();
        if let Some(trial) = name.trial().filter(|_| self.selection.is_some()) {
            self.unseen.remove(trial);
            if !self.agents.contains(&trial.agent) {
                self.agents.insert(trial.agent.clone());
            }
        }
        let selected = selected.is_some_and(|of| selects(of, &settled, name));
        if !later && !selected {
            return Some(settled);
        }
        if !later {
            self.chosen.push(settled.item);
        }
        if selected {
            self.names.extend([name.to_string(), settled.item.to_string()]);
        }
        self.keep_executions(settled);
        None
    }

    /// Keeps the executions of a settlement that a later session reopened.
    pub(super) fn keep_if_reopened(&mut self, settled: &ItemSettlement) {
        if self.is_reopened_later(&settled.item) {
            self.keep_executions(settled.clone());
        }
    }

    fn is_reopened_later(&self, item: &ItemId) -> bool {
        self.pending.get(item).is_some_and(|times| *times > 0)
    }

    fn keep_executions(&mut self, settled: ItemSettlement) {
        let mut executions = settled.superseded;
        executions.extend(settled.by);
        self.executions.insert(settled.item, executions);
    }

    /// The executions that settled an item that a session reopens.
    pub(super) fn reopened(&mut self, item: ItemId) -> Vec<Execution> {
        if let Some(times) = self.pending.get_mut(&item) {
            *times = times.saturating_sub(1);
        }
        self.executions.remove(&item).unwrap_or_default()
    }

    /// The items that this session reopens.
    pub(super) fn chosen(&self) -> &[ItemId] {
        &self.chosen
    }

    /// Requested trials that were never settled, and agents and tasks of none.
    pub(super) fn unsettled(&self) -> UnsettledSelection {
        let trials = match &self.selection {
            Some(ReopenSelection::Trials(keys)) => {
                keys.iter().filter(|key| !self.names.contains(*key)).cloned().collect()
            }
            _ => Vec::new(),
        };
        UnsettledSelection {
            trials,
            agents: self.unseen.agents.clone(),
            tasks: self.unseen.tasks.clone(),
            known_agents: self.agents.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::Timestamp;
    use rollout_protocol::record::Verdict;
    use rollout_protocol::spec::trial::TrialName;

    use super::*;

    fn trial() -> TrialName {
        TrialName { agent: "a".into(), dataset: "d".into(), task: "t".into(), attempt: 1 }
    }

    fn settled() -> ItemSettlement {
        let (item, verdict, at) = (trial().item(), Verdict::completed(1.0), Timestamp::UNIX_EPOCH);
        ItemSettlement { item, ordinal: None, by: None, verdict, superseded: Vec::new(), at }
    }

    /// Results of a run whose trial an earlier session reopened, with a selection of this trial and
    /// of one that is not in the journal.
    fn reopened_before(key: String) -> SupersededResults {
        let selection = ReopenSelection::Trials(vec![key, "a/d/other__1".to_owned()]);
        SupersededResults::new(HashMap::from([(trial().item(), 1)]), Some(selection))
    }

    #[test]
    fn selected_trial_still_pending_is_known_and_not_reopened_again() {
        for key in [trial().to_string(), trial().item().to_string()] {
            let mut results = reopened_before(key);
            assert!(results.take(settled(), &trial().into()).is_none());
            assert!(results.reopened(trial().item()).is_empty());
            assert!(results.chosen().is_empty());
            assert_eq!(results.unsettled().trials, ["a/d/other__1"]);
        }
    }

    #[test]
    fn filter_of_agent_and_task_selects_their_trials_and_names_unknown_ones() {
        let filter = |agents: &[&str], tasks: &[&str], outcome| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let filter = TrialFilter { outcome, agents: owned(agents), tasks: owned(tasks) };
            let selection = Some(ReopenSelection::Filtered(filter));
            let mut results = SupersededResults::new(HashMap::new(), selection);
            let _kept = results.take(settled(), &trial().into());
            let unsettled = results.unsettled();
            assert_eq!(unsettled.known_agents, ["a"]);
            (results.chosen().len(), [unsettled.agents, unsettled.tasks].concat())
        };
        let all = OutcomeFilter::Any;
        assert_eq!(filter(&["a"], &["x", "t"], all), (1, vec!["x".to_owned()]));
        assert_eq!(filter(&[], &["d/t"], all), (1, Vec::new()));
        assert_eq!(filter(&["b"], &["t"], all), (0, vec!["b".to_owned()]));
        assert_eq!(filter(&["a"], &[], OutcomeFilter::Failed), (0, Vec::new()), "it completed");
    }

    #[test]
    fn selected_trial_settled_again_is_reopened_again() {
        let mut results = reopened_before(trial().to_string());
        assert!(results.take(settled(), &trial().into()).is_none());
        assert!(results.reopened(trial().item()).is_empty());
        assert!(results.take(settled(), &trial().into()).is_none());
        assert_eq!(results.chosen(), [trial().item()]);
        assert_eq!(results.unsettled().trials, ["a/d/other__1"]);
    }
}
