//! A run over a storm of refusals and an outage of its model server, with the agent `shell` in
//! sandboxes. `ROLLOUT_TEST_OUTAGE_SEC` sets the length of the outage, if that is long enough.

use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::REAL_KEY;
use rollout_tests::model_server::{ModelAnswer, ModelServer, ScriptedTask};
use rollout_tests::{results, wait};

use crate::agents::DEADLINE;
use crate::agents::fixture::{AgentRun, task};

/// Attempts of the run.
const ATTEMPTS: usize = 24;

/// Calls of each attempt: one for each command, one for the answer and one that ends it.
const CALLS: usize = 4;

/// Calls per second that the server allows.
const RATE: f64 = 10.0;

/// Answers that ask to wait.
const REFUSALS: usize = 12;

/// Time limit of the agent, in seconds. A call that met the refusals may have been held for 5 s and then
/// put off by another 5, which count.
const AGENT_LIMIT: u64 = 15;

/// Length of the outage: longer than the time limit of the agent.
fn outage() -> Duration {
    let wanted = std::env::var("ROLLOUT_TEST_OUTAGE_SEC").ok();
    let wanted = wanted.map_or(0, |text| text.parse::<u64>().expect("a number of seconds"));
    Duration::from_secs(wanted.max(AGENT_LIMIT + 3))
}

fn slow_task() -> ScriptedTask {
    ScriptedTask { commands: vec!["true".to_owned(); CALLS - 2], ..task() }
}

#[test]
fn refusals_and_an_outage_of_model_server_fail_no_trial_in_sandbox() {
    let server = ModelServer::start_scripted(slow_task());
    let (port, origin) = (server.port(), server.origin());
    server.command(vec![ModelAnswer::Status(429, Some(1)); REFUSALS]);
    let per_minute = RATE * 60.0;
    let job = format!(
        "environment: {{type: process, provider_config: {{ignore_dockerfile: true}}}}\n\
         n_attempts: {ATTEMPTS}\nn_concurrent_trials: 6\n\
         agents: [{{name: shell, model: lab/scripted, override_timeout_sec: {AGENT_LIMIT}}}]\n\
         gateway: {{upstreams: [{{name: lab, url: '{origin}/v1', key_env: MODEL_KEY, \
         requests_per_minute: {per_minute}, hold_sec: 5, max_retries: 20}}]}}\n"
    );
    let run = AgentRun { agent: "shell", dialect: "openai", job, options: Vec::new() };
    let project = run.project();
    let mut command = project.command(&["run", "job.yaml", "-q"]);
    command.env("MODEL_KEY", REAL_KEY);
    let begun = Instant::now();
    let mut process = project.start(command);
    wait::until(wait::LONG_DEADLINE, "calls were answered", || {
        server.calls().len() >= REFUSALS + ATTEMPTS
    });
    let before = server.calls().len();
    drop(server);
    let ended = wait::holds_within(outage(), || process.has_ended());
    assert!(!ended, "it waits for the server");
    let server = ModelServer::start_scripted_at(port, slow_task());
    let _ended = process.wait(DEADLINE).expect_code(ExitCode::Success);
    let took = begun.elapsed().saturating_sub(outage());
    let result = results::json(&project.path().join("jobs/solve/result.json")).expect("a result");
    let count = |name: &str| result[name].as_u64().expect("a count");
    let all = ATTEMPTS as u64;
    assert_eq!((count("passed_trials"), count("retries")), (all, 0), "{result:#}");
    let calls = before + server.calls().len();
    assert!(calls <= REFUSALS + ATTEMPTS * CALLS, "{calls} calls: a call was repeated for nothing");
    // The calls of a second may come at once: at the begin, and when the server is back.
    let most = RATE * (took.as_secs_f64() + 2.0);
    assert!(calls as f64 <= most, "{calls} calls in {took:?}");
}
