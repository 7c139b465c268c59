//! Tables of agents with a harness.

use rollout_protocol::record::HarnessSummary;

use super::*;
use crate::results::testing::{harness_summary, with_harness};

/// Columns of `trials` that are empty without a harness.
pub(super) const COLUMNS: [&str; 9] = [
    "integration_level",
    "harness_outcome",
    "objective_name",
    "objective_value",
    "objective_direction",
    "hook_events_total",
    "has_hook_events",
    "hook_violations",
    "metrics_left_out",
];

/// A settled trial of the agent `good` in the task `one`.
fn settled(attempt: u32, verdict: Verdict) -> Settlement {
    settlement(trial("good", "one", attempt), 1, verdict)
}

fn loss(value: f64) -> HarnessSummary {
    harness_summary("loss", value)
}

/// The cells of the agent `good` in `agent_summary`.
fn summary(tables: &JsonTables, columns: &[&str]) -> Value {
    json!(tables.cells("agent_summary", columns)[1])
}

#[test]
fn trials_row_of_harness_has_objective_and_events() {
    let silent = HarnessSummary { objective: None, events: None, ..loss(0.0) };
    let all = [
        settled(1, with_harness(passed(1.0), loss(0.25))),
        settled(2, with_harness(passed(1.0), silent)),
    ];
    let expected = json!([
        ["cli_events", "success", "loss", 0.25, "minimize", 3, true, 4, 1],
        ["cli_events", "success", null, null, null, null, false, null, 1],
    ]);
    let tables = tables(&all);
    assert_eq!(json!(tables.cells("trials", &COLUMNS)), expected);
    let primary = tables.cells("trials", &["primary_metric_name", "primary_metric_value"]);
    assert_eq!(json!(primary), json!([["loss", 0.25], ["reward", 1.0]]));
}

#[test]
fn metrics_long_has_objective_and_metrics_of_harness() {
    let tables = tables(&[settled(1, with_harness(passed(1.0), loss(0.25)))]);
    let columns = ["metric_name", "metric_value", "metric_text", "metric_source"];
    let expected = json!([
        ["reward", 1.0, null, "verifier"],
        ["total_sec", 2.5, null, "duration"],
        ["cost", 0.0, null, "cost"],
        ["loss", 0.25, null, "objective"],
        ["converged", null, "true", "harness"],
        ["note", null, "=SUM(1)", "harness"],
        ["steps", 2.0, null, "harness"],
        ["loss", 0.25, null, "primary"],
    ]);
    assert_eq!(json!(tables.cells("metrics_long", &columns)), expected);
}

#[test]
fn primary_metric_is_objective_unless_trial_is_not_scored() {
    let late = error(ErrorType::AgentExecutionTimeout, ErrorClass::Agent, "late");
    let all = [
        settled(1, with_harness(infrastructure(), loss(9.0))),
        settled(2, with_harness(failed(late), loss(2.0))),
    ];
    let tables = tables(&all);
    let columns = ["primary_metric_name", "primary_metric_value", "objective_value"];
    let expected = json!([[null, null, 9.0], ["loss", 2.0, 2.0]]);
    assert_eq!(json!(tables.cells("trials", &columns)), expected);
    let columns =
        ["primary_metric_name", "primary_metric_mean", "objective_mean", "objective_trials"];
    assert_eq!(summary(&tables, &columns), json!(["loss", 2.0, 5.5, 2]));
}

#[test]
fn agent_without_common_objective_has_mean_reward_as_primary_metric() {
    let columns = [
        "primary_metric_name",
        "primary_metric_mean",
        "objective_name",
        "objective_mean",
        "objective_trials",
    ];
    let first = settled(1, with_harness(passed(1.0), loss(0.25)));
    let partial = tables(&[first.clone(), settled(2, passed(0.0))]);
    assert_eq!(summary(&partial, &columns), json!(["reward", 0.5, "loss", 0.25, 1]));
    let other = settled(2, with_harness(passed(0.0), harness_summary("speed", 3.0)));
    let mixed = tables(&[first, other]);
    assert_eq!(summary(&mixed, &columns), json!(["reward", 0.5, null, null, 2]));
}

