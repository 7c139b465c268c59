//! Farms of a daemon whose samples run on workers of a server.

use std::time::Duration;

use rollout_tests::model_server::ModelServer;
use rollout_tests::processes;
use rollout_tests::wait::{self, LONG_DEADLINE};
use serde_json::{Value, json};

use crate::serve::farm_fleet::FarmFleet;
use crate::serve::farms::{
    CALLER, completions, farm_project, farm_request, group, opened, wait_for,
};

/// A variable without an effect.
const NO_VARIABLE: (&str, &str) = ("ROLLOUT_TEST_UNUSED", "");

/// A fleet and its farm, whose agents call models: the server keeps their answers back.
fn with_callers(calls: usize) -> Option<(ModelServer, FarmFleet, String)> {
    let server = ModelServer::start(Duration::ZERO);
    server.hold_answers();
    let options = ["--allow-model-server", &server.origin()];
    let fleet = FarmFleet::start(farm_project(), &options, NO_VARIABLE)?;
    let call = format!("python3 - <<'PYTHON'\n{CALLER}\nPYTHON\n");
    let mut request = farm_request(&fleet.cluster.project, &call.repeat(calls));
    // More than the workers have slots.
    request["document"]["n_concurrent_trials"] = json!(64);
    request["document"]["gateway"] = json!({ "upstreams": [
        { "name": "main", "url": format!("{}/v1", server.origin()), "hold_sec": 300 },
    ] });
    let path = opened(&fleet.daemon.client, &request);
    wait_for(&fleet.daemon.client, &path, "running");
    Some((server, fleet, path))
}

#[track_caller]
fn submit(fleet: &FarmFleet, path: &str, group: &Value) {
    let groups = format!("{path}/groups");
    let _admitted = fleet.daemon.client.post(&groups, &[], group).expect(201);
}

#[track_caller]
fn wait_for_calls(server: &ModelServer, count: usize) {
    wait::until(LONG_DEADLINE, "calls of the agents", || server.calls().len() == count);
}

#[track_caller]
fn wait_for_counts(fleet: &FarmFleet, path: &str, in_flight: u64, held: u64) {
    let mut status = Value::Null;
    let came = wait::holds_within(LONG_DEADLINE, || {
        status = fleet.daemon.client.get(path).expect(200).json()["status"].clone();
        let calls = &status["model_calls"];
        calls["in_flight"] == in_flight && calls["held"] == held
    });
    assert!(came, "not {in_flight} in flight and {held} held: {status:#}");
}

/// The policy versions of the calls of a completion, in the order of the calls.
fn policies(fleet: &FarmFleet, path: &str, cursor: &Value) -> Vec<Value> {
    let calls = fleet.daemon.client.get(&format!("{path}/completions/{cursor}/calls"));
    let calls = calls.expect(200).json();
    let trajectories = calls["trajectories"].as_array().expect("trajectories").iter();
    let mut found: Vec<_> = trajectories
        .flat_map(|one| {
            let numbers = one["calls"].as_array().expect("calls").iter().map(Value::as_u64);
            numbers.zip(one["policies"].as_array().expect("policies")).collect::<Vec<_>>()
        })
        .collect();
    found.sort_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, policy)| policy.clone()).collect()
}

#[test]
fn pause_and_versions_reach_workers_and_outlive_the_daemon() {
    let Some((server, mut fleet, path)) = with_callers(2) else { return };
    let post = |fleet: &FarmFleet, verb: &str, body: &Value| {
        fleet.daemon.client.post(&format!("{path}/{verb}"), &[], body).expect(200).json()
    };
    post(&fleet, "policy", &json!({ "version": 1 }));
    let mut first = group("first", 2);
    first["policy_version"] = json!(1);
    submit(&fleet, &path, &first);
    wait_for_calls(&server, 2);
    let paused = post(&fleet, "pause", &Value::Null);
    assert_eq!(paused["model_calls"]["unconfirmed_workers"], 0, "{paused:#}");
    submit(&fleet, &path, &group("second", 1));
    server.answer(2);
    wait_for_counts(&fleet, &path, 0, 2);
    fleet.restart_daemon();
    wait_for(&fleet.daemon.client, &path, "paused");
    wait_for_counts(&fleet, &path, 0, 2);
    assert_eq!(server.calls().len(), 2, "no call is sent in the pause");
    post(&fleet, "resume", &json!({ "version": 2 }));
    server.answer(4);
    let found = completions(&fleet.daemon.client, &path, 3);
    assert_eq!(server.calls().len(), 6, "every agent made its two calls once");
    let call = |version: u64| json!({ "dispatched": version, "ended": version });
    for completion in &found {
        assert_eq!(completion["reward"], 1.0, "{completion:#}");
        let first = if completion["group"] == "first" { 1 } else { 2 };
        let policies = policies(&fleet, &path, &completion["cursor"]);
        assert_eq!(policies, [call(first), call(2)], "{completion:#}");
        assert_eq!(completion["policy"]["ended"], 2);
    }
    fleet.stop();
}

