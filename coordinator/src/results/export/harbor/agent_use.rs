//! Tokens and cost of a trial's agent, as Harbor has them.

use rollout_protocol::record::GatewaySummary;
use serde_json::{Value, json};

use crate::results::export::source::SettledTrial;

/// Tokens and cost, as far as the gateway knows them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct AgentUse {
    /// Input, cached input, which is a part of it, and output.
    tokens: Option<[u64; 3]>,
    cost: Option<f64>,
}

impl AgentUse {
    /// The use of the execution that settled a trial.
    pub(super) fn of(trial: &SettledTrial) -> Self {
        let record = trial.record.as_ref();
        record.and_then(|record| record.gateway.as_deref()).map_or_else(Self::default, Self::from)
    }

    /// Adds that of another trial. An unknown one adds nothing.
    pub(super) fn add(&mut self, other: &Self) {
        if let Some(more) = other.tokens {
            let known = self.tokens.unwrap_or_default();
            self.tokens = Some(std::array::from_fn(|at| known[at].saturating_add(more[at])));
        }
        if let Some(more) = other.cost {
            self.cost = Some(self.cost.unwrap_or_default() + more);
        }
    }

    /// Writes the members into an object.
    pub(super) fn write(&self, document: &mut Value) {
        let token = |at: usize| json!(self.tokens.map(|tokens| tokens[at]));
        document["n_input_tokens"] = token(0);
        document["n_cache_tokens"] = token(1);
        document["n_output_tokens"] = token(2);
        document["cost_usd"] = json!(self.cost);
    }
}

impl From<&GatewaySummary> for AgentUse {
    /// Tokens of servers that gave none are unknown, and so is a cost of which a part has no price.
    fn from(calls: &GatewaySummary) -> Self {
        let usage = calls.usage;
        let is_known = calls.calls == 0 || usage.total() > 0;
        Self {
            tokens: is_known.then_some([usage.input, usage.cached_input, usage.output]),
            cost: (calls.unpriced_calls == 0).then_some(calls.cost),
        }
    }
}