#[test]
fn event_counts_have_rows_of_types_with_events() {
    let mut more = loss(0.0);
    let events = more.events.as_mut().expect("events");
    events.counts = [("error", 0), ("tool_call_end", 5), ("later", 6), ("latest", u64::MAX)]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
    let all = [
        settlement(trial("base", "one", 1), 1, passed(1.0)),
        settled(1, with_harness(passed(1.0), loss(0.25))),
        settled(2, with_harness(passed(1.0), more)),
    ];
    let tables = tables(&all);
    let columns = ["agent", "dataset", "task", "attempt", "event_type", "count"];
    let expected = json!([
        ["good", "data", "one", 1, "agent_step_end", 2],
        ["good", "data", "one", 1, "tool_call_end", 1],
        // Unknown types, and a sum that no integer column can hold.
        ["good", "data", "one", 2, "other", null],
        ["good", "data", "one", 2, "tool_call_end", 5],
    ]);
    assert_eq!(json!(tables.cells("event_counts_by_trial", &columns)), expected);
    let columns = ["run_id", "agent", "event_type", "count", "trials"];
    let run = "07".repeat(16);
    let expected = json!([
        [run, "good", "agent_step_end", 2, 1],
        [run, "good", "other", null, 1],
        [run, "good", "tool_call_end", 6, 2],
    ]);
    assert_eq!(json!(tables.cells("event_counts_by_agent", &columns)), expected);
    let columns = ["objective_trials", "hook_events_total", "hook_violations"];
    assert_eq!(summary(&tables, &columns), json!([2, 6, 8]));
    assert_eq!(json!(tables.cells("agent_summary", &columns)[0]), json!([0, null, null]));
}

/// Fails unless the metrics and events of a trial are those of its row in `trials`.
#[track_caller]
pub(super) fn assert_other_tables_equal_trial(row: &Value, metrics: &[Value], events: &[Value]) {
    let objective = metrics.iter().find(|metric| metric["metric_source"] == "objective");
    let cell = |column: &str| objective.map_or(Value::Null, |metric| metric[column].clone());
    assert_eq!(cell("metric_name"), row["objective_name"]);
    assert_eq!(cell("metric_value"), row["objective_value"]);
    if !row["success"].is_null() && !row["objective_name"].is_null() {
        assert_eq!(row["primary_metric_name"], row["objective_name"]);
    }
    let sum: f64 = numbers(events.iter(), "count").iter().sum();
    assert_eq!(sum, row["hook_events_total"].as_f64().unwrap_or_default());
    assert_eq!(sum > 0.0, row["has_hook_events"] == true);
    assert!(events.iter().all(|event| event["count"] != 0), "{events:?}");
}

/// Fails unless the harness figures of every agent are those of its trials.
#[track_caller]
pub(super) fn assert_agents_equal_trials(tables: &JsonTables) {
    for summary in tables.rows("agent_summary") {
        let of = |table: &str| {
            let rows = tables.rows(table).iter();
            rows.filter(|row| row["agent"] == summary["agent"]).collect::<Vec<_>>()
        };
        let trials = of("trials");
        let values = numbers(trials.iter().copied(), "objective_value");
        assert_eq!(json!(values.len()), summary["objective_trials"]);
        let mut names: Vec<_> = trials.iter().map(|row| &row["objective_name"]).collect();
        names.retain(|name| !name.is_null());
        names.dedup();
        match names[..] {
            [name] => {
                assert_eq!(*name, summary["objective_name"]);
                assert_close(mean(&values), &summary["objective_mean"]);
            }
            _ => assert!(summary["objective_name"].is_null(), "{summary}"),
        }
        for column in ["hook_events_total", "hook_violations"] {
            let known = numbers(trials.iter().copied(), column);
            assert_close((!known.is_empty()).then(|| known.iter().sum()), &summary[column]);
        }
        let by_trial = of("event_counts_by_trial");
        let by_agent = of("event_counts_by_agent");
        for row in &by_agent {
            let same = by_trial.iter().filter(|other| other["event_type"] == row["event_type"]);
            let counts = numbers(same.copied(), "count");
            assert_close(Some(counts.iter().sum()), &row["count"]);
            assert_eq!(json!(counts.len()), row["trials"]);
        }
        let total = |rows: &[&Value]| numbers(rows.iter().copied(), "count").iter().sum::<f64>();
        assert_eq!(total(&by_agent), total(&by_trial));
    }
}