#[test]
fn pause_begins_no_sample_that_waits_for_a_worker() {
    let Some((server, fleet, path)) = with_callers(1) else { return };
    let client = &fleet.daemon.client;
    let slots = 6;
    submit(&fleet, &path, &group("g", 16));
    wait_for_calls(&server, slots);
    let _paused = client.post(&format!("{path}/pause"), &[], &Value::Null).expect(200);
    server.answer(slots);
    completions(client, &path, slots);
    let more = client.get(&format!("{path}/completions?after=6&wait=2")).expect(200).json();
    assert_eq!(more["completions"], json!([]));
    wait_for_counts(&fleet, &path, 0, 0);
    let running = fleet.workers.iter().map(|worker| worker.executing_items().len());
    assert_eq!(running.sum::<usize>(), 0, "no sample begins");
    let _resumed = client.post(&format!("{path}/resume"), &[], &json!({})).expect(200);
    server.answer(10);
    completions(client, &path, 16);
    assert_eq!(server.calls().len(), 16, "every sample ran once");
    fleet.stop();
}

#[test]
fn running_samples_outlive_daemon_and_server_and_those_of_killed_worker_run_again() {
    const N: usize = 4;
    let Some((server, mut fleet, path)) = with_callers(1) else { return };
    submit(&fleet, &path, &group("g", 4));
    wait_for_calls(&server, N);
    fleet.restart_daemon();
    wait_for(&fleet.daemon.client, &path, "running");
    fleet.restart_server();
    fleet.wipe_server();
    let items: Vec<_> = fleet.workers.iter().map(|worker| worker.executing_items()).collect();
    assert_eq!(items.iter().map(Vec::len).sum::<usize>(), N, "none was started again");
    let busiest = usize::from(items[1].len() > items[0].len());
    let lost = items[busiest].len();
    fleet.restart_worker(busiest);
    wait_for_calls(&server, N + lost);
    server.answer(2 * N);
    let found = completions(&fleet.daemon.client, &path, N);
    assert!(found.iter().all(|one| one["reward"] == 1.0), "{found:#?}");
    assert!(found.iter().all(|one| one["generation"] == 1), "none was replaced: {found:#?}");
    let others = found.iter().filter_map(|one| one["other_executions"].as_u64()).sum::<u64>();
    assert_eq!(others, lost as u64, "{found:#?}");
    assert_eq!(server.calls().len(), N + lost, "only lost samples ran again");
    fleet.stop();
}

#[test]
fn stopped_daemon_leaves_samples_and_their_pool_to_the_next_one() {
    let Some((server, mut fleet, path)) = with_callers(1) else { return };
    submit(&fleet, &path, &group("g", 2));
    wait_for_calls(&server, 2);
    fleet.stop_daemon();
    let project = &fleet.cluster.project;
    let tasks = project.path().join("tasks").display().to_string();
    project.write_file("other.yaml", &format!(
        "agents: [{{name: oracle}}]\nenvironment: {{type: process}}\ndatasets: [{{path: '{tasks}'}}]\n"
    ));
    let words = ["run", "other.yaml", "--store", "other-store"];
    let refused = fleet.cluster.command(&words).wait(LONG_DEADLINE);
    assert!(!refused.status.success(), "the pool is not free for another store");
    let _refused = refused.expect_stderr("uses the blob store");
    fleet.start_daemon();
    wait_for(&fleet.daemon.client, &path, "running");
    server.answer(2);
    let found = completions(&fleet.daemon.client, &path, 2);
    assert!(found.iter().all(|one| one["reward"] == 1.0), "{found:#?}");
    assert_eq!(server.calls().len(), 2, "no sample ran again");
    fleet.stop();
}

#[test]
fn cancelled_and_deleted_samples_end_on_their_workers() {
    let project = farm_project();
    let mark = project.mark();
    let Some(fleet) = FarmFleet::start(project, &[], NO_VARIABLE) else { return };
    let client = &fleet.daemon.client;
    let agent = format!("exec -a {mark} sleep 86400");
    let path = opened(client, &farm_request(&fleet.cluster.project, &agent));
    wait_for(client, &path, "running");
    for id in ["kept", "cancelled"] {
        submit(&fleet, &path, &group(id, 2));
    }
    let running = || processes::with_mark(&mark).len();
    wait::until(LONG_DEADLINE, "the samples run", || running() == 4);
    let cancel = format!("{path}/groups/cancelled/cancel");
    let _cancelled = client.post(&cancel, &[], &Value::Null).expect(200);
    let found = completions(client, &path, 2);
    assert!(found.iter().all(|one| one["reason"] == "requested"), "{found:#?}");
    wait::until(LONG_DEADLINE, "two sandboxes end", || running() == 2);
    let _deleted = client.send("DELETE", &path, &[], b"").expect("an answer").expect(204);
    wait::until(LONG_DEADLINE, "the others end", || running() == 0);
    let id = path.rsplit('/').next().expect("an id");
    assert!(!fleet.cluster.project.path().join("state/jobs").join(id).exists());
    fleet.stop();
}

#[test]
fn urgent_group_overtakes_samples_that_wait_for_a_worker() {
    const PATIENT: u32 = 90;
    let Some((server, fleet, path)) = with_callers(1) else { return };
    let slots = 6;
    submit(&fleet, &path, &group("patient", PATIENT));
    wait_for_calls(&server, slots);
    let mut urgent = group("urgent", 4);
    urgent["priority"] = json!(10);
    submit(&fleet, &path, &urgent);
    server.answer(PATIENT as usize + 4);
    let found = completions(&fleet.daemon.client, &path, PATIENT as usize + 4);
    let of_urgent = |completion: &Value| completion["group"] == "urgent";
    let last = found.iter().rposition(of_urgent).expect("its completions");
    // Of `n_concurrent_trials` samples, those were begun that workers may take soon.
    assert!(last < 56, "{last} completions came before the last urgent one");
    fleet.stop();
}
