//! Figures of agents with a harness: objectives and events. The harness states them; they never
//! change the headline.

use std::collections::BTreeMap;

use rollout_protocol::harness::{HookEventType, Objective};
use rollout_protocol::record::{HarnessEventCounts, Settlement};

use super::sum::NeumaierSum;
use super::tally::TrialScore;

/// Events of all types that this version does not know.
const OTHER: &str = "other";

/// Harness figures of one agent, over its settled trials. Memory is bounded: event types are those
/// of [`HookEventType`] and `other`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HarnessTally {
    /// Name of the first objective.
    name: Option<String>,
    /// Whether another trial named another objective: their values have no mean.
    names_differ: bool,
    all: ObjectiveValues,
    scored: ObjectiveValues,
    /// Trials with figures of events.
    trials_with_figures: u64,
    total: u64,
    violations: u64,
    types: BTreeMap<&'static str, EventTypeTally>,
}

/// Events of one type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventTypeTally {
    /// Events.
    pub count: u64,
    /// Trials that have such an event.
    pub trials: u64,
}

/// Values of objectives.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ObjectiveValues {
    count: u64,
    sum: NeumaierSum,
}

impl ObjectiveValues {
    fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum.add(value);
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.value() / self.count as f64)
    }
}

impl HarnessTally {
    /// Adds one settled trial.
    pub fn add(&mut self, settlement: &Settlement, score: &TrialScore) {
        let Some(harness) = &settlement.verdict.harness else { return };
        if let Some(objective) = &harness.objective {
            self.add_objective(objective, score);
        }
        let Some(events) = &harness.events else { return };
        self.trials_with_figures += 1;
        self.total = self.total.saturating_add(events.total);
        self.violations = self.violations.saturating_add(events.violations);
        for (name, count) in event_counts(events) {
            let tally = self.types.entry(name).or_default();
            tally.count = tally.count.saturating_add(count);
            tally.trials += 1;
        }
    }

    fn add_objective(&mut self, objective: &Objective, score: &TrialScore) {
        let name = self.name.get_or_insert_with(|| objective.name.clone());
        self.names_differ |= *name != objective.name;
        self.all.add(objective.value);
        if score.is_scored() {
            self.scored.add(objective.value);
        }
    }

    /// Trials with an objective.
    pub fn objective_trials(&self) -> u64 {
        self.all.count
    }

    /// Name and mean of the objective over the trials that have one; `None` without such trials, and
    /// if they name different objectives.
    pub fn objective(&self) -> Option<(&str, f64)> {
        self.named(self.all.mean())
    }

    /// Name and mean of the objective, if all of `trials` scored trials have it.
    pub(super) fn objective_of_scored(&self, trials: u64) -> Option<(&str, f64)> {
        self.named(self.scored.mean().filter(|_| self.scored.count == trials))
    }

    fn named(&self, mean: Option<f64>) -> Option<(&str, f64)> {
        let name = self.name.as_deref().filter(|_| !self.names_differ);
        name.zip(mean)
    }

    /// Valid events; `None` if no trial has figures of events.
    pub fn events(&self) -> Option<u64> {
        (self.trials_with_figures > 0).then_some(self.total)
    }

    /// Violations of the rules of events; `None` if no trial has figures of events.
    pub fn violations(&self) -> Option<u64> {
        (self.trials_with_figures > 0).then_some(self.violations)
    }

    /// Events by type, in the order of their names.
    pub fn event_types(&self) -> impl Iterator<Item = (&'static str, EventTypeTally)> {
        self.types.iter().map(|(name, tally)| (*name, *tally))
    }
}

/// The events of one trial by type, in the order of their names. Types without an event are left
/// out; events of unknown types are counted as `other`.
pub fn event_counts(events: &HarnessEventCounts) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for (name, count) in events.counts.iter().filter(|(_, count)| **count > 0) {
        let known = HookEventType::NAMES.iter().find(|(known, _)| known == name);
        let sum: &mut u64 = counts.entry(known.map_or(OTHER, |(known, _)| *known)).or_default();
        *sum = sum.saturating_add(*count);
    }
    counts
}
