//! Model calls of the agents of a search, in numbers.

use rollout_protocol::record::GatewaySummary;
use rollout_protocol::spec::eval::EvalStage;
use serde::{Deserialize, Serialize};

use super::SearchManifest;

/// The model calls of an agent in one step: of all attempts, as far as their records are known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepCalls {
    /// The step.
    pub stage: EvalStage,
    /// Calls.
    pub calls: u64,
    /// Input tokens, those of the cache included.
    pub input_tokens: u64,
    /// Input tokens that the server read from its cache.
    pub cached_input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Their cost.
    pub cost: f64,
}

impl StepCalls {
    /// No calls of a step.
    pub fn none(stage: EvalStage) -> Self {
        let (calls, input_tokens, cached_input_tokens, output_tokens) = (0, 0, 0, 0);
        Self { stage, calls, input_tokens, cached_input_tokens, output_tokens, cost: 0.0 }
    }

    /// The calls of one execution of a step.
    pub fn of(stage: EvalStage, summary: &GatewaySummary) -> Self {
        Self {
            stage,
            calls: summary.calls,
            input_tokens: summary.usage.input,
            cached_input_tokens: summary.usage.cached_input,
            output_tokens: summary.usage.output,
            cost: summary.cost,
        }
    }

    /// Adds other calls.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.input_tokens += other.input_tokens;
        self.cached_input_tokens += other.cached_input_tokens;
        self.output_tokens += other.output_tokens;
        self.cost += other.cost;
    }
}

/// Adds the calls of steps to those of the same steps.
pub fn add_calls(sums: &mut Vec<StepCalls>, more: &[StepCalls]) {
    for calls in more {
        match sums.iter_mut().find(|sum| sum.stage == calls.stage) {
            Some(sum) => sum.add(calls),
            None => sums.push(calls.clone()),
        }
    }
    sums.sort_by_key(|sum| sum.stage);
}

/// Cost of a part of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SpendingSummary {
    /// Cost of model calls, and cost that commands reported; discarded results included for the whole
    /// search only.
    pub cost: f64,
    /// The part of it that agents' model calls have, by step.
    pub calls: Vec<StepCalls>,
}

impl SpendingSummary {
    fn add(&mut self, cost: Option<f64>, calls: &[StepCalls]) {
        self.cost += cost.unwrap_or(0.0);
        add_calls(&mut self.calls, calls);
    }

    /// Whether nothing was spent that is known.
    pub fn is_nothing(&self) -> bool {
        self.calls.is_empty() && self.cost <= 0.0
    }

    /// Calls and tokens of all steps.
    pub fn total_calls(&self) -> StepCalls {
        let mut total = StepCalls::none(EvalStage::Ideas);
        self.calls.iter().for_each(|calls| total.add(calls));
        total
    }
}

impl SearchManifest {
    /// Cost of the search so far. Sums are in the order of numbers, so that they are reproducible.
    pub fn spending(&self) -> SpendingSummary {
        let mut sum = SpendingSummary { cost: self.state.thrown_away.cost, calls: Vec::new() };
        for node in self.nodes.values() {
            sum.add(node.ideas_cost, &node.ideas_calls);
        }
        for eval in self.evaluations.values() {
            sum.add(eval.cost, &eval.calls);
        }
        sum
    }

    /// The depths that have nodes, from 0.
    pub fn depths(&self) -> std::ops::RangeInclusive<u32> {
        0..=self.nodes.values().map(|node| node.depth).max().unwrap_or_default()
    }

    /// Cost of the ideas of a depth and of the evals on its nodes.
    pub fn spending_at(&self, depth: u32) -> SpendingSummary {
        let mut sum = SpendingSummary::default();
        for node in self.nodes.values().filter(|node| node.depth == depth) {
            let own = self.spending_of(node.node_id);
            sum.add(Some(own.cost), &own.calls);
        }
        sum
    }

    /// Cost of the ideas of a node and of the evals on it.
    pub fn spending_of(&self, id: super::NodeId) -> SpendingSummary {
        let mut sum = SpendingSummary::default();
        if let Some(node) = self.nodes.get(&id) {
            sum.add(node.ideas_cost, &node.ideas_calls);
        }
        for eval in self.evaluations.values().filter(|eval| eval.parent_node_id == id) {
            sum.add(eval.cost, &eval.calls);
        }
        sum
    }
}
