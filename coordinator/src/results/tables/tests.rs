mod harness;

use std::collections::BTreeMap;

use proptest::prelude::*;
use rollout_protocol::error::{ErrorClass, ErrorType};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{
    Durations, Execution, ExecutionEnd, LostReason, Settlement, Verdict,
};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::spec::guardrail::Guardrail;
use serde_json::{Value, json};

use super::*;
use crate::results::report::{JobResult, Ledger, RunOverview};
use crate::results::rows::write_line;
use crate::results::testing::strategies::{execution_end, verdict};
use crate::results::testing::{self, at, error, failed, passed, settlement, trial};

const AGENTS: [&str; 3] = ["base", "good", "bad"];

/// The rows of each table as JSON.
#[derive(Debug, Default)]
pub(super) struct JsonTables(BTreeMap<&'static str, Vec<Value>>);

impl TableSink for JsonTables {
    fn add<T: Table>(&mut self, row: &T::Row<'_>) -> Result<(), RowsError> {
        let mut line = Vec::new();
        write_line::<T>(row, &mut line);
        let row = serde_json::from_slice(&line).expect("JSON");
        self.0.entry(T::NAME).or_default().push(row);
        Ok(())
    }
}

impl JsonTables {
    fn rows(&self, table: &str) -> &[Value] {
        self.0.get(table).map_or(&[], Vec::as_slice)
    }

    /// The cells of some columns, row by row.
    fn cells(&self, table: &str, columns: &[&str]) -> Vec<Vec<Value>> {
        let cells = |row: &Value| columns.iter().map(|column| row[column].clone()).collect();
        self.rows(table).iter().map(cells).collect()
    }
}

pub(super) fn plan() -> JobPlan {
    let about = |_: &str| {
        serde_json::from_value(json!({"metadata": {"difficulty": "hard"}})).expect("metadata")
    };
    let guardrails = vec![
        Guardrail { metric_id: "turn_count".to_owned(), max: None },
        Guardrail { metric_id: "cost_usd".to_owned(), max: Some(2.5) },
    ];
    testing::plan(&AGENTS, &["one", "two"], 2, about).with_guardrails(guardrails)
}

/// The tables of settlements in any order.
fn tables(settlements: &[Settlement]) -> JsonTables {
    let plan = plan();
    let mut ordered: Vec<_> = (settlements.iter())
        .map(|settled| (plan.ordinal(settled.trial().expect("a trial")).expect("planned"), settled))
        .collect();
    ordered.sort_by_key(|(ordinal, _)| *ordinal);
    let settled = ordered.into_iter().map(|(ordinal, settled)| Ok((ordinal, settled.clone())));
    let mut tables = JsonTables::default();
    derive(testing::run(), &plan, settled, &mut tables).expect("no IO");
    tables
}

fn several(reward: Option<f64>, numbers: &[(&str, f64)]) -> Verdict {
    let rewards = numbers.iter().map(|(key, number)| ((*key).to_owned(), *number)).collect();
    Verdict { reward, rewards, ..Verdict::completed(0.0) }
}

fn infrastructure() -> Verdict {
    failed(error(ErrorType::EnvironmentStartFailed, ErrorClass::Infrastructure, "no room"))
}

/// A trial that failed once, was lost once, and passed at last.
fn retried() -> Settlement {
    let model_use = ModelUse {
        calls: 4,
        tokens: 900,
        cost: 0.5,
        unpriced_calls: 1,
        sec: 1.5,
        ..ModelUse::NONE
    };
    let verdict = Verdict { cost: 0.5, model_use, ..passed(1.0) };
    let mut settled = settlement(trial("base", "one", 1), 3, verdict);
    let last = settled.by.clone().expect("an execution");
    let failed = Verdict { cost: 0.25, ..infrastructure() };
    let failed = ExecutionEnd::Reported { verdict: failed };
    let reason = LostReason::WorkerDied;
    let lost =
        ExecutionEnd::Lost { reason, phase: Some(Phase::Verification), cost: 1.0, model_use };
    settled.superseded = vec![
        Execution { end: failed, ..last.clone() },
        Execution { end: lost, durations: None, timestamps: None, ..last },
    ];
    settled
}

#[test]
fn trials_row_has_result_task_and_totals_of_executions() {
    let tables = tables(&[retried()]);
    let [row] = tables.rows("trials") else { panic!("one row: {tables:?}") };
    let mut expected = json!({
        "run_id": "07".repeat(16), "trial_id": trial("base", "one", 1).item().to_string(),
        "agent": "base", "dataset": "data", "task": "one", "attempt": 1, "ordinal": 0,
        "outcome": "completed", "success": true, "failure": null, "reward": 1.0, "rewards": null,
        "primary_metric_name": "reward", "primary_metric_value": 1.0, "error_type": null,
        "error_code": null, "error_class": null, "error_phase": null, "error_message": null,
        "unverified_steps": null, "format_doubt": null, "cost": 1.75, "tries": 3, "retries": 1, "lost_executions": 1,
        "total_sec": 2.5, "environment_setup_sec": null, "agent_setup_sec": null,
        "agent_execution_sec": null, "verifier_sec": null, "started_at": "2025-06-15T15:06:41Z",
        "ended_at": "2025-06-15T15:06:41Z", "settled_at": "2025-06-15T15:06:49Z",
        "provider": "docker", "worker": "worker-1", "task_format": null,
        "task_digest": plan().tasks()[0].files.to_string(), "task_git_commit_id": null,
        "task_metadata": {"difficulty": "hard"},
    });
    for column in harness::COLUMNS {
        expected[column] = Value::Null;
    }
    for (column, number) in
        [("model_calls", 8.0), ("tokens", 1800.0), ("unpriced_calls", 2.0), ("model_sec", 3.0)]
    {
        assert_eq!(row[column].as_f64(), Some(number), "{column}");
        expected[column] = row[column].clone();
    }
    assert_eq!(row, &expected);
}

#[test]
fn trials_that_are_not_scored_have_neither_success_nor_primary_metric() {
    let agent = failed(error(ErrorType::AgentExecutionTimeout, ErrorClass::Agent, "late"));
    let never_ran = settlement(trial("base", "two", 2), 4, Verdict::cancelled(0.0));
    let settled = [
        settlement(trial("base", "one", 1), 1, infrastructure()),
        settlement(trial("base", "one", 2), 2, agent),
        settlement(trial("base", "two", 1), 3, several(None, &[("a", 1.0)])),
        Settlement { by: None, ..never_ran },
    ];
    let columns = ["outcome", "success", "failure", "primary_metric_name", "primary_metric_value"];
    let cells = tables(&settled).cells("trials", &columns);
    let expected = json!([
        ["failed", null, "infrastructure", null, null],
        ["failed", false, "agent", "success", 0.0],
        ["completed", false, null, "success", 0.0],
        ["cancelled", null, null, null, null],
    ]);
    assert_eq!(json!(cells), expected);
}

#[test]
fn tries_of_retried_trial_are_in_order_with_the_settling_one_last() {
    let never_ran = settlement(trial("base", "two", 1), 4, Verdict::cancelled(0.0));
    let tables = tables(&[retried(), Settlement { by: None, ..never_ran }]);
    let columns =
        ["task", "try_index", "settled", "end", "lost_reason", "lost_phase", "outcome", "reward"];
    let expected = json!([
        ["one", 0, false, "reported", null, null, "failed", null],
        ["one", 1, false, "lost", "worker_died", "verification", null, null],
        ["one", 2, true, "reported", null, null, "completed", 1.0],
    ]);
    assert_eq!(json!(tables.cells("tries", &columns)), expected);
    let columns = ["error_type", "cost", "total_sec", "model_calls", "tokens", "model_sec"];
    let expected = json!([
        ["environment_start_failed", 0.25, 2.5, 0, 0, 0.0],
        [null, 1.0, null, 4, 900, 1.5],
        [null, 0.5, 2.5, 4, 900, 1.5],
    ]);
    assert_eq!(json!(tables.cells("tries", &columns)), expected);
}

#[test]
fn metrics_long_has_a_row_per_value_and_the_primary_metric() {
    let late = error(ErrorType::AgentExecutionTimeout, ErrorClass::Agent, "late");
    let model_use = ModelUse { calls: 4, tokens: 900, sec: 1.5, ..ModelUse::NONE };
    let verdict = Verdict {
        cost: f64::INFINITY,
        model_use,
        error: Some(late),
        ..several(Some(0.5), &[("reward", 0.5), ("speed", -2.0)])
    };
    let mut settled = settlement(trial("good", "one", 2), 1, verdict);
    let durations = Durations { verifier_sec: Some(0.25), total_sec: 2.5, ..Durations::default() };
    settled.by.as_mut().expect("an execution").durations = Some(durations);
    let columns = ["metric_name", "metric_value", "metric_text", "metric_source"];
    let tables = tables(&[settled]);
    let expected = json!([
        ["reward", 0.5, null, "verifier"],
        ["reward.reward", 0.5, null, "verifier"],
        ["reward.speed", -2.0, null, "verifier"],
        ["total_sec", 2.5, null, "duration"],
        ["verifier_sec", 0.25, null, "duration"],
        ["cost", null, "inf", "cost"],
        ["model_calls", 4.0, null, "model"],
        ["tokens", 900.0, null, "model"],
        ["unpriced_calls", 0.0, null, "model"],
        ["model_sec", 1.5, null, "model"],
        ["error_type", null, "agent_execution_timeout", "error"],
        ["reward", 0.5, null, "primary"],
    ]);
    assert_eq!(json!(tables.cells("metrics_long", &columns)), expected);
    let names = ["run_id", "agent", "dataset", "task", "attempt", "outcome"];
    let first = &tables.cells("metrics_long", &names)[0];
    assert_eq!(json!(first), json!(["07".repeat(16), "good", "data", "one", 2, "completed"]));
}

#[test]
fn comparisons_pair_scored_trials_of_same_task_and_attempt() {
    let settled: Vec<_> = [
        ("base", "one", 1, passed(1.0)),
        ("base", "one", 2, passed(0.0)),
        ("base", "two", 1, passed(0.0)),
        ("base", "two", 2, infrastructure()),
        // A tie, a win, an unsettled trial, and no partner.
        ("good", "one", 1, passed(1.0)),
        ("good", "one", 2, passed(1.0)),
        ("good", "two", 2, passed(1.0)),
        // A loss, no partner, a tie.
        ("bad", "one", 1, passed(0.5)),
        ("bad", "one", 2, infrastructure()),
        ("bad", "two", 1, passed(0.25)),
    ]
    .into_iter()
    .map(|(agent, task, attempt, verdict)| settlement(trial(agent, task, attempt), 1, verdict))
    .collect();
    let columns = [
        "baseline_agent",
        "agent",
        "baseline_success_rate",
        "agent_success_rate",
        "difference",
        "pairs",
        "wins",
        "losses",
        "ties",
        "baseline_scored_mean_reward",
        "agent_scored_mean_reward",
    ];
    let third = 1.0 / 3.0;
    let expected = json!([
        ["base", "good", third, 1.0, 1.0 - third, 2, 1, 0, 1, third, 1.0],
        ["base", "bad", third, 0.0, 0.0 - third, 2, 0, 1, 1, third, 0.375],
    ]);
    assert_eq!(json!(tables(&settled).cells("comparisons", &columns)), expected);
}

#[test]
fn tables_of_run_without_settlements_have_agents_and_guardrails_only() {
    let tables = tables(&[]);
    let written = [&"agent_summary", &"comparisons", &"guardrails"];
    assert_eq!(tables.0.keys().collect::<Vec<_>>(), written);
    let guardrails = tables.cells("guardrails", &["metric_id", "max"]);
    assert_eq!(json!(guardrails), json!([["turn_count", null], ["cost_usd", 2.5]]));
    let columns = ["agent", "total", "skipped", "success_rate", "primary_metric_mean"];
    let agent = |name: &str| json!([name, 4, 4, null, null]);
    assert_eq!(json!(tables.cells("agent_summary", &columns)), json!(AGENTS.map(agent)));
}

/// The result of the same settlements, as in `result.json`.
fn job_result(settlements: &[Settlement]) -> Value {
    let plan = plan();
    let mut ledger = Ledger::default();
    for settled in settlements {
        let ordinal = plan.ordinal(settled.trial().expect("a trial")).expect("planned");
        ledger.add(ordinal, settled);
    }
    ledger.sort();
    let overview = RunOverview {
        run: testing::run(),
        job: "job".into(),
        started_at: at(0),
        ended_at: at(1),
        cancelled: false,
    };
    let agents = AGENTS.map(|name| AgentTotal { name: name.into(), total: 4 });
    json!(JobResult::new(overview, &agents, &[], &ledger))
}

/// Some of the plan's trials, settled, in any order.
fn settlements() -> impl Strategy<Value = Vec<Settlement>> {
    let one =
        prop::option::weighted(0.8, (verdict(), prop::collection::vec(execution_end(), 0..3)));
    let all = prop::collection::vec(one, 12).prop_map(|all| {
        let names = plan().trials().map(|planned| planned.name).collect::<Vec<_>>();
        let settled = names.into_iter().zip(all).filter_map(|(name, settled)| {
            let (verdict, ends) = settled?;
            let mut settled = settlement(name, 1, verdict);
            let by = settled.by.clone().expect("an execution");
            settled.superseded =
                ends.into_iter().map(|end| Execution { end, ..by.clone() }).collect();
            Some(settled)
        });
        settled.collect::<Vec<_>>()
    });
    all.prop_shuffle()
}

/// Numbers of a column in some rows, without nulls.
fn numbers<'a>(rows: impl Iterator<Item = &'a Value>, column: &str) -> Vec<f64> {
    let number =
        |cell: &Value| cell.as_f64().or_else(|| cell.as_bool().map(|b| f64::from(u8::from(b))));
    rows.filter_map(|row| number(&row[column])).collect()
}

