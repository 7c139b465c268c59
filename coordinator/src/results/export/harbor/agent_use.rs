//! Tokens and cost of a trial's agent, as Harbor has them.

use rollout_protocol::record::GatewaySummary;
use serde_json::{Value, json};

use crate::results::export::source::SettledTrial;

/// Tokens and cost, as far as the gateway knows them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct AgentUse {
    /// Input, cached input, which is a part of it, and output.
    tokens: Option<[u64; 3]>,
    /// The part of the cost that is known.
    cost: Option<f64>,
    /// Whether there are calls without a known cost.
    has_unpriced_calls: bool,
}

impl AgentUse {
    /// The use of the execution that settled a trial.
    pub(super) fn of(trial: &SettledTrial) -> Self {
        let record = trial.record.as_ref();
        record.and_then(|record| record.gateway.as_deref()).map_or_else(Self::default, Self::from)
    }

    /// Adds that of another trial. Tokens that are unknown, and agents whose calls no gateway recorded, add
    /// nothing.
    pub(super) fn add(&mut self, other: &Self) {
        if let Some(more) = other.tokens {
            let known = self.tokens.unwrap_or_default();
            self.tokens = Some(std::array::from_fn(|at| known[at].saturating_add(more[at])));
        }
        if let Some(more) = other.cost {
            self.cost = Some(self.cost.unwrap_or_default() + more);
        }
        self.has_unpriced_calls |= other.has_unpriced_calls;
    }

    /// Writes the members into an object. Harbor has no lower bounds: a cost of which a part is unknown is
    /// null, also that of a job.
    pub(super) fn write(&self, document: &mut Value) {
        let token = |at: usize| json!(self.tokens.map(|tokens| tokens[at]));
        document["n_input_tokens"] = token(0);
        document["n_cache_tokens"] = token(1);
        document["n_output_tokens"] = token(2);
        document["cost_usd"] = json!(self.cost.filter(|_| !self.has_unpriced_calls));
    }
}

impl From<&GatewaySummary> for AgentUse {
    /// Tokens of servers that gave none are unknown.
    fn from(calls: &GatewaySummary) -> Self {
        let usage = calls.usage;
        let is_known = calls.calls == 0 || usage.total() > 0;
        Self {
            tokens: is_known.then_some([usage.input, usage.cached_input, usage.output]),
            cost: Some(calls.cost),
            has_unpriced_calls: calls.unpriced_calls > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_of_job_is_null_beside_a_trial_with_calls_without_price() {
        let cost = |trials: &[(f64, u64)]| {
            let mut sum = AgentUse::default();
            for (cost, unpriced_calls) in trials.iter().copied() {
                let summary = GatewaySummary { cost, unpriced_calls, ..GatewaySummary::default() };
                sum.add(&AgentUse::from(&summary));
            }
            // The agent of another trial calls no model.
            sum.add(&AgentUse::default());
            let mut document = json!({});
            sum.write(&mut document);
            document["cost_usd"].clone()
        };
        assert_eq!(cost(&[(0.0, 0), (0.25, 0)]), 0.25);
        for unknown in [(0.5, 1), (0.0, 1)] {
            assert_eq!(cost(&[(0.0, 0), unknown]), Value::Null);
            assert_eq!(cost(&[unknown, (0.25, 0)]), Value::Null, "in any order");
        }
        assert_eq!(cost(&[]), Value::Null);
    }
}
