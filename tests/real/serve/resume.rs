//! Restart of the daemon after `kill -9`.

use std::fs;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::journal_replay::assert_follows_from_journal;
use rollout_tests::leak_check::assert_no_leaks;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::json;

use crate::serve::farms::{farm_project, farm_request, group, opened};
use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

/// Time from each start to the kill.
const KILL_DELAYS_MS: [u64; 4] = [40, 900, 2300, 1500];

#[test]
fn killed_daemon_goes_on_with_everything_that_ran() {
    let project = project().tasks(["slow/second"], &[]);
    let mut daemon = DaemonProcess::start(&project, &["--max-running", "2"]);
    let ids: Vec<_> = (0..3).map(|_| submitted(&daemon.client, &submission(&project, 6))).collect();
    let mut settled = vec![0; ids.len()];
    for delay in KILL_DELAYS_MS {
        let _elapsed = wait::holds_within(Duration::from_millis(delay), || false);
        for (id, settled) in ids.iter().zip(&mut settled) {
            let run = daemon.client.get(&format!("/v1/runs/{id}")).expect(200).json();
            let now = run["progress"]["settled"].as_u64().unwrap_or_default();
            // A session that has just begun has not read its journal yet.
            *settled = now.max(*settled);
        }
        daemon.process.signal(Signal::KILL);
        let _killed = daemon.process.wait(DEADLINE);
        daemon = DaemonProcess::start(&project, &["--max-running", "2"]);
    }
    for (id, settled) in ids.iter().zip(settled) {
        let run = daemon.wait_for(id, &["completed"]);
        assert_eq!(run["progress"]["completed"], json!(6), "{run:#}");
        assert!(settled <= 6);
        let directory = project.path().join("state/jobs").join(id);
        assert_follows_from_journal(&directory);
    }
    daemon.process.signal(Signal::TERM);
    let _ended = daemon.process.wait(DEADLINE);
    assert_no_leaks(&project);
}

#[test]
fn run_and_farm_of_killed_daemon_are_left_to_the_daemon() {
    let (project, counter) = (farm_project().tasks(["slow/second"], &[]), LiveCounter::start());
    let mut daemon = DaemonProcess::start(&project, &[]);
    let port = counter.port();
    let agent = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; echo sample >&3; sleep 60");
    let farm = opened(&daemon.client, &farm_request(&project, &agent));
    let path = format!("{farm}/groups");
    let _accepted = daemon.client.post(&path, &[], &group("g", 2)).expect(201);
    let run = submitted(&daemon.client, &submission(&project, 400));
    daemon.wait_for(&run, &["running"]);
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    for id in [run.as_str(), farm.rsplit('/').next().expect("an id")] {
        let directory = format!("state/jobs/{id}");
        // No command resumes them, so none is printed.
        let status = project.rollout(&["status", &directory]).wait(DEADLINE);
        let status = status.expect_code(ExitCode::Success).stdout;
        assert!(!status.contains("rollout resume"), "{status}");
        let told = status.contains("the server or the program that started it resumes it");
        assert!(told || id != run, "{status}");
        let refused = project.rollout(&["resume", &directory]).wait(DEADLINE);
        let refused = refused.expect_code(ExitCode::Failure);
        let told = refused.expect_stderr("is resumed by its server");
        let hinted = told.hinted_commands();
        assert!(!hinted.iter().any(|hint| hint.contains("resume")), "{hinted:?}");
    }
    assert!(!project.path().join("jobs").exists(), "no other run was started");
    let daemon = DaemonProcess::start(&project, &[]);
    let path = format!("/v1/runs/{run}/cancel");
    let _accepted = daemon.client.post(&path, &[], &json!(null)).expect(202);
    daemon.wait_for(&run, &["cancelled"]);
    // A server that ends while it makes a sandbox leaves it to the next one.
    wait::until(DEADLINE, "the samples run again", || counter.running() == 2);
}

