//! Submission, list and control of runs.

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check::assert_no_leaks;
use rollout_tests::metrics::Samples;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

#[test]
fn submitted_job_runs_to_its_end_and_is_readable_by_every_command() {
    let project = project().tasks(["slow/second"], &[]);
    let mut daemon = DaemonProcess::start(&project, &[]);
    let answer = daemon.client.post("/v1/runs", &[], &submission(&project, 3)).expect(201);
    let run = answer.json();
    let id = run["id"].as_str().expect("an id").to_owned();
    assert_eq!(answer.header("location"), Some(&*format!("/v1/runs/{id}")));
    assert_eq!((&run["name"], &run["user"]), (&json!("slow"), &json!("local")));

    let run = daemon.wait_for(&id, &["completed"]);
    let progress = &run["progress"];
    assert_eq!((&progress["total"], &progress["completed"]), (&json!(3), &json!(3)), "{run:#}");
    assert_eq!((&progress["mean_reward"], &run["code"]), (&json!(0.5), &json!(0)));
    let directory = format!("state/jobs/{id}");
    let status = project.rollout(&["status", &directory, "--json"]).wait(DEADLINE);
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!((&status["state"], &status["run"]), (&json!("completed"), &progress["run"]));

    let yaml = serde_json::to_string(&submission(&project, 1)["document"]).expect("JSON");
    let headers = [("content-type", "application/yaml")];
    let path = "/v1/runs?name=second&priority=3";
    let second = daemon.client.send("POST", path, &headers, yaml.as_bytes()).expect("an answer");
    let second = second.expect(201).json();
    assert_eq!((&second["name"], &second["priority"]), (&json!("second"), &json!(3)));
    let second = second["id"].as_str().expect("an id").to_owned();
    daemon.wait_for(&second, &["completed"]);

    let page = daemon.client.get("/v1/runs?limit=1").expect(200).json();
    assert_eq!(page["runs"][0]["id"], json!(second));
    let cursor = page["next"].as_str().expect("another page");
    let page = daemon.client.get(&format!("/v1/runs?cursor={cursor}")).expect(200).json();
    assert_eq!((&page["runs"][0]["id"], &page["next"]), (&json!(id), &Value::Null));
    let named = daemon.client.get("/v1/runs?name=slow&state=completed").expect(200).json();
    assert_eq!(named["runs"].as_array().map(Vec::len), Some(1));

    let one = daemon.client.send("DELETE", &format!("/v1/runs/{id}"), &[], b"");
    let _removed = one.expect("an answer").expect(204);
    let _gone = daemon.client.get(&format!("/v1/runs/{id}")).expect(404);
    assert!(!project.path().join(directory).exists());

    daemon.process.signal(Signal::TERM);
    let _ended = daemon.process.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_no_leaks(&project);
}

#[test]
fn same_key_gives_same_run_and_other_body_conflicts() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-running", "0"]);
    let key = [("idempotency-key", "k-1")];
    let job = submission(&project, 1);
    let first = daemon.client.post("/v1/runs", &key, &job).expect(201).json();
    let again = daemon.client.post("/v1/runs", &key, &job).expect(200).json();
    assert_eq!(first["id"], again["id"]);
    let other = daemon.client.post("/v1/runs", &key, &submission(&project, 2)).expect(409);
    assert_eq!(other.header("content-type"), Some("application/problem+json"));
    assert_eq!(other.json()["type"], json!("urn:rollout:problem:idempotency-conflict"));
    assert_eq!(daemon.client.get("/v1/runs").json()["runs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn full_queue_refuses_with_reason_and_time() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-running", "0", "--max-queued", "2"]);
    for attempts in [1, 2] {
        submitted(&daemon.client, &submission(&project, attempts));
    }
    let refused = daemon.client.post("/v1/runs", &[], &submission(&project, 3)).expect(429);
    assert_eq!(refused.header("retry-after"), Some("10"));
    let problem = refused.json();
    assert!(
        problem["detail"].as_str().is_some_and(|text| text.contains("2 of at most 2 ")),
        "{problem:#}"
    );
    assert_eq!(problem["request_id"].as_str(), refused.header("x-request-id"));
}

