//! Costs beside model calls whose cost is not known: unknown ones are null, never 0, and sums are lower
//! bounds.

use rollout_protocol::record::{GatewaySummary, SessionCalls, TokenUsage};
use rollout_protocol::spec::budget::ModelUse;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A cost of which `known` is known; `None` if nothing of it is. Beside calls without a known cost it is
/// a lower bound.
pub(crate) fn known_cost(known: f64, unpriced_calls: u64) -> Option<f64> {
    (known > 0.0 || unpriced_calls == 0).then_some(known)
}

/// A document with records in it. Records have 0 for a cost of which nothing is known, so that older
/// programs can read them; the document has null for it, everywhere.
#[derive(Debug)]
pub(crate) struct NullUnknownCosts<'a, T>(pub(crate) &'a T);

impl<T: Serialize> Serialize for NullUnknownCosts<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serde_json::to_value(self.0).map_err(S::Error::custom)?;
        // A document without such costs keeps the order of its fields.
        match replace_costs(&mut document, &as_in_documents) {
            true => document.serialize(serializer),
            false => self.0.serialize(serializer),
        }
    }
}

/// A document with the costs that records have, to read its records.
pub(crate) fn with_recorded_costs(mut document: Value) -> Value {
    replace_costs(&mut document, &as_in_records);
    document
}

/// The cost of a record for documents, if it is another one.
fn as_in_documents(cost: &Value, unpriced_calls: u64) -> Option<Value> {
    let known = known_cost(cost.as_f64()?, unpriced_calls);
    known.is_none().then_some(Value::Null)
}

/// The cost of a document for records, if it is another one.
fn as_in_records(cost: &Value, _: u64) -> Option<Value> {
    cost.is_null().then(|| Value::from(0.0))
}

/// Replaces the costs that stand beside a number of calls without a known cost, wherever they are.
/// Returns whether there are any.
fn replace_costs(document: &mut Value, replace: &impl Fn(&Value, u64) -> Option<Value>) -> bool {
    let mut replaced = false;
    match document {
        Value::Array(items) => {
            for item in items {
                replaced |= replace_costs(item, replace);
            }
        }
        Value::Object(fields) => {
            let own = fields.get("unpriced_calls");
            let calls = own.or_else(|| fields.get("model_use")?.get("unpriced_calls"));
            let unpriced_calls = calls.and_then(Value::as_u64).unwrap_or_default();
            if unpriced_calls > 0
                && let Some(cost) = fields.get_mut("cost")
                && let Some(other) = replace(cost, unpriced_calls)
            {
                *cost = other;
                replaced = true;
            }
            for field in fields.values_mut() {
                replaced |= replace_costs(field, replace);
            }
        }
        _ => {}
    }
    replaced
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
    use rollout_protocol::event::RunEvent;
    use rollout_protocol::record::{ExecutionEnd, LostReason, Verdict};
    use serde_json::json;

    use super::*;
    use crate::results::testing;

    /// The event of a settlement after a lost execution, each with a call without a known cost.
    fn settled(cost: f64) -> RunEvent {
        let model_use = ModelUse { calls: 2, unpriced_calls: 1, cost, ..ModelUse::NONE };
        let verdict = Verdict { cost, model_use, ..Verdict::completed(1.0) };
        let mut settlement = testing::settlement(testing::trial("a", "t", 1), 1, verdict);
        let mut lost = settlement.by.clone().expect("an execution");
        let reason = LostReason::WorkerDied;
        lost.end = ExecutionEnd::Lost { reason, phase: None, cost, model_use };
        settlement.superseded.push(lost);
        testing::settled(0, settlement)
    }

    #[test]
    fn unknown_costs_of_records_are_null_in_documents_and_are_read_back() {
        let document = |event: &RunEvent| json!(NullUnknownCosts(event));
        let costs = |document: &Value| {
            let settlement = &document["settlement"];
            let ends = [&settlement["by"]["end"], &settlement["superseded"][0]["end"]];
            let places = [&settlement["verdict"], &ends[0]["verdict"], ends[1]];
            let costs = places.map(|place| [&place["cost"], &place["model_use"]["cost"]]);
            costs.concat().into_iter().cloned().collect::<Vec<_>>()
        };
        for (cost, expected) in [(0.0, Value::Null), (0.5, json!(0.5))] {
            let event = settled(cost);
            let document = document(&event);
            assert_eq!(costs(&document), vec![expected; 6], "{document}");
            let read = serde_json::from_value::<RunEvent>(with_recorded_costs(document));
            assert_eq!(read.expect("an event"), event);
        }
        let priced = testing::settlement(testing::trial("a", "t", 1), 1, Verdict::completed(1.0));
        let event = testing::settled(0, priced);
        let text = serde_json::to_string(&NullUnknownCosts(&event)).expect("JSON");
        assert_eq!(text, serde_json::to_string(&event).expect("JSON"));
    }

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