fn mean(numbers: &[f64]) -> Option<f64> {
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

#[track_caller]
fn assert_close(found: Option<f64>, expected: &Value) {
    let close = match (found, expected.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0),
        (a, b) => a.is_none() && b.is_none(),
    };
    assert!(close, "{found:?} instead of {expected}");
}

/// Checks that the cost is the sum of the costs of its parts, and null if nothing of it is known.
#[track_caller]
fn assert_costs_add_up<'a>(parts: impl Iterator<Item = &'a Value>, whole: &Value) {
    let sum: f64 = numbers(parts, "cost").iter().sum();
    let is_unknown = sum <= 0.0 && whole["unpriced_calls"].as_u64() > Some(0);
    assert_close((!is_unknown).then_some(sum), &whole["cost"]);
}

/// Columns of `agent_summary`, and the same figures of an agent in `result.json`.
const SAME_FIGURES: [(&str, &str); 22] = [
    ("total", "/total_trials"),
    ("completed", "/completed_trials"),
    ("failed", "/failed_trials"),
    ("cancelled", "/cancelled_trials"),
    ("unverified", "/unverified_trials"),
    ("skipped", "/skipped_trials"),
    ("completed_with_error", "/completed_with_error_trials"),
    ("infrastructure_failures", "/failures/infrastructure"),
    ("agent_failures", "/failures/agent"),
    ("verifier_failures", "/failures/verifier"),
    ("task_failures", "/failures/task"),
    ("task_failures_before_agent", "/task_failures_before_agent"),
    ("unsupported_failures", "/failures/unsupported"),
    ("scored", "/scored/trials"),
    ("passed", "/passed_trials"),
    ("passed", "/scored/passed"),
    ("success_rate", "/scored/pass_rate"),
    ("success_rate_low", "/scored/pass_rate_low"),
    ("success_rate_high", "/scored/pass_rate_high"),
    ("scored_mean_reward", "/scored/mean_reward"),
    ("mean_reward", "/mean_reward"),
    ("cost", "/total_cost"),
];

