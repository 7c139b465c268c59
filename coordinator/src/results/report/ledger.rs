//! Compact rows of settled trials, the input of the job's result.

use std::collections::HashMap;
use std::sync::Arc;

use rollout_protocol::error::ErrorType;
use rollout_protocol::record::{ItemOutcome, REWARD_KEY, Settlement};
use rollout_protocol::spec::trial::TrialName;

use crate::results::metrics::{AgentTotal, FailureParty, RunStats, TrialScore};

/// The settled trials of a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    rows: Vec<LedgerRow>,
    /// Trials that were reopened, by ordinal: rows before this position no longer count.
    reopened: HashMap<u64, usize>,
    names: NameInterner,
}

/// One settled trial.
#[derive(Debug, Clone)]
struct LedgerRow {
    ordinal: u64,
    agent: u32,
    dataset: u32,
    task: u32,
    attempt: u32,
    score: TrialScore,
    /// The numbers of a verifier that reported several: index of the key, number.
    numbers: Box<[(u32, f64)]>,
    error: Option<ErrorType>,
}

/// A settled trial, with its names resolved.
#[derive(Debug, Clone, Copy)]
pub(super) struct LedgerEntry<'a> {
    pub(super) agent: &'a Arc<str>,
    pub(super) dataset: &'a Arc<str>,
    pub(super) task: &'a Arc<str>,
    pub(super) attempt: u32,
    pub(super) score: &'a TrialScore,
    pub(super) error: Option<ErrorType>,
    numbers: &'a [(u32, f64)],
    names: &'a NameInterner,
}

/// Failed trials with the same error type and responsible party.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureGroup {
    /// Error type.
    pub kind: ErrorType,
    /// Responsible party.
    pub failure: FailureParty,
    /// Number of trials.
    pub count: u64,
    /// The first trial of the group in the plan's order.
    pub example: TrialName,
}

impl Ledger {
    /// Adds a settled trial. Other items are ignored.
    pub(crate) fn add(&mut self, ordinal: u64, settlement: &Settlement) {
        let Some(trial) = settlement.trial() else { return };
        let rewards = settlement.verdict.rewards.iter();
        let numbers = rewards.map(|(key, number)| (self.names.intern(key), *number)).collect();
        self.rows.push(LedgerRow {
            ordinal,
            agent: self.names.intern(&trial.agent),
            dataset: self.names.intern(&trial.dataset),
            task: self.names.intern(&trial.task),
            attempt: trial.attempt,
            score: TrialScore::from_settlement(settlement),
            numbers,
            error: settlement.verdict.error.as_ref().map(|error| error.kind),
        });
    }

    /// Takes a settled trial out again.
    pub(crate) fn reopen(&mut self, ordinal: u64) {
        self.reopened.insert(ordinal, self.rows.len());
    }

    /// Sorts the rows by the plan's order, without those of reopened trials.
    pub(crate) fn sort(&mut self) {
        let reopened = std::mem::take(&mut self.reopened);
        let mut position = 0;
        self.rows.retain(|row| {
            position += 1;
            reopened.get(&row.ordinal).is_none_or(|first| position > *first)
        });
        self.rows.sort_unstable_by_key(|row| row.ordinal);
    }

    /// The trials, in the plan's order once sorted.
    pub(super) fn entries(&self) -> impl Iterator<Item = LedgerEntry<'_>> {
        self.rows.iter().map(|row| LedgerEntry {
            agent: self.names.get(row.agent),
            dataset: self.names.get(row.dataset),
            task: self.names.get(row.task),
            attempt: row.attempt,
            score: &row.score,
            error: row.error,
            numbers: &row.numbers,
            names: &self.names,
        })
    }

    /// Totals, folded in the order of the rows.
    pub(crate) fn stats(&self, agents: &[AgentTotal]) -> RunStats {
        let mut stats = RunStats::new(agents);
        for entry in self.entries() {
            stats.add(entry.agent, entry.score, entry.numbers());
        }
        stats
    }

    /// Failed trials by error type and party, the most frequent first.
    pub(crate) fn failures(&self) -> Vec<FailureGroup> {
        let mut groups: Vec<FailureGroup> = Vec::new();
        for entry in self.entries().filter(|e| e.score.outcome == ItemOutcome::Failed) {
            let (Some(kind), Some(failure)) = (entry.error, entry.score.failure) else { continue };
            let same = |group: &&mut FailureGroup| (group.kind, group.failure) == (kind, failure);
            match groups.iter_mut().find(same) {
                Some(group) => group.count += 1,
                None => {
                    groups.push(FailureGroup { kind, failure, count: 1, example: entry.name() });
                }
            }
        }
        groups.sort_by_key(|group| (std::cmp::Reverse(group.count), group.kind, group.failure));
        groups
    }
}

impl<'a> LedgerEntry<'a> {
    /// The numbers of a verifier that reported several, by key.
    pub(super) fn rewards(&self) -> impl Iterator<Item = (&'a Arc<str>, f64)> + use<'a> {
        let names = self.names;
        self.numbers.iter().map(move |(key, number)| (names.get(*key), *number))
    }

    /// The verifier's numbers by key, whether one or several.
    fn numbers(&self) -> impl Iterator<Item = (&'a str, f64)> + use<'a> {
        let lone = self.score.reward.filter(|_| self.numbers.is_empty());
        let several = self.rewards().map(|(key, number)| (&**key, number));
        lone.map(|reward| (REWARD_KEY, reward)).into_iter().chain(several)
    }

    fn name(&self) -> TrialName {
        TrialName {
            agent: self.agent.to_string(),
            dataset: self.dataset.to_string(),
            task: self.task.to_string(),
            attempt: self.attempt,
        }
    }
}

/// Interned names: a plan has far fewer names than trials.
#[derive(Debug, Default)]
struct NameInterner {
    list: Vec<Arc<str>>,
    index: HashMap<Arc<str>, u32>,
}

impl NameInterner {
    fn intern(&mut self, name: &str) -> u32 {
        if let Some(at) = self.index.get(name) {
            return *at;
        }
        let at = u32::try_from(self.list.len()).expect("a run has fewer names than 2^32");
        let name: Arc<str> = name.into();
        self.list.push(Arc::clone(&name));
        self.index.insert(name, at);
        at
    }

    fn get(&self, at: u32) -> &Arc<str> {
        &self.list[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing;

    fn settlement(reward: f64) -> Settlement {
        testing::settlement(testing::trial("a", "t", 1), 1, testing::passed(reward))
    }

    #[test]
    fn ledger_counts_last_settlement_of_reopened_trial() {
        let mut ledger = Ledger::default();
        [1, 0, 2].into_iter().for_each(|ordinal| ledger.add(ordinal, &settlement(0.25)));
        [1, 2].into_iter().for_each(|ordinal| ledger.reopen(ordinal));
        ledger.add(1, &settlement(0.5));
        ledger.reopen(1);
        ledger.add(1, &settlement(1.0));
        ledger.sort();
        let rewards: Vec<_> = ledger.entries().map(|entry| entry.score.reward).collect();
        assert_eq!(rewards, [Some(0.25), Some(1.0)], "the third runs again");
    }
}
