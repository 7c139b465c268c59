//! Back-off, limits, outages.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::{files, lines, of_type};
use rollout_tests::model_server::{ModelAnswer, ModelServer};
use rollout_tests::wait;

use crate::gateway::DEADLINE;
use crate::gateway::fixture::{DIALECTS, project, start};

#[test]
fn refused_call_is_sent_again_after_asked_time_and_recorded_once_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    let refused =
        || [ModelAnswer::Status(429, Some(1)), ModelAnswer::Status(503, None), ModelAnswer::Usual];
    server.command(DIALECTS.iter().flat_map(|_| refused()));
    let agent = "for dialect in DIALECTS:\n    status, reply = ask(dialect, 'x', 'x')\n    \
                 assert status == 200, reply\n";
    let project = project(&server, agent, "", "");
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    let lines = lines(&trial);
    let ended = of_type(&lines, "ended");
    assert_eq!(ended.len(), DIALECTS.len());
    for ended in ended {
        let attempts = ended["attempts"].as_array().expect("attempts");
        let statuses: Vec<_> = attempts.iter().map(|attempt| attempt["status"].clone()).collect();
        assert_eq!(statuses, [429, 503, 200]);
        assert!(ended["latency"]["queued_sec"].as_f64() >= Some(1.0), "{ended}");
    }
    assert_eq!(server.calls().len(), 3 * DIALECTS.len());
}

#[test]
fn refusal_beyond_retries_reaches_agent_with_its_retry_after_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    server.command([ModelAnswer::Status(429, Some(7))]);
    let agent = r#"
request = urllib.request.Request(BASE + "/chat/completions", json.dumps(chat("x")).encode(),
    {"Authorization": "Bearer " + KEY})
try:
    urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    print(error.code, error.headers["Retry-After"], error.read().decode())
"#;
    let project = project(&server, agent, ", max_retries: 0", "");
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    let output = trial.text("command/stdout.txt").expect("output");
    assert!(output.starts_with("429 7 {\"error\":{\"message\":\"refused"), "{output}");
    assert_eq!(trial.result["gateway"]["failed_calls"], 1);
}

#[test]
fn outage_of_server_stops_clock_of_agent_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    let port = server.port();
    let agent = r#"
open("/logs/agent/ready", "w").close()
import time
while os.path.exists("/logs/agent/wait"): time.sleep(0.05)
for number in range(3):
    status, reply = call("x%d" % number, chat("x%d" % number))
    assert status == 200, reply
"#;
    let project = project(&server, agent, ", hold_sec: 120", "");
    project.write_file("tasks/t/task.toml", "version = '1.0'\n[agent]\ntimeout_sec = 8.0\n");
    drop(server);
    let mut run = start(&project);
    let held = || {
        let calls = files(&project.path().join("jobs"));
        let calls = calls.into_iter().chain(files(project.path()));
        let mut calls = calls.filter(|file| file.ends_with("gateway/calls.jsonl"));
        calls.any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains("begun")))
    };
    wait::until(DEADLINE, "a call that is held", held);
    // Longer than the agent's time limit.
    let since = std::time::Instant::now();
    wait::until(DEADLINE, "an outage that is longer than the agent's limit", || {
        assert!(!run.has_ended(), "the agent's clock stands still");
        since.elapsed() > Duration::from_secs(12)
    });
    let server = ModelServer::start_at(port, Duration::ZERO);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(server.calls().len(), 3);
    let trial = project.results("calls").trial("caller", "t");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
}

#[test]
fn agent_that_gives_up_in_an_outage_is_no_failure_of_the_agent_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    let agent = "status, reply = call('x', chat('x'))\nprint(status)\nsys.exit(status != 200)\n";
    let project = project(&server, agent, ", hold_sec: 1", "");
    drop(server);
    let _ended = start(&project).wait(DEADLINE);
    let trial = project.results("calls").trial("caller", "t");
    assert_eq!(trial.text("command/stdout.txt").as_deref(), Some("503\n"));
    let error = &trial.result["error"];
    assert_eq!(
        (&error["code"], &error["class"]),
        (&"model_unreachable".into(), &"infrastructure".into())
    );
}
