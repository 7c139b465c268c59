//! Deletion and cancellation of samples on workers that cannot be told at once.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rollout_base::supervise;
use rollout_tests::wait::{self, LONG_DEADLINE};
use rollout_tests::{print_notice, processes};
use rustix::process::Signal;
use serde_json::Value;

use crate::serve::farm_fleet::FarmFleet;
use crate::serve::farms::{farm_project, farm_request, group, opened, wait_for};
use crate::serve::{DEADLINE, DaemonProcess};

/// A variable without an effect.
const NO_VARIABLE: (&str, &str) = ("ROLLOUT_TEST_UNUSED", "");

/// Samples of the farm.
const SAMPLES: u32 = 4;

/// A fleet with a farm whose samples run until they are ended, and their mark.
fn with_running_samples(options: &[&str]) -> Option<(FarmFleet, String, String)> {
    let project = farm_project();
    let mark = project.mark();
    let fleet = FarmFleet::start(project, options, NO_VARIABLE)?;
    let client = &fleet.daemon.client;
    let agent = format!("exec -a {mark} sleep 86400");
    let path = opened(client, &farm_request(&fleet.cluster.project, &agent));
    wait_for(client, &path, "running");
    let groups = format!("{path}/groups");
    let _admitted = client.post(&groups, &[], &group("g", SAMPLES)).expect(201);
    wait::until(LONG_DEADLINE, "the samples run", || running(&mark) == SAMPLES as usize);
    Some((fleet, path, mark))
}

fn running(mark: &str) -> usize {
    processes::with_mark(mark).len()
}

/// Deletes the farm while its NATS server is away, for longer than the request waits.
#[track_caller]
fn delete_in_outage(fleet: &mut FarmFleet, path: &str, mark: &str) {
    fleet.cluster.server.kill();
    let client = &fleet.daemon.client;
    let _deleted = client.send("DELETE", path, &[], b"").expect("an answer").expect(204);
    let _gone = client.get(path).expect(404);
    assert_eq!(client.get("/v1/farms").expect(200).json()["farms"], serde_json::json!([]));
    assert_eq!(running(mark), SAMPLES as usize, "the workers do not know yet");
}

#[track_caller]
fn assert_removed(fleet: &FarmFleet, path: &str, mark: &str) {
    wait::until(LONG_DEADLINE, "the samples end", || running(mark) == 0);
    let id = path.rsplit('/').next().expect("an id");
    let state = fleet.cluster.project.path().join("state");
    let files = || {
        let places = [format!("jobs/{id}"), format!("farms/{id}.json"), format!("farms/{id}.yaml")];
        places.iter().filter(|place| state.join(place).exists()).count()
    };
    wait::until(LONG_DEADLINE, "the farm is removed", || files() == 0);
}

#[test]
fn farm_deleted_in_an_outage_is_removed_after_it() {
    let Some((mut fleet, path, mark)) = with_running_samples(&["--removal-wait", "1s"]) else {
        return;
    };
    delete_in_outage(&mut fleet, &path, &mark);
    fleet.cluster.server.ensure_started();
    assert_removed(&fleet, &path, &mark);
    fleet.stop();
}

#[test]
fn farm_deleted_in_an_outage_is_removed_by_the_next_daemon() {
    let Some((mut fleet, path, mark)) = with_running_samples(&["--removal-wait", "1s"]) else {
        return;
    };
    delete_in_outage(&mut fleet, &path, &mark);
    crate::serve::farm_fleet::kill(&mut fleet.daemon.process);
    fleet.cluster.server.ensure_started();
    fleet.start_daemon();
    let _gone = fleet.daemon.client.get(&path).expect(404);
    assert_removed(&fleet, &path, &mark);
    fleet.stop();
}

#[test]
fn daemon_that_is_stopped_in_a_deletion_leaves_it_to_the_next_one() {
    let Some((mut fleet, path, mark)) = with_running_samples(&["--removal-wait", "1s"]) else {
        return;
    };
    delete_in_outage(&mut fleet, &path, &mark);
    fleet.stop_daemon();
    assert_eq!(running(&mark), SAMPLES as usize, "the workers do not know yet");
    fleet.cluster.server.ensure_started();
    fleet.start_daemon();
    assert_removed(&fleet, &path, &mark);
    fleet.stop();
}

