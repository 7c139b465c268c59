//! Agents that follow the contract of a harness.

use std::fs;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use serde_json::{Value, json};

use crate::e2e::{DEADLINE, assert_adds_up, project};

/// A harness of two steps that keeps the whole contract.
const HARNESS: &str = r#"#!/bin/bash
test "$(cat)" = "$(cat "$AGENTLAB_TRIAL_INPUT")" || exit 9
version="sha256:$(sha256sum <"$ROLLOUT_CONTROL_PATH" | cut -d' ' -f1)"
ids=$(sed 's/.*"ids":\({[^}]*}\).*/\1/' "$ROLLOUT_TRIAL_INPUT")
seq=0
emit() {
  printf '{"event_type":"%s","ts":"%s","seq":%d,"ids":%s,"step_index":%d%s}\n' \
    "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$seq" "$ids" "$step" "$2" >>"$ROLLOUT_EVENTS_PATH"
  seq=$((seq + 1))
}
for step in 0 1; do
  emit agent_step_start
  emit model_call_end ',"call_id":"c","outcome":{"status":"ok"},"usage":{"tokens_in":5}'
  emit agent_step_end
  emit control_ack ",\"control_version\":\"$version\",\"action_observed\":\"continue\""
done
grep -q '"temperature":0.5' "$ROLLOUT_TRIAL_INPUT" && echo done >answer.txt
printf '{"schema_version":"trial_output_v1","ids":%s,"outcome":"success",%s}' "$ids" \
  '"objective":{"name":"score","value":0.25},"metrics":{"steps":2}' >"$ROLLOUT_TRIAL_OUTPUT"
"#;

const JOB: &str = r#"
name: j
n_concurrent_trials: 2
environment: {type: process, provider_config: {ignore_dockerfile: true}}
agents:
  - name: keeps-rules
    install: @INSTALL@
    harness:
      command: bash /tmp/harness.sh
      integration_level: cli_events
      events_path: /logs/agent/hook_events.jsonl
      bindings: {temperature: 0.5}
  - name: writes-no-events
    harness:
      command: |
        echo done > answer.txt
        echo '{"schema_version": "trial_output_v1", "outcome": "failure", "ids": {"run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0}}'
      integration_level: cli_events
      events_path: /events/hooks.jsonl
  - name: fails
    harness: {command: exit 3}
datasets: [{path: tasks}]
"#;

#[test]
fn harness_results_are_recorded_beside_rewards() {
    let install = format!("cat >/tmp/harness.sh <<'END'\n{HARNESS}END\n");
    let job = JOB.replace("@INSTALL@", &json!(install).to_string());
    let project = project()
        .write("job.yaml", &job)
        .write("tasks/t/task.toml", "version = '1.0'\n")
        .write("tasks/t/instruction.md", "Write the answer.\n")
        .write("tasks/t/environment/Dockerfile", "FROM debian:bookworm-slim\n")
        .write(
            "tasks/t/tests/test.sh",
            "test -s answer.txt && echo 1 >/logs/verifier/reward.txt\n",
        );
    let ended = project
        .rollout(&["run", "job.yaml", "--json"])
        .wait(DEADLINE)
        .expect_code(ExitCode::Success);
    let results = project.results("j");
    assert_adds_up(&results, 3);

    let good = results.trial("keeps-rules", "t");
    assert_eq!((good.reward(), good.error()), (Some(1.0), None), "{:#}", good.result);
    let harness = &good.result["harness"];
    assert_eq!(harness["output_source"], "file", "{harness:#}");
    assert_eq!(harness["objective"]["value"], 0.25);
    assert_eq!(harness["metrics"], json!({ "steps": 2.0 }));
    assert_eq!(
        (&harness["events"]["total"], &harness["events"]["violations"]["total"]),
        (&json!(8), &json!(0)),
        "{harness:#}"
    );
    let log = fs::read_to_string(good.directory.join("harness/hook_events.jsonl")).expect("events");
    assert_eq!(log.lines().count(), 8);
    for name in ["trial_input.json", "trial_output.json"] {
        let text = fs::read(good.directory.join("harness").join(name)).expect("a document");
        let document: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(document["ids"]["variant_id"], "keeps-rules", "{name}");
    }

    let silent = results.trial("writes-no-events", "t");
    assert_eq!((silent.reward(), silent.error()), (Some(1.0), None), "{:#}", silent.result);
    let harness = &silent.result["harness"];
    assert_eq!(
        (&harness["output_source"], &harness["outcome"]),
        (&json!("last_line"), &json!("failure"))
    );
    assert_eq!(harness["events"]["violations"]["first"][0]["rule"], "events_missing");

    let failed = results.trial("fails", "t");
    assert_eq!(failed.error(), Some("agent_execution_failed"), "{:#}", failed.result);
    assert_eq!(failed.result["error"]["class"], "agent");
    assert_eq!(failed.result["harness"]["output_source"], "synthesized");

    let settled =
        ended.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut summaries =
        settled.filter_map(|event| event.pointer("/settlement/verdict/harness").cloned());
    let objectives = summaries.by_ref().filter(|summary| summary["objective"]["value"] == 0.25);
    assert_eq!(objectives.count(), 1, "{}", ended.stdout);
    assert_tables(results.path());
}

/// Fails unless the analysis tables of the run have the figures of its harnesses.
fn assert_tables(run: &Path) {
    let cells = |table: &str, columns: &[&str]| -> Value {
        let path = run.join("tables").join(format!("{table}.jsonl"));
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        rows.map(|row| columns.iter().map(|column| row[column].clone()).collect::<Value>())
            .collect()
    };
    let columns = [
        "agent",
        "harness_outcome",
        "primary_metric_name",
        "primary_metric_value",
        "hook_events_total",
        "has_hook_events",
        "hook_violations",
    ];
    let expected = json!([
        ["keeps-rules", "success", "score", 0.25, 8, true, 0],
        ["writes-no-events", "failure", "reward", 1.0, 0, false, 1],
        ["fails", "error", "success", 0.0, null, false, null],
    ]);
    assert_eq!(cells("trials", &columns), expected);
    let expected = json!([
        ["keeps-rules", "agent_step_end", 2],
        ["keeps-rules", "agent_step_start", 2],
        ["keeps-rules", "control_ack", 2],
        ["keeps-rules", "model_call_end", 2],
    ]);
    let columns = ["agent", "event_type", "count"];
    assert_eq!(cells("event_counts_by_trial", &columns), expected);
    assert_eq!(cells("event_counts_by_agent", &columns), expected);
    let columns = ["agent", "metric_source", "metric_name", "metric_value"];
    let metrics = cells("metrics_long", &columns);
    for row in [
        json!(["keeps-rules", "objective", "score", 0.25]),
        json!(["keeps-rules", "harness", "steps", 2.0]),
        json!(["keeps-rules", "primary", "score", 0.25]),
    ] {
        assert!(metrics.as_array().is_some_and(|rows| rows.contains(&row)), "{row}: {metrics:#}");
    }
}