#[test]
fn cancelled_and_paused_runs_obey() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-running", "1"]);
    let running = submitted(&daemon.client, &submission(&project, 400));
    let waiting = submitted(&daemon.client, &submission(&project, 1));
    daemon.wait_for(&running, &["running"]);
    let post = |id: &str, verb: &str, status: u16| {
        let path = format!("/v1/runs/{id}/{verb}");
        daemon.client.post(&path, &[], &Value::Null).expect(status).json()
    };
    assert_eq!(post(&waiting, "cancel", 202)["state"], json!("cancelled"));
    assert_eq!(post(&waiting, "cancel", 202)["state"], json!("cancelled"));
    post(&waiting, "pause", 409);
    assert_eq!(post(&running, "pause", 202)["state"], json!("paused"));
    assert_eq!(post(&running, "continue", 202)["state"], json!("running"));
    let busy = daemon.client.send("DELETE", &format!("/v1/runs/{running}"), &[], b"");
    let _refused = busy.expect("an answer").expect(409);
    post(&running, "cancel", 202);
    let run = daemon.wait_for(&running, &["cancelled"]);
    assert_eq!(run["progress"]["settled"], json!(400), "{run:#}");
    assert!(run["progress"]["cancelled"].as_u64() > Some(300), "{run:#}");
}

#[test]
fn paused_run_that_continues_waits_for_one_that_runs() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-running", "1"]);
    let [first, second] = [(); 2].map(|()| submitted(&daemon.client, &submission(&project, 400)));
    daemon.wait_for(&first, &["running"]);
    let post = |id: &str, verb: &str| {
        let path = format!("/v1/runs/{id}/{verb}");
        daemon.client.post(&path, &[], &Value::Null).expect(202).json()["state"].clone()
    };
    assert_eq!(post(&first, "pause"), json!("paused"));
    daemon.wait_for(&second, &["running"]);
    assert_eq!(post(&first, "continue"), json!("queued"));
    assert_eq!(post(&second, "pause"), json!("paused"));
    daemon.wait_for(&first, &["running"]);
    assert_eq!(post(&second, "continue"), json!("queued"));
    for id in [&first, &second] {
        post(id, "cancel");
        daemon.wait_for(id, &["cancelled"]);
    }
}

#[test]
fn invalid_jobs_are_refused_with_every_fault() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let document = json!({ "agent": [], "n_attempts": 0, "agents": [{"name": "oracle"}] });
    let answer = daemon.client.post("/v1/runs", &[], &json!({ "document": document })).expect(422);
    let problem = answer.json();
    assert_eq!(problem["code"], json!(ExitCode::Config.code()));
    let details = problem["details"].to_string();
    assert!(details.contains("n_attempts") && details.contains("agent"), "{problem:#}");
    assert!(!answer.text().contains("state/runs"), "{problem:#}");

    // Its tasks are read later.
    let mut missing = submission(&project, 1);
    missing["document"]["datasets"][0]["task_names"] = json!(["no-such-task"]);
    let id = submitted(&daemon.client, &missing);
    let run = daemon.wait_for(&id, &["failed"]);
    assert_eq!(run["failure"]["code"], json!(ExitCode::Config.code()), "{run:#}");
    assert_eq!(run["is_final"], json!(true));
}

#[test]
fn daemon_shows_health_and_metrics() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-running", "0"]);
    submitted(&daemon.client, &submission(&project, 1));
    assert_eq!(daemon.client.get("/healthz").expect(200).text(), "ok\n");
    assert_eq!(daemon.client.get("/readyz").expect(200).text(), "ok\n");
    let samples = Samples::parse(&daemon.client.get("/metrics").expect(200).text());
    assert_eq!(samples.sum("rollout_daemon_runs", "state=\"queued\""), 1.0);
    assert!(samples.sum("rollout_http_answers_total", "status=\"201\"") >= 1.0);
}