/// Rounds of a test of two events at the same moment. In the first ones the signal comes a little
/// earlier than the cancellation, in the last ones a little later.
const ROUNDS: u32 = 6;

/// How much later than in the round before the signal comes: a cancellation takes a few of these.
const STEP: Duration = Duration::from_millis(2);

/// Spends time exactly: the moments of two events differ by milliseconds.
fn spend(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Sends the cancellation of a group, and SIGTERM at nearly the same moment. Returns whether the
/// cancellation was answered.
fn cancel_and_stop(daemon: &mut DaemonProcess, path: &str, id: &str, round: u32) -> bool {
    let both = Arc::new(Barrier::new(2));
    let (client, at_once) = (daemon.client.clone(), Arc::clone(&both));
    let cancel = format!("{path}/groups/{id}/cancel");
    let cancelling = supervise::thread("cancellation", move || {
        at_once.wait();
        spend(STEP * (ROUNDS / 2).saturating_sub(round));
        let answer = client.send("POST", &cancel, &[], b"");
        answer.is_some_and(|answer| answer.status == 200)
    });
    both.wait();
    spend(STEP * round.saturating_sub(ROUNDS / 2));
    daemon.process.signal(Signal::TERM);
    cancelling.expect("a thread").join().expect("no panic")
}

#[test]
fn sample_cancelled_as_the_daemon_stops_ends_on_its_worker_without_the_next_daemon() {
    let Some((mut fleet, path, mark)) = with_running_samples(&[]) else { return };
    let mut answered = 0;
    for round in 0..ROUNDS {
        let id = if round == 0 { "g".to_owned() } else { format!("g{round}") };
        if round > 0 {
            fleet.start_daemon();
            wait_for(&fleet.daemon.client, &path, "running");
            let groups = format!("{path}/groups");
            let _admitted =
                fleet.daemon.client.post(&groups, &[], &group(&id, SAMPLES)).expect(201);
            wait::until(LONG_DEADLINE, "the samples run", || running(&mark) == SAMPLES as usize);
        }
        let was_answered = cancel_and_stop(&mut fleet.daemon, &path, &id, round);
        wait::until(DEADLINE, "the daemon ends", || fleet.daemon.process.has_ended());
        if was_answered {
            answered += 1;
            wait::until(LONG_DEADLINE, "the samples end", || running(&mark) == 0);
        } else {
            // The cancellation had no effect: the client sends it again.
            fleet.start_daemon();
            wait_for(&fleet.daemon.client, &path, "running");
            let cancel = format!("{path}/groups/{id}/cancel");
            let _cancelled = fleet.daemon.client.post(&cancel, &[], &Value::Null).expect(200);
            wait::until(LONG_DEADLINE, "the samples end", || running(&mark) == 0);
            fleet.stop_daemon();
        }
    }
    print_notice(&format!("{answered} of {ROUNDS} cancellations were answered"));
    fleet.start_daemon();
    fleet.stop();
}

#[test]
fn sample_cancelled_as_the_daemon_stops_does_not_hold_up_its_end() {
    let mut answered = 0;
    for round in 0..ROUNDS {
        let project = farm_project();
        let mark = project.mark();
        let mut daemon = DaemonProcess::start(&project, &["--slots", "4"]);
        let agent = format!("exec -a {mark} sleep 86400");
        let path = opened(&daemon.client, &farm_request(&project, &agent));
        let groups = format!("{path}/groups");
        let _admitted = daemon.client.post(&groups, &[], &group("g", SAMPLES)).expect(201);
        wait::until(LONG_DEADLINE, "the samples run", || running(&mark) == SAMPLES as usize);
        if cancel_and_stop(&mut daemon, &path, "g", round) {
            answered += 1;
        } else {
            // Samples that run have until the second signal.
            daemon.process.signal(Signal::TERM);
        }
        wait::until(LONG_DEADLINE, "the daemon ends", || daemon.process.has_ended());
        wait::until(LONG_DEADLINE, "the samples end", || running(&mark) == 0);
    }
    print_notice(&format!("{answered} of {ROUNDS} cancellations were answered"));
}
