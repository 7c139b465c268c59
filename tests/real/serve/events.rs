//! Events of runs as server-sent events.

use rollout_tests::http::HttpLines;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

/// An event of a stream: its number, its kind and its document.
pub(crate) type StreamedEvent = (u64, String, Value);

/// The next event of a stream; `None` when the stream ends.
pub(crate) fn next_event(lines: &mut HttpLines) -> Option<StreamedEvent> {
    let (mut seq, mut kind, mut data) = (0, String::new(), None);
    loop {
        let line = lines.next()?;
        if let Some(value) = line.strip_prefix("id: ") {
            seq = value.parse().expect("a number");
        } else if let Some(value) = line.strip_prefix("event: ") {
            kind = value.to_owned();
        } else if let Some(value) = line.strip_prefix("data: ") {
            data = Some(serde_json::from_str(value).expect("JSON"));
        } else if line.is_empty()
            && let Some(data) = data.take()
        {
            return Some((seq, kind, data));
        }
    }
}

fn recorded(project: &rollout_tests::project::Project, id: &str) -> Vec<Value> {
    let directory = format!("state/jobs/{id}");
    let printed = project.rollout(&["events", &directory, "--json"]).wait(DEADLINE).stdout;
    printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn reader_that_connects_again_gets_every_event_once() {
    let project = project().tasks(["slow/second"], &[]);
    let mut daemon = DaemonProcess::start(&project, &[]);
    let id = submitted(&daemon.client, &submission(&project, 8));
    let path = format!("/v1/runs/{id}/events");
    let (mut received, mut last) = (Vec::new(), 0);
    // A new connection for every two events, and two new servers.
    let mut connections = 0;
    loop {
        let number = last.to_string();
        let mut lines = match connections % 2 {
            0 => daemon.client.follow(&path, &[("last-event-id", &number)]),
            _ => daemon.client.follow(&format!("{path}?after={last}"), &[]),
        };
        connections += 1;
        let mut ended = false;
        for _ in 0..2 {
            let Some((seq, kind, data)) = next_event(&mut lines) else { break };
            if kind == "end" {
                ended = true;
                break;
            }
            assert_eq!((data["seq"].as_u64(), data["event"].as_str()), (Some(seq), Some(&*kind)));
            assert!(seq > last, "{seq} after {last}");
            last = seq;
            received.push(data);
        }
        if ended {
            break;
        }
        if connections == 2 || connections == 5 {
            daemon.process.signal(Signal::KILL);
            let _killed = daemon.process.wait(DEADLINE);
            daemon = DaemonProcess::start(&project, &[]);
        }
    }
    assert_eq!(received, recorded(&project, &id));
    let settled = received.iter().filter(|event| event["event"] == "trial_settled").count();
    assert!(settled >= 8, "{settled}");
}

#[test]
fn slow_readers_hold_up_neither_runs_nor_other_readers() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let id = submitted(&daemon.client, &submission(&project, 6));
    let path = format!("/v1/runs/{id}/events");
    // They never read on.
    let slow: Vec<_> = (0..60).map(|_| daemon.client.follow(&path, &[])).collect();
    let mut fast = daemon.client.follow(&path, &[]);
    let mut received = Vec::new();
    while let Some((_, kind, data)) = next_event(&mut fast) {
        if kind == "end" {
            break;
        }
        received.push(data);
    }
    daemon.wait_for(&id, &["completed"]);
    assert_eq!(received, recorded(&project, &id));
    for mut lines in slow.into_iter().take(3) {
        let mut late = Vec::new();
        while let Some((_, kind, data)) = next_event(&mut lines) {
            if kind != "end" {
                late.push(data);
            }
        }
        assert_eq!(late, received);
    }
}

#[test]
fn stream_of_a_waiting_run_begins_with_its_first_session() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--max-running", "1"]);
    let first = submitted(&daemon.client, &submission(&project, 2));
    let second = submitted(&daemon.client, &submission(&project, 1));
    let mut lines = daemon.client.follow(&format!("/v1/runs/{second}/events"), &[]);
    let kinds: Vec<_> =
        std::iter::from_fn(|| next_event(&mut lines)).map(|event| event.1).collect();
    assert_eq!(kinds.first().map(String::as_str), Some("run_started"), "{kinds:?}");
    assert_eq!(kinds.last().map(String::as_str), Some("end"), "{kinds:?}");
    daemon.wait_for(&first, &["completed"]);
    wait::until(wait::LONG_DEADLINE, "the run is final", || {
        let run = daemon.client.get(&format!("/v1/runs/{second}")).expect(200).json();
        run["is_final"] == json!(true)
    });
}
