//! Back-off, limits, outages.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::model_calls::{REAL_KEY, files, lines, of_type};
use rollout_tests::model_server::{ModelAnswer, ModelServer};
use rollout_tests::results::TrialDirectory;
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
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Infrastructure);
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

/// Runs an agent that ends with code 0 on a server with these answers, without one on none.
fn ended_with_0(answers: &[ModelAnswer], agent: &str) -> TrialDirectory {
    let server = ModelServer::start(Duration::ZERO);
    server.command(answers.iter().cloned());
    let project = project(&server, agent, ", hold_sec: 1, max_retries: 0", "");
    let server = (!answers.is_empty()).then_some(server);
    let _ended = start(&project).wait(DEADLINE);
    drop(server);
    project.results("calls").trial("caller", "t")
}

#[track_caller]
fn assert_no_verdict(trial: &TrialDirectory, what: &str) {
    let error = &trial.result["error"];
    assert_eq!(error["code"], "model_unreachable", "{what}: {:#}", trial.result);
    assert_eq!(error["class"], "infrastructure", "{what}");
    assert_eq!(trial.reward(), None, "{what}");
    assert!(trial.result["durations"]["verifier_sec"].is_null(), "{what}: it was not verified");
}

#[test]
fn agent_that_ends_with_0_without_an_answer_has_no_verdict_in_sandbox() {
    let agent = "try:\n    call('x', chat('x', stream=True))\nexcept Exception:\n    pass\n";
    let unanswered = [
        ("down", vec![]),
        ("500", vec![ModelAnswer::Status(500, None)]),
        ("503", vec![ModelAnswer::Status(503, None)]),
        ("429", vec![ModelAnswer::Status(429, Some(60))]),
        ("cut", vec![ModelAnswer::Cut(2)]),
    ];
    for (what, answers) in unanswered {
        assert_no_verdict(&ended_with_0(&answers, agent), what);
    }
    // A wrong request is the agent's.
    let trial = ended_with_0(&[ModelAnswer::Status(400, None)], agent);
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
}

#[test]
fn agent_without_an_answer_has_no_verdict_on_workers_of_a_server_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    server.command([ModelAnswer::Status(500, None)]);
    let project = project(&server, "call('x', chat('x'))\n", ", max_retries: 0", "");
    let Some(cluster) = Cluster::new(project) else { return };
    let key = ("MODEL_KEY", REAL_KEY);
    let worker = cluster.worker("a", 1).with_option("--trial-env", key.0);
    let mut worker = worker.with_variable(key.0, key.1).started();
    let mut run = cluster.coordinator("job.yaml").with_variable(key.0, key.1).started();
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Infrastructure);
    assert_no_verdict(&cluster.project.results("calls").trial("caller", "t"), "on a worker");
    drop(worker.terminate(DEADLINE));
}

#[test]
fn outage_until_the_budget_ends_makes_no_verdict_and_used_budget_does_in_sandbox() {
    let agent = r#"
for number in range(6):
    try:
        status, _ = call("x", chat("x", stream=True))
    except Exception:
        status = "cut"
    print(status, flush=True)
"#;
    for (answer, seen) in [
        (ModelAnswer::Status(503, None), "503"),
        (ModelAnswer::Cut(2), "cut"),
        (ModelAnswer::Usual, "200"),
    ] {
        let server = ModelServer::start(Duration::ZERO);
        server.command(std::iter::repeat_n(answer, 3));
        let project = project(&server, agent, ", max_retries: 0", "");
        let job = std::fs::read_to_string(project.path().join("job.yaml")).expect("a job");
        project.write_file("job.yaml", &format!("{job}budget: {{try: {{calls: 3}}}}\n"));
        let _ended = start(&project).wait(DEADLINE);
        let trial = project.results("calls").trial("caller", "t");
        let output = trial.text("command/stdout.txt").expect("output");
        assert!(output.starts_with(&format!("{seen}\n").repeat(3)), "{output}");
        assert_eq!(server.calls().len(), 3, "{seen}");
        if seen == "200" {
            let error = &trial.result["error"];
            assert_eq!(error["code"], "budget_exceeded", "{:#}", trial.result);
            assert_eq!(error["class"], "agent");
        } else {
            assert_no_verdict(&trial, seen);
        }
    }
}

#[test]
fn answer_to_another_conversation_makes_no_verdict_and_repetition_does_in_sandbox() {
    let title = "call('x', chat('x'))\ncall('y', chat('title of x'))\n";
    let refused = [ModelAnswer::Status(500, None)];
    assert_no_verdict(&ended_with_0(&refused, title), "another conversation");
    let again = "call('x', chat('x'))\ncall('y', chat('x', temperature=0.5))\n";
    let trial = ended_with_0(&refused, again);
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
}

#[test]
fn call_that_agent_breaks_off_itself_leaves_its_verdict_in_sandbox() {
    let agent = r#"
import socket
from urllib.parse import urlsplit
url = urlsplit(BASE)
body = json.dumps(chat("x", stream=True)).encode()
with socket.create_connection((url.hostname, url.port)) as connection:
    head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    connection.sendall((head + f"Content-Length: {len(body)}\r\n\r\n").encode() + body)
    connection.recv(64)
"#;
    let server = ModelServer::start(Duration::from_millis(200));
    let project = project(&server, agent, "", "");
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    assert_eq!(trial.result["gateway"]["cut_calls"], 1);
}

#[test]
fn bodies_that_do_not_come_keep_no_call_back_in_sandbox() {
    let agent = r#"
import socket
from urllib.parse import urlsplit
url = urlsplit(BASE)
head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
connections = []
for number in range(16):
    connection = socket.create_connection((url.hostname, url.port))
    connection.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
    connections.append(connection)
status, reply = call("x", chat("x"))
assert status == 200, reply
"#;
    let server = ModelServer::start(Duration::ZERO);
    let project = project(&server, agent, "", "");
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    assert_eq!(server.calls().len(), 1);
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