fn assert_summary_equals_result(tables: &JsonTables, result: &Value) {
    for row in tables.rows("agent_summary") {
        let agent = &result["agents"][row["agent"].as_str().expect("a name")];
        for (column, key) in SAME_FIGURES {
            assert_eq!(Some(&row[column]), agent.pointer(key), "{column}");
        }
    }
    for column in ["retries", "lost_executions"] {
        let sum: f64 = numbers(tables.rows("agent_summary").iter(), column).iter().sum();
        assert_eq!(Some(sum), result[column].as_f64(), "{column}");
    }
}

fn assert_trials_add_up_to_summary(tables: &JsonTables) {
    for summary in tables.rows("agent_summary") {
        let rows = || tables.rows("trials").iter().filter(|row| row["agent"] == summary["agent"]);
        for outcome in ["completed", "failed", "cancelled", "unverified"] {
            let count = rows().filter(|row| row["outcome"] == outcome).count();
            assert_eq!(json!(count), summary[outcome], "{outcome}");
        }
        for party in ["infrastructure", "agent", "verifier", "task", "unsupported"] {
            let count = rows().filter(|row| row["failure"] == party).count();
            assert_eq!(json!(count), summary[format!("{party}_failures")], "{party}");
        }
        let success = numbers(rows(), "success");
        assert_eq!(json!(success.len()), summary["scored"]);
        assert_close(mean(&success), &summary["success_rate"]);
        assert_close(mean(&numbers(rows(), "reward")), &summary["mean_reward"]);
        assert_costs_add_up(rows(), summary);
        for column in ["model_calls", "tokens", "unpriced_calls", "model_sec"] {
            assert_close(Some(numbers(rows(), column).iter().sum()), &summary[column]);
        }
        assert_close(Some(numbers(rows(), "retries").iter().sum()), &summary["retries"]);
        // The mean of the primary metric is that of its values, unless some trials have an
        // objective, or verifiers report several numbers without a reward.
        let scored = || rows().filter(|row| !row["success"].is_null());
        let objective = summary["primary_metric_name"] == summary["objective_name"]
            && !summary["objective_name"].is_null();
        let plain = scored().all(|row| row["objective_name"].is_null())
            && rows().all(|row| row["outcome"] != "completed" || !row["reward"].is_null());
        if objective || plain {
            let primary = mean(&numbers(rows(), "primary_metric_value"));
            assert_close(primary, &summary["primary_metric_mean"]);
        }
    }
}

