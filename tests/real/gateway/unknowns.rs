//! Model calls without token ids and prices, and the limits that an agent is told.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::REAL_KEY;
use rollout_tests::model_server::ModelServer;
use serde_json::{Value, json};

use crate::gateway::DEADLINE;
use crate::gateway::fixture::project_with;

#[test]
fn missing_token_ids_and_prices_are_said_counted_and_null_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    let upstreams = format!(
        "- {{name: router, url: '{}/v1', key_env: MODEL_KEY, capture: tokens}}",
        server.origin()
    );
    // The server gives token ids in chat completions only.
    let agent = r#"
limits = json.load(open(os.environ["ROLLOUT_LIMITS"]))
assert limits["deadline"] == int(os.environ["ROLLOUT_DEADLINE"]), limits
assert limits["timeout_sec"] == float(os.environ["ROLLOUT_TIMEOUT_SEC"]), limits
for dialect in ["responses", "responses", "chat"]:
    status, reply = ask(dialect, "x", "x")
    assert status == 200, reply
"#;
    let project = project_with(&upstreams, agent, "");
    let mut command = project.command(&["run", "job.yaml"]);
    command.env("MODEL_KEY", REAL_KEY);
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let said = format!("{}{}", ended.stdout, ended.stderr);
    for text in [
        "the model server `router` gives no token ids",
        "2 model calls of the first trial concerned have no token ids",
        "no token ids in 2 of 3 model calls",
        "unknown",
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
    let trial = project.results("calls").trial("caller", "t");
    let gateway = &trial.result["gateway"];
    assert_eq!((&gateway["calls_without_ids"], &gateway["cost"]), (&json!(2), &Value::Null));
    assert_eq!(
        (&trial.result["cost"], &trial.result["cost_is_lower_bound"]),
        (&Value::Null, &json!(true))
    );
    let command = project.command(&["status", "jobs/calls", "--json"]);
    let status = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!((&status["total_cost"], &status["model_use"]["cost"]), (&Value::Null, &Value::Null));
    assert_eq!(status["total_cost_is_lower_bound"], true);
    assert_eq!(status["model_use"]["calls_without_ids"], 2);
    let command = project.command(&["show", "jobs/calls", "caller", "--json"]);
    let shown = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!((&shown["cost"], &shown["cost_is_lower_bound"]), (&Value::Null, &json!(true)));
    let command = project.command(&["events", "jobs/calls", "--json"]);
    let events = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    let mut events = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let settled = events.find(|event| event["event"] == "trial_settled");
    let settled = settled.expect("a settled trial");
    let executed = &shown["executions"][0]["end"]["verdict"];
    for verdict in [&shown["verdict"], executed, &settled["settlement"]["verdict"]] {
        let costs = (&verdict["cost"], &verdict["model_use"]["cost"]);
        assert_eq!(costs, (&Value::Null, &Value::Null), "{verdict}");
    }
}
