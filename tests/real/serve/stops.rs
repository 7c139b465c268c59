//! Stops of a server that has begun to prepare runs and farms.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::farms::{farm_project, farm_request, opened};
use crate::serve::{DaemonProcess, project, submission, submitted};

/// Longest stop of a server whose trials have ended.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Stops a daemon once, and asserts that it ends in order.
#[track_caller]
fn assert_stops(mut daemon: DaemonProcess) {
    daemon.process.signal(Signal::TERM);
    let ended = daemon.process.wait(STOP_DEADLINE).expect_code(ExitCode::Success);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn server_that_is_stopped_while_it_opens_farms_ends_in_order() {
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &[]);
    for _ in 0..4 {
        let _farm = opened(&daemon.client, &farm_request(&project, "true"));
    }
    assert_stops(daemon);
    for requests in 0..12 {
        let daemon = DaemonProcess::start(&project, &[]);
        // The farms are being opened meanwhile.
        for _ in 0..requests * 4 {
            let _open = daemon.client.get("/healthz").expect(200);
        }
        assert_stops(daemon);
    }
}

/// A submission of a job with this many agents.
pub(super) fn with_agents(submission: &Value, count: usize) -> Value {
    let mut submission = submission.clone();
    let agents = (0..count).map(|n| json!({ "name": format!("a{n}"), "execute": "true" }));
    submission["document"]["agents"] = agents.collect();
    submission
}

#[test]
fn job_with_many_agents_keeps_no_stop_waiting() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let job = submission(&project, 1);
    let refused = daemon.client.post("/v1/runs", &[], &with_agents(&job, 60_000)).expect(422);
    assert!(refused.text().contains("at most 4096"), "{}", refused.text());
    submitted(&daemon.client, &with_agents(&job, 4096));
    assert_stops(daemon);
}