fn assert_other_tables_equal_trials(tables: &JsonTables) {
    for row in tables.rows("trials") {
        let of = |table: &str| {
            let same = |other: &&Value| other["trial_id"] == row["trial_id"];
            tables.rows(table).iter().filter(same).cloned().collect::<Vec<_>>()
        };
        let tries = of("tries");
        assert_eq!(json!(tries.len()), row["tries"]);
        assert_costs_add_up(tries.iter(), row);
        for column in ["model_calls", "tokens", "unpriced_calls", "model_sec"] {
            assert_close(Some(numbers(tries.iter(), column).iter().sum()), &row[column]);
        }
        let metrics = of("metrics_long");
        let primary = metrics.iter().find(|metric| metric["metric_source"] == "primary");
        let cell = |column: &str| primary.map_or(Value::Null, |metric| metric[column].clone());
        assert_eq!(cell("metric_name"), row["primary_metric_name"]);
        assert_eq!(cell("metric_value"), row["primary_metric_value"]);
        harness::assert_other_tables_equal_trial(row, &metrics, &of("event_counts_by_trial"));
    }
}

fn assert_comparisons_equal_trials(tables: &JsonTables) {
    let success = |agent: &Value| -> BTreeMap<String, bool> {
        let rows = tables.rows("trials").iter().filter(|row| row["agent"] == *agent);
        rows.filter_map(|row| {
            let key = json!([row["dataset"], row["task"], row["attempt"]]).to_string();
            Some((key, row["success"].as_bool()?))
        })
        .collect()
    };
    for row in tables.rows("comparisons") {
        let (baseline, agent) = (success(&row["baseline_agent"]), success(&row["agent"]));
        let pairs = agent.iter().filter_map(|(key, agent)| Some((*baseline.get(key)?, *agent)));
        let pairs: Vec<_> = pairs.collect();
        let count = |pair| pairs.iter().filter(|found| **found == pair).count();
        assert_eq!(row["pairs"], json!(pairs.len()));
        assert_eq!(row["wins"], json!(count((false, true))));
        assert_eq!(row["losses"], json!(count((true, false))));
        assert_eq!(row["ties"], json!(count((true, true)) + count((false, false))));
    }
}

proptest! {
    #[test]
    fn tables_agree_with_each_other_and_with_result(settled in settlements()) {
        let tables = tables(&settled);
        prop_assert_eq!(tables.rows("trials").len(), settled.len());
        prop_assert_eq!(tables.rows("agent_summary").len(), AGENTS.len());
        prop_assert_eq!(tables.rows("comparisons").len(), AGENTS.len() - 1);
        assert_summary_equals_result(&tables, &job_result(&settled));
        assert_trials_add_up_to_summary(&tables);
        assert_other_tables_equal_trials(&tables);
        assert_comparisons_equal_trials(&tables);
        harness::assert_agents_equal_trials(&tables);
    }
}