#[test]
fn pause_and_cancel_outlive_the_daemon() {
    let project = project().tasks(["slow/second"], &[]);
    let mut daemon = DaemonProcess::start(&project, &[]);
    let paused = submitted(&daemon.client, &submission(&project, 40));
    let cancelled = submitted(&daemon.client, &submission(&project, 400));
    for (id, verb) in [(&paused, "pause"), (&cancelled, "cancel")] {
        daemon.wait_for(id, &["running"]);
        let path = format!("/v1/runs/{id}/{verb}");
        let _accepted = daemon.client.post(&path, &[], &json!(null)).expect(202);
    }
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    let daemon = DaemonProcess::start(&project, &[]);
    daemon.wait_for(&cancelled, &["cancelled"]);
    let run = daemon.client.get(&format!("/v1/runs/{paused}")).expect(200).json();
    assert_eq!(run["state"], json!("paused"), "{run:#}");
    let path = format!("/v1/runs/{paused}/continue");
    let _accepted = daemon.client.post(&path, &[], &json!(null)).expect(202);
    daemon.wait_for(&paused, &["completed"]);
}

#[test]
fn run_that_cannot_be_opened_is_shown_and_stops_nothing() {
    let project = project().tasks(["slow/second"], &[]);
    let mut daemon = DaemonProcess::start(&project, &[]);
    let ids: Vec<_> =
        (0..3).map(|_| submitted(&daemon.client, &submission(&project, 20))).collect();
    for id in &ids {
        daemon.wait_for(id, &["running"]);
    }
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    let state = project.path().join("state");
    let record = state.join("runs").join(format!("{}.json", ids[0]));
    let plan = state.join("jobs").join(&ids[1]).join("plan.json");
    let damaged = [(&record, "{"), (&plan, "damaged")].map(|(path, text)| {
        let whole = fs::read(path).expect("a file of a run");
        fs::write(path, text).expect("written");
        (path, whole)
    });

    let daemon = DaemonProcess::start(&project, &[]);
    let list = daemon.client.get("/v1/runs").expect(200).json();
    assert_eq!(list["unreadable"][0]["id"], json!(ids[0]), "{list:#}");
    let problem = daemon.client.get(&format!("/v1/runs/{}", ids[0])).expect(409).json();
    assert_eq!(problem["code"], json!(8), "{problem:#}");
    let failed = daemon.wait_for(&ids[1], &["failed"]);
    assert_eq!(failed["failure"]["code"], json!(8), "{failed:#}");
    let directory = project.path().display().to_string();
    assert!(!failed.to_string().contains(&directory), "{failed:#}");
    assert_eq!(failed["is_final"], json!(false), "{failed:#}");
    daemon.wait_for(&ids[2], &["completed"]);

    // Their sessions remove the sandboxes that the killed server left.
    daemon.stop();
    for (path, whole) in damaged {
        fs::write(path, whole).expect("written");
    }
    let daemon = DaemonProcess::start(&project, &[]);
    for id in &ids[..2] {
        daemon.wait_for(id, &["running"]);
        let path = format!("/v1/runs/{id}/cancel");
        let _accepted = daemon.client.post(&path, &[], &json!(null)).expect(202);
        daemon.wait_for(id, &["cancelled"]);
    }
}

#[test]
fn restart_without_an_option_fails_a_run_and_one_with_it_completes_it() {
    let project = project().tasks(["slow/second"], &[]);
    let mut daemon = DaemonProcess::start(&project, &[]);
    let id = submitted(&daemon.client, &submission(&project, 12));
    daemon.wait_for(&id, &["running"]);
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);

    let words = ["serve", "--dir", "state", "--listen", "127.0.0.1:0"];
    let mut daemon = DaemonProcess::started(&project, project.rollout(&words));
    let failed = daemon.wait_for(&id, &["failed"]);
    assert_eq!(failed["is_final"], json!(false), "{failed:#}");
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);

    let daemon = DaemonProcess::start(&project, &[]);
    let run = daemon.wait_for(&id, &["completed"]);
    assert_eq!(run["progress"]["completed"], json!(12), "{run:#}");
    daemon.stop();
}

#[test]
fn second_daemon_of_a_directory_is_refused() {
    let project = project().tasks(["slow/second"], &[]);
    let _daemon = DaemonProcess::start(&project, &[]);
    let second = project.rollout(&["serve", "--dir", "state", "--listen", "127.0.0.1:0"]);
    let _refused = second
        .wait(DEADLINE)
        .expect_code(rollout_protocol::exit::ExitCode::LockHeld)
        .expect_stderr("another daemon uses it");
}
