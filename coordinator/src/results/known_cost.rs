//! Costs beside model calls whose cost is not known: unknown ones are null, never 0, and sums are lower
//! bounds.

use rollout_protocol::record::{GatewaySummary, SessionCalls, TokenUsage};
use rollout_protocol::spec::budget::ModelUse;
use serde::{Serialize, Serializer};

/// A cost of which `known` is known; `None` if nothing of it is. Beside calls without a known cost it is
/// a lower bound.
pub(crate) fn known_cost(known: f64, unpriced_calls: u64) -> Option<f64> {
    (known > 0.0 || unpriced_calls == 0).then_some(known)
}

/// The use of model calls, as documents have it.
#[derive(Debug, Serialize)]
struct ModelUseDocument {
    calls: u64,
    tokens: u64,
    cost: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    unpriced_calls: u64,
    #[serde(skip_serializing_if = "is_zero")]
    calls_without_ids: u64,
    sec: f64,
}

/// Model calls in numbers, as documents have them.
#[derive(Debug, Serialize)]
struct GatewayDocument {
    calls: u64,
    failed_calls: u64,
    cut_calls: u64,
    usage: TokenUsage,
    cost: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    unpriced_calls: u64,
    #[serde(skip_serializing_if = "is_zero")]
    calls_without_ids: u64,
    open_sec: f64,
    trajectories: u64,
    #[serde(skip_serializing_if = "is_zero")]
    crossed_calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionCalls>,
}

/// Serializes what model calls used, with null for a cost that is not known.
///
/// # Errors
/// Those of the serializer.
pub(crate) fn model_use<S: Serializer>(used: &ModelUse, serializer: S) -> Result<S::Ok, S::Error> {
    let ModelUse { calls, tokens, cost, unpriced_calls, calls_without_ids, sec } = *used;
    let cost = known_cost(cost, unpriced_calls);
    let document = ModelUseDocument { calls, tokens, cost, unpriced_calls, calls_without_ids, sec };
    document.serialize(serializer)
}

/// Serializes model calls in numbers, with null for a cost that is not known.
///
/// # Errors
/// Those of the serializer.
pub(crate) fn gateway<S: Serializer>(
    summary: &Option<&GatewaySummary>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let document = summary.map(|summary| {
        let GatewaySummary { calls, failed_calls, cut_calls, usage, cost, .. } = *summary;
        let GatewaySummary { unpriced_calls, calls_without_ids, open_sec, .. } = *summary;
        let GatewaySummary { trajectories, crossed_calls, session, .. } = *summary;
        let cost = known_cost(cost, unpriced_calls);
        GatewayDocument {
            calls,
            failed_calls,
            cut_calls,
            usage,
            cost,
            unpriced_calls,
            calls_without_ids,
            open_sec,
            trajectories,
            crossed_calls,
            session,
        }
    });
    document.serialize(serializer)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn cost_is_unknown_if_nothing_of_it_is_known() {
        let found = [(0.0, 0), (0.5, 0), (0.5, 2), (0.0, 2)];
        let found = found.map(|(known, unpriced)| known_cost(known, unpriced));
        assert_eq!(found, [Some(0.0), Some(0.5), Some(0.5), None]);
    }

    #[test]
    fn documents_differ_from_records_only_in_unknown_cost() {
        let serialized = |used: &ModelUse| model_use(used, serde_json::value::Serializer);
        let usage = TokenUsage { input: 7, output: 3, ..TokenUsage::default() };
        let mut summary = GatewaySummary {
            calls: 2,
            usage,
            cost: 0.5,
            open_sec: 1.5,
            ..GatewaySummary::default()
        };
        for (unpriced_calls, cost, expected) in
            [(0, 0.5, json!(0.5)), (1, 0.5, json!(0.5)), (2, 0.0, Value::Null)]
        {
            (summary.unpriced_calls, summary.cost) = (unpriced_calls, cost);
            let mut record = json!(summary.model_use());
            record["cost"] = expected.clone();
            assert_eq!(serialized(&summary.model_use()).expect("JSON"), record);
            let mut record = json!(summary);
            record["cost"] = expected;
            let found = gateway(&Some(&summary), serde_json::value::Serializer);
            assert_eq!(found.expect("JSON"), record);
        }
    }
}
