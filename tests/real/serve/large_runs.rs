//! Runs and documents of a user that are as large as may be, and others meanwhile.

use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_tests::http::HttpClient;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::stops::with_agents;
use crate::serve::tokens::tokens;
use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

/// Longest time of an answer to another user.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);

/// Longest stop of a server whose trials have ended.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Agents of one job at most.
const AGENTS: usize = 4096;

/// A project with a task and two users beside the administrator.
fn shared_project() -> Project {
    let users =
        [("ada", "submit", "ada-token"), ("bob", "submit", "bob-token"), ("root", "admin", "r")];
    project().tasks(["slow/second"], &[]).write("tokens.toml", &tokens(&users))
}

fn start(project: &Project) -> DaemonProcess {
    DaemonProcess::start(project, &["--tokens", "tokens.toml"])
}

/// Asserts that another user and the administrator are answered at once.
#[track_caller]
fn assert_others_answered(daemon: &DaemonProcess, job: &Value) {
    for token in ["bob-token", "r"] {
        let client = daemon.client.with_token(token);
        let began = Instant::now();
        let _listed = client.get("/v1/runs").expect(200);
        assert!(began.elapsed() < ANSWER_DEADLINE, "{token}: {:?}", began.elapsed());
        let began = Instant::now();
        let id = submitted(&client, job);
        assert!(began.elapsed() < ANSWER_DEADLINE, "{token}: {:?}", began.elapsed());
        let _ended = client.post(&format!("/v1/runs/{id}/cancel"), &[], &json!({})).expect(202);
    }
}

fn cancelled_trials(client: &HttpClient, id: &str) -> u64 {
    let run = client.get(&format!("/v1/runs/{id}")).expect(200).json();
    run["progress"]["cancelled"].as_u64().unwrap_or(0)
}

#[test]
fn cancel_of_large_run_keeps_no_one_waiting_and_survives_a_stop() {
    let project = shared_project();
    let mut daemon = start(&project);
    let small = submission(&project, 1);
    let large = with_agents(&submission(&project, 24), AGENTS);
    let ada = daemon.client.with_token("ada-token");
    let id = submitted(&ada, &large);
    wait::until(DEADLINE, "a trial runs", || {
        let run = ada.get(&format!("/v1/runs/{id}")).expect(200).json();
        run["progress"]["running"].as_u64() > Some(0)
    });
    let _accepted = ada.post(&format!("/v1/runs/{id}/cancel"), &[], &json!({})).expect(202);
    wait::until(DEADLINE, "trials are cancelled", || cancelled_trials(&ada, &id) > 0);
    for _ in 0..5 {
        assert_others_answered(&daemon, &small);
    }
    let before = cancelled_trials(&ada, &id);
    daemon.process.signal(Signal::TERM);
    let _ended = daemon.process.wait(STOP_DEADLINE).expect_code(ExitCode::Success);
    let daemon = start(&project);
    let ada = daemon.client.with_token("ada-token");
    let all = (AGENTS * 24) as u64;
    assert!(before < all, "the stop came before the end");
    wait::until(DEADLINE, "the cancellation goes on", || cancelled_trials(&ada, &id) > before);
    assert_others_answered(&daemon, &small);
    daemon.stop();
}

#[test]
fn run_with_more_trials_than_a_server_allows_is_refused() {
    let project = project().tasks(["faults/passes", "slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-trials", "10"]);
    let refused = daemon.client.post("/v1/runs", &[], &submission(&project, 11)).expect(422);
    for word in ["1 agents x 11 attempts", "may have 10", "--max-trials"] {
        assert!(refused.text().contains(word), "{}", refused.text());
    }
    // Its tasks are counted when they are known.
    let id = submitted(&daemon.client, &submission(&project, 6));
    let run = daemon.wait_for(&id, &["failed"]);
    let failure = run["failure"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(failure.contains("1 agents x 2 tasks x 6 attempts are 12 trials"), "{run:#}");
    let id = submitted(&daemon.client, &submission(&project, 5));
    daemon.wait_for(&id, &["completed"]);
}

#[test]
fn documents_of_one_user_that_are_read_leave_answers_to_others() {
    let project = shared_project();
    let daemon = start(&project);
    let small = submission(&project, 1);
    let large = with_agents(&small, 60_000).to_string();
    let zeros = vec!["0"; 1_500_000].join(",");
    let zeros = format!("{{\"document\": {{\"agents\": [{zeros}]}}}}");
    std::thread::scope(|scope| {
        let sent: Vec<_> = [&large, &large, &zeros, &zeros]
            .map(|body| {
                let ada = daemon.client.with_token("ada-token");
                scope.spawn(move || {
                    let headers = [("content-type", "application/json")];
                    ada.send("POST", "/v1/runs", &headers, body.as_bytes()).expect("an answer")
                })
            })
            .into();
        for _ in 0..5 {
            assert_others_answered(&daemon, &small);
        }
        let answers: Vec<_> = sent.into_iter().map(|one| one.join().expect("an answer")).collect();
        for (answer, (status, word)) in answers.iter().zip([
            (422, "at most 4096"),
            (422, "at most 4096"),
            (400, "values"),
            (400, "values"),
        ]) {
            assert_eq!(answer.status, status, "{}", answer.text());
            assert!(answer.text().contains(word), "{}", answer.text());
        }
    });
}
