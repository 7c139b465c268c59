//! Totals of a run and of each agent.

use std::collections::HashMap;

use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::record::ItemOutcome;

use super::keys::KeyRewards;
use super::tally::{Tally, TrialScore};

/// An agent and the number of its trials in the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentTotal {
    /// Name.
    pub name: String,
    /// Trials of the plan.
    pub total: u64,
}

/// The totals of one agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentTally {
    /// Name.
    pub name: String,
    /// Trials of the plan.
    pub total: u64,
    /// Settled trials.
    pub tally: Tally,
    /// Their rewards by key.
    pub keys: KeyRewards,
}

impl AgentTally {
    /// Trials without a terminal record.
    pub fn pending(&self) -> u64 {
        self.total.saturating_sub(self.tally.settled())
    }
}

/// The totals of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunStats {
    overall: Tally,
    keys: KeyRewards,
    agents: Vec<AgentTally>,
    index: HashMap<String, usize>,
}

impl RunStats {
    /// Empty totals for the agents, in the order of the plan.
    pub fn new(agents: &[AgentTotal]) -> Self {
        let mut stats = Self::default();
        for agent in agents {
            let at = stats.agent(&agent.name);
            stats.agents[at].total += agent.total;
        }
        stats
    }

    /// Applies an event. Only settlements of trials, and their ends, change the totals.
    pub fn apply(&mut self, event: &RunEvent) {
        let (settlement, is_over) = match &event.kind {
            EventKind::TrialSettled { settlement, .. } => (settlement, false),
            EventKind::TrialReopened { former: Some(former), .. } => (former, true),
            _ => return,
        };
        let Some(trial) = settlement.trial() else { return };
        let (scored, numbers) =
            (TrialScore::from_settlement(settlement), settlement.verdict.numbers());
        match is_over {
            true => self.remove(&trial.agent, &scored, numbers),
            false => self.add(&trial.agent, &scored, numbers),
        }
    }

    /// Takes out a settled trial that was added. Extremes stay as they are.
    fn remove<'a>(
        &mut self,
        agent: &str,
        scored: &TrialScore,
        numbers: impl Iterator<Item = (&'a str, f64)>,
    ) {
        let at = self.agent(agent);
        let agent = &mut self.agents[at];
        agent.tally.remove(scored);
        self.overall.remove(scored);
        for (key, number) in numbers.filter(|_| scored.outcome == ItemOutcome::Completed) {
            agent.keys.remove(key, number);
            self.keys.remove(key, number);
        }
    }

    /// Adds one settled trial of `agent`, with its verifier's numbers by key.
    pub fn add<'a>(
        &mut self,
        agent: &str,
        scored: &TrialScore,
        numbers: impl Iterator<Item = (&'a str, f64)>,
    ) {
        let at = self.agent(agent);
        let agent = &mut self.agents[at];
        agent.tally.add(scored);
        self.overall.add(scored);
        for (key, number) in numbers.filter(|_| scored.outcome == ItemOutcome::Completed) {
            agent.keys.add(key, number);
            self.keys.add(key, number);
        }
    }

    /// Totals over all agents.
    pub fn overall(&self) -> &Tally {
        &self.overall
    }

    /// Rewards by key over all agents.
    pub fn keys(&self) -> &KeyRewards {
        &self.keys
    }

    /// Totals of each agent, in the order of the plan.
    pub fn agents(&self) -> &[AgentTally] {
        &self.agents
    }

    /// Trials of the plan.
    pub fn total(&self) -> u64 {
        self.agents.iter().map(|agent| agent.total).sum()
    }

    /// Trials without a terminal record.
    pub fn pending(&self) -> u64 {
        self.agents.iter().map(AgentTally::pending).sum()
    }

    fn agent(&mut self, name: &str) -> usize {
        if let Some(at) = self.index.get(name) {
            return *at;
        }
        let at = self.agents.len();
        self.index.insert(name.to_owned(), at);
        self.agents.push(AgentTally {
            name: name.to_owned(),
            total: 0,
            tally: Tally::default(),
            keys: KeyRewards::default(),
        });
        at
    }
}
