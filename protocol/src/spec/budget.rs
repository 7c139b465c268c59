//! Budgets of model calls: limits on what an execution, an agent or a run may use.

use serde::{Deserialize, Serialize};

/// Default of [`TryBudget::output_reserve`].
pub const DEFAULT_OUTPUT_RESERVE: u64 = 4096;

/// Use of model calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelUse {
    /// Calls.
    #[serde(default)]
    pub calls: u64,
    /// Input and output tokens.
    #[serde(default)]
    pub tokens: u64,
    /// Cost of the tokens, in the user's currency.
    #[serde(default, deserialize_with = "crate::cost::read")]
    pub cost: f64,
    /// Calls whose cost is not known, and not part of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unpriced_calls: u64,
    /// Calls to servers with `capture: tokens` whose reply has no token ids.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub calls_without_ids: u64,
    /// Time in which calls were open, seconds; that of concurrent calls is added up.
    #[serde(default, deserialize_with = "crate::cost::read")]
    pub sec: f64,
}

impl ModelUse {
    /// Nothing.
    pub const NONE: Self =
        Self { calls: 0, tokens: 0, cost: 0.0, unpriced_calls: 0, calls_without_ids: 0, sec: 0.0 };

    /// Whether it is nothing at all.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            tokens: self.tokens.saturating_add(other.tokens),
            cost: self.cost + other.cost,
            unpriced_calls: self.unpriced_calls.saturating_add(other.unpriced_calls),
            calls_without_ids: self.calls_without_ids.saturating_add(other.calls_without_ids),
            sec: self.sec + other.sec,
        }
    }

    /// This without `other`, which is a part of it.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(other.calls),
            tokens: self.tokens.saturating_sub(other.tokens),
            cost: (self.cost - other.cost).max(0.0),
            unpriced_calls: self.unpriced_calls.saturating_sub(other.unpriced_calls),
            calls_without_ids: self.calls_without_ids.saturating_sub(other.calls_without_ids),
            sec: (self.sec - other.sec).max(0.0),
        }
    }

    /// This, `times` times.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self {
            calls: self.calls.saturating_mul(times),
            tokens: self.tokens.saturating_mul(times),
            cost: self.cost * times as f64,
            unpriced_calls: self.unpriced_calls.saturating_mul(times),
            calls_without_ids: self.calls_without_ids.saturating_mul(times),
            sec: self.sec * times as f64,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Limits on what model calls may use; an absent one does not limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BudgetLimits {
    /// Cost of the tokens, in the user's currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Time in which calls are open, seconds; that of concurrent calls is added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sec: Option<f64>,
}

/// Sums of costs and of times differ from exact ones by less than this.
const ROUNDING: f64 = 1e-9;

impl BudgetLimits {
    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// The first limit that `used` exceeds, in words: `cost 1.52 of 1.5`.
    pub fn exceeded_by(&self, used: ModelUse) -> Option<String> {
        let above = |used: f64, limit: Option<f64>| limit.filter(|limit| used > limit + ROUNDING);
        if let Some(limit) = above(used.cost, self.cost) {
            return Some(format!("cost {:.6} of {limit}", used.cost));
        }
        if let Some(limit) = self.tokens.filter(|limit| used.tokens > *limit) {
            return Some(format!("{} of {limit} tokens", used.tokens));
        }
        if let Some(limit) = self.calls.filter(|limit| used.calls > *limit) {
            return Some(format!("{} of {limit} calls", used.calls));
        }
        let limit = above(used.sec, self.sec)?;
        Some(format!("{:.1} of {limit} s of model calls", used.sec))
    }

    /// The most that can be used within the limits; nothing of what is not limited.
    pub fn most(&self) -> ModelUse {
        ModelUse {
            calls: self.calls.unwrap_or_default(),
            tokens: self.tokens.unwrap_or_default(),
            cost: self.cost.unwrap_or_default(),
            unpriced_calls: 0,
            calls_without_ids: 0,
            sec: self.sec.unwrap_or_default(),
        }
    }
}

/// The budget of each execution of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TryBudget {
    /// Its limits.
    #[serde(flatten)]
    pub limits: BudgetLimits,
    /// Output tokens that a call reserves before it is sent, if its request does not ask for fewer.
    pub output_reserve: u64,
}

/// The budgets of a run and of each of its agents. Both are divided into the budgets of executions:
/// one begins only if what is left covers its whole budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunBudget {
    /// Limits of the run.
    #[serde(default)]
    pub run: BudgetLimits,
    /// Limits of each agent.
    #[serde(default)]
    pub agent: BudgetLimits,
    /// The most that an execution uses.
    #[serde(default)]
    pub each_try: BudgetLimits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_name_the_first_amount_above_them() {
        let limits =
            BudgetLimits { cost: Some(0.3), tokens: Some(10), calls: Some(2), sec: Some(1.0) };
        let used =
            ModelUse { calls: 2, tokens: 10, cost: 0.1 + 0.2, sec: 1.0, ..ModelUse::default() };
        assert_eq!(limits.exceeded_by(used), None, "the limit itself may be used");
        let more = |more: ModelUse| limits.exceeded_by(used.plus(more));
        let cost = more(ModelUse { cost: 0.01, ..ModelUse::default() });
        assert_eq!(cost.as_deref(), Some("cost 0.310000 of 0.3"));
        let calls = more(ModelUse { calls: 1, ..ModelUse::default() });
        assert_eq!(calls.as_deref(), Some("3 of 2 calls"));
        let tokens = more(ModelUse { tokens: 1, calls: 1, ..ModelUse::default() });
        assert_eq!(tokens.as_deref(), Some("11 of 10 tokens"));
        assert!(more(ModelUse { sec: 0.5, ..ModelUse::default() }).is_some());
        assert_eq!(BudgetLimits::default().exceeded_by(used.times(1000)), None);
    }

    #[test]
    fn use_of_a_hostile_report_cannot_lower_a_sum() {
        let read: ModelUse =
            serde_json::from_str(r#"{"calls": 3, "cost": -5, "sec": 1e300}"#).expect("read");
        assert_eq!(read, ModelUse { calls: 3, ..ModelUse::default() });
    }
}
