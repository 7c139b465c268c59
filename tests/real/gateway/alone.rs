//! The gateway as a process of its own.

use std::collections::BTreeMap;

use rollout_protocol::exit::ExitCode;
use rollout_tests::http::HttpClient;
use rollout_tests::model_calls::{self, REAL_KEY};
use rollout_tests::model_server::ModelServer;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn gateway_alone_passes_calls_on_within_its_budget_and_records_them() {
    let server = ModelServer::start(std::time::Duration::ZERO);
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let upstream = format!("{{url: '{}/v1', key_env: MODEL_KEY}}", server.origin());
    let file = format!("gateway: {{upstreams: [{upstream}]}}\nbudget: {{try: {{calls: 1}}}}\n");
    project.write_file("gateway.yaml", &file);
    let mut command = project.command(&["gateway", "gateway.yaml", "--records", "records"]);
    command.env("MODEL_KEY", REAL_KEY);
    let mut process = project.start(command);
    wait::until(wait::LONG_DEADLINE, "the gateway listens", || {
        process.stdout().contains("OPENAI_BASE_URL=")
    });
    let text = process.stdout();
    let variables: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('=')).collect();
    let base = variables["OPENAI_BASE_URL"].strip_prefix("http://127.0.0.1:").expect("an address");
    let (port, path) = base.split_once('/').expect("a path");
    let client = HttpClient::new(port.parse().expect("a port"));
    let path = format!("/{path}/chat/completions");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    let call = |key: &str| client.with_token(key).post(&path, &[], &body).status;
    assert_eq!(call("another-key"), 401);
    assert_eq!(call(variables["OPENAI_API_KEY"]), 200);
    assert_eq!(call(variables["OPENAI_API_KEY"]), 403, "the budget is one call");
    process.signal(Signal::TERM);
    let ended = process.wait(wait::LONG_DEADLINE).expect_code(ExitCode::Success);
    let summary = ended.stdout.find('{').map(|at| &ended.stdout[at..]).expect("a summary");
    let summary: Value = serde_json::from_str(summary).expect("JSON");
    assert_eq!((&summary["calls"], server.calls().len()), (&json!(2), 1));
    let records = std::fs::read_to_string(project.path().join("records/calls.jsonl"));
    assert_eq!(records.expect("records").lines().count(), 4);
    model_calls::assert_key_is_in_no_file(project.path());
}
