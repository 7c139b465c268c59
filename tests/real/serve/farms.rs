//! Farms over HTTP: groups, completions and control.

use rollout_tests::http::{HttpAnswer, HttpClient};
use rollout_tests::leak_check::assert_no_leaks;
use rollout_tests::model_server::ModelServer;
use rollout_tests::processes;
use rollout_tests::project::Project;
use rollout_tests::wait::{self, LONG_DEADLINE};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::events::next_event;
use crate::serve::{DEADLINE, DaemonProcess, project};

/// Starts in any sandbox.
const DOCKERFILE: &str = "FROM debian:bookworm-slim\n";

/// An agent that makes one call through the gateway of its worker.
pub(crate) const CALLER: &str = r#"
import json, os, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
headers = {"Content-Type": "application/json",
           "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
with urllib.request.urlopen(request, timeout=60) as reply:
    open("answer.txt", "wb").write(reply.read())
"#;

/// A project with the task `tasks/t`, whose reward is 1 if there is an answer.
pub(crate) fn farm_project() -> Project {
    with_task(project())
}

/// Adds the task `tasks/t`, whose reward is 1 if there is an answer.
pub(crate) fn with_task(project: Project) -> Project {
    project
        .write("tasks/t/task.toml", "version = '1.0'\n")
        .write("tasks/t/instruction.md", "Write the answer.\n")
        .write("tasks/t/environment/Dockerfile", DOCKERFILE)
        .write(
            "tasks/t/tests/test.sh",
            "test -s answer.txt; echo $((1 - $?)) >/logs/verifier/reward.txt\n",
        )
}

/// A farm whose agent runs a script.
pub(crate) fn farm_request(project: &Project, execute: &str) -> Value {
    json!({ "name": "policy", "document": {
        "n_concurrent_trials": 4,
        "environment": { "type": "process" },
        "agents": [{ "name": "policy", "execute": execute }],
        "datasets": [{ "path": project.path().join("tasks") }],
    } })
}

/// Opens a farm and returns its path.
#[track_caller]
pub(crate) fn opened(client: &HttpClient, request: &Value) -> String {
    let farm = client.post("/v1/farms", &[], request).expect(201).json();
    format!("/v1/farms/{}", farm["id"].as_str().expect("an id"))
}

pub(crate) fn group(id: &str, n: u32) -> Value {
    json!({ "group": id, "task": { "named": "tasks/t" }, "n": n })
}

/// Waits until a farm is in a state, and returns it.
#[track_caller]
pub(crate) fn wait_for(client: &HttpClient, path: &str, state: &str) -> Value {
    let mut farm = Value::Null;
    let reached = wait::holds_within(DEADLINE, || {
        farm = client.get(path).expect(200).json();
        farm["state"] == state
    });
    assert!(reached, "not {state}: {farm:#}");
    farm
}

/// Reads completions until there are this many.
#[track_caller]
pub(crate) fn completions(client: &HttpClient, path: &str, count: usize) -> Vec<Value> {
    let (mut found, mut after) = (Vec::new(), 0);
    while found.len() < count {
        let read = client.get(&format!("{path}/completions?after={after}&wait=60")).expect(200);
        let read = read.json();
        let page = read["completions"].as_array().expect("completions").clone();
        assert!(!page.is_empty(), "{} of {count} came", found.len());
        after = read["next_after"].as_u64().expect("a cursor");
        found.extend(page);
    }
    found
}

/// Kills a daemon, and starts the next one.
fn restarted(project: &Project, mut daemon: DaemonProcess) -> DaemonProcess {
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    DaemonProcess::start(project, &[])
}

pub(crate) fn problem_type(answer: &HttpAnswer) -> String {
    answer.json()["type"].as_str().unwrap_or_default().replace("urn:rollout:problem:", "")
}

#[test]
fn farm_with_nothing_to_do_outlives_a_stop_of_the_daemon() {
    let project = farm_project();
    let mut daemon = DaemonProcess::start(&project, &[]);
    let path = opened(&daemon.client, &farm_request(&project, "echo done >answer.txt"));
    for cursor in [1, 2] {
        let admitted = group(&format!("g{cursor}"), 1);
        let _admitted = daemon.client.post(&format!("{path}/groups"), &[], &admitted).expect(201);
        assert_eq!(completions(&daemon.client, &path, 1)[0]["cursor"], cursor);
        let cursors = json!({ "cursors": [cursor] });
        let _taken = daemon.client.post(&format!("{path}/ack"), &[], &cursors).expect(200);
        daemon.process.signal(Signal::TERM);
        let _stopped = daemon.process.wait(DEADLINE);
        daemon = DaemonProcess::start(&project, &[]);
        wait_for(&daemon.client, &path, "running");
    }
    daemon.stop();
    assert_no_leaks(&project);
}

#[test]
fn group_is_admitted_once_read_until_acknowledged_and_remembered() {
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &[]);
    let client = daemon.client.clone();
    let request = farm_request(&project, "echo done >answer.txt");
    let key = [("idempotency-key", "k")];
    let first = client.post("/v1/farms", &key, &request).expect(201);
    let farm = first.json();
    let path = format!("/v1/farms/{}", farm["id"].as_str().expect("an id"));
    assert_eq!(first.header("location"), Some(&*path));
    assert_eq!(client.post("/v1/farms", &key, &request).expect(200).json()["id"], farm["id"]);
    let other = client.post("/v1/farms", &key, &farm_request(&project, "true")).expect(409);
    assert_eq!(problem_type(&other), "idempotency-conflict");

    let post = |more: &str, body: &Value| client.post(&format!("{path}{more}"), &[], body);
    let answer = post("/groups", &group("g", 2)).expect(201).json();
    assert_eq!(answer, json!({ "group": "g", "known": false }));
    assert_eq!(post("/groups", &group("g", 2)).expect(200).json()["known"], true);
    assert_eq!(problem_type(&post("/groups", &group("g", 3)).expect(409)), "conflict");
    let unknown = json!({ "group": "h", "task": { "named": "none" }, "n": 1 });
    for invalid in [group("h", 0), unknown, json!({ "group": "h" }), group("a b", 1)] {
        assert_eq!(problem_type(&post("/groups", &invalid).expect(422)), "invalid-group");
    }

    let found = completions(&client, &path, 2);
    assert!(found.iter().all(|one| one["reward"] == 1.0 && one["usable"] == true), "{found:#?}");
    assert_eq!((&found[0]["cursor"], &found[1]["cursor"]), (&json!(1), &json!(2)));
    assert_eq!(found[1]["group_end"], "complete");
    let record = client.get(&format!("{path}/completions/1/record")).expect(200).json();
    assert_eq!(record["verdict"]["reward"], 1.0, "{record:#}");
    let _no_gateway = client.get(&format!("{path}/completions/1/calls")).expect(404);
    let held = client.get(&format!("{path}/groups/g")).expect(200).json();
    assert_eq!(
        (&held["n"], &held["usable"], &held["end"]),
        (&json!(2), &json!(2), &json!("complete"))
    );
    let wrong = client.get(&format!("{path}/completions?consumer=none")).expect(404);
    assert_eq!(problem_type(&wrong), "not-found");

    let answer = post("/ack", &json!({ "cursors": [1, 9] })).expect(200).json();
    assert_eq!((&answer["acknowledged"], &answer["unknown"]), (&json!(1), &json!(1)));
    let answer =
        post("/ack", &json!({ "consumer": "train", "cursors": [1, 2] })).expect(200).json();
    assert_eq!((&answer["acknowledged"], &answer["repeated"]), (&json!(1), &json!(1)));
    let read = client.get(&format!("{path}/completions")).expect(200).json();
    assert_eq!(read, json!({ "completions": [], "next_after": 0 }));
    let _gone = client.get(&format!("{path}/completions/1/record")).expect(404);
    let known = post("/groups", &group("g", 2)).expect(200).json();
    assert_eq!(known, json!({ "group": "g", "known": true, "end": "complete" }));
    let former = client.get(&format!("{path}/groups/g")).expect(200).json();
    assert_eq!(former, json!({ "group": "g", "end": "complete" }));
    let _unknown = client.get(&format!("{path}/groups/h")).expect(404);
    daemon.stop();
    assert_no_leaks(&project);
}

#[test]
fn cancelled_id_outlives_the_daemon_and_closed_farm_ends() {
    let project = farm_project();
    let mut daemon = DaemonProcess::start(&project, &[]);
    let path = opened(&daemon.client, &farm_request(&project, "echo done >answer.txt"));
    let _admitted = daemon.client.post(&format!("{path}/groups"), &[], &group("g", 2)).expect(201);
    completions(&daemon.client, &path, 2);
    let cancel = format!("{path}/groups/never-seen/cancel");
    let cancelled = daemon.client.post(&cancel, &[], &Value::Null).expect(200).json();
    assert_eq!(cancelled["unknown"], true);
    daemon = restarted(&project, daemon);
    let client = &daemon.client;
    let refused = client.post(&format!("{path}/groups"), &[], &group("never-seen", 1)).expect(409);
    assert_eq!(problem_type(&refused), "conflict");
    let closed = client.post(&format!("{path}/close"), &[], &Value::Null).expect(200).json();
    assert_eq!((&closed["state"], &closed["is_final"]), (&json!("closed"), &json!(false)));
    let cursors = json!({ "cursors": [1, 2] });
    let _taken = client.post(&format!("{path}/ack"), &[], &cursors).expect(200);
    wait::until(LONG_DEADLINE, "the farm ends", || {
        client.get(&path).expect(200).json()["is_final"] == true
    });
    let refused = client.post(&format!("{path}/groups"), &[], &group("late", 1)).expect(409);
    assert_eq!(problem_type(&refused), "closed");
    let read = client.get(&format!("{path}/completions?wait=60&after=1")).expect(200).json();
    assert_eq!(read, json!({ "completions": [], "next_after": 1 }));
    let farm = client.get(&path).expect(200).json();
    assert_eq!(farm["status"]["totals"]["usable"], 2, "{farm:#}");
    daemon.stop();
    assert_no_leaks(&project);
}

#[test]
fn full_farm_refuses_with_limit_and_depth() {
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &["--max-farms", "1"]);
    let mut request = farm_request(&project, "sleep 86400");
    request["settings"] = json!({ "limits": { "open_groups": 1 } });
    let path = opened(&daemon.client, &request);
    let groups = format!("{path}/groups");
    let _admitted = daemon.client.post(&groups, &[], &group("a", 1)).expect(201);
    let refused = daemon.client.post(&groups, &[], &group("b", 1)).expect(429);
    assert_eq!(problem_type(&refused), "busy");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let problem = refused.json();
    let members = (&problem["limit"], &problem["depth"], &problem["max"]);
    assert_eq!(members, (&json!("open_groups"), &json!(1), &json!(1)));
    let refused = daemon.client.post("/v1/farms", &[], &request).expect(429).json();
    assert_eq!((&refused["limit"], &refused["max"]), (&json!("farms"), &json!(1)));
    request["settings"] = json!({ "limits": { "open_groups": 0 } });
    let removed = daemon.client.send("DELETE", &path, &[], b"").expect("an answer");
    let _removed = removed.expect(204);
    let refused = daemon.client.post("/v1/farms", &[], &request).expect(422);
    assert_eq!(problem_type(&refused), "invalid-farm");
    daemon.stop();
}

#[test]
fn deleted_farm_ends_its_sandboxes_and_leaves_no_file() {
    let project = farm_project();
    let mark = project.mark();
    let daemon = DaemonProcess::start(&project, &[]);
    let path =
        opened(&daemon.client, &farm_request(&project, &format!("exec -a {mark} sleep 86400")));
    let _admitted = daemon.client.post(&format!("{path}/groups"), &[], &group("g", 4)).expect(201);
    let running = || processes::with_mark(&mark).len();
    wait::until(LONG_DEADLINE, "samples run", || running() > 0);
    let removed = daemon.client.send("DELETE", &path, &[], b"").expect("an answer");
    let _removed = removed.expect(204);
    wait::until(LONG_DEADLINE, "the sandboxes end", || running() == 0);
    let _gone = daemon.client.get(&path).expect(404);
    let id = path.rsplit('/').next().expect("an id");
    let state = project.path().join("state");
    assert!(!state.join("jobs").join(id).exists());
    assert!(!state.join("farms").join(format!("{id}.json")).exists());
    daemon.stop();
    assert_no_leaks(&project);
}

#[test]
fn pause_outlives_the_daemon_and_no_sample_begins_before_resume() {
    let project = farm_project();
    let mut daemon = DaemonProcess::start(&project, &[]);
    let path = opened(&daemon.client, &farm_request(&project, "echo done >answer.txt"));
    let post = |client: &HttpClient, verb: &str, body: &Value| {
        client.post(&format!("{path}/{verb}"), &[], body).expect(200).json()
    };
    let paused = post(&daemon.client, "pause", &Value::Null);
    assert_eq!(paused, json!({ "paused": true, "in_flight": 0 }));
    let _admitted = daemon.client.post(&format!("{path}/groups"), &[], &group("g", 1)).expect(201);
    daemon = restarted(&project, daemon);
    wait_for(&daemon.client, &path, "paused");
    let read = daemon.client.get(&format!("{path}/completions?wait=2")).expect(200).json();
    assert_eq!(read["completions"], json!([]), "nothing runs during a pause");
    let resumed = post(&daemon.client, "resume", &json!({ "version": 3 }));
    assert_eq!(resumed["paused"], false);
    let found = completions(&daemon.client, &path, 1);
    assert_eq!(found[0]["policy"]["ended"], 3, "{found:#?}");
    assert_eq!(post(&daemon.client, "policy", &json!({ "version": 4 }))["policy_version"], 4);
    daemon.stop();
}

#[test]
fn stream_that_connects_again_gets_every_completion_once() {
    let project = farm_project();
    let mut daemon = DaemonProcess::start(&project, &[]);
    let path = opened(&daemon.client, &farm_request(&project, "echo done >answer.txt"));
    for id in ["a", "b", "c"] {
        let groups = format!("{path}/groups");
        let _admitted = daemon.client.post(&groups, &[], &group(id, 2)).expect(201);
    }
    let stream = format!("{path}/completions/stream");
    let (mut received, mut last) = (Vec::new(), 0);
    for connection in 0..3 {
        let number = last.to_string();
        let mut lines = match connection % 2 {
            0 => daemon.client.follow(&stream, &[("last-event-id", &number)]),
            _ => daemon.client.follow(&format!("{stream}?after={last}"), &[]),
        };
        for _ in 0..2 {
            let (cursor, kind, data) = next_event(&mut lines).expect("a completion");
            assert_eq!((&*kind, data["cursor"].as_u64()), ("completion", Some(cursor)));
            last = cursor;
            received.push(cursor);
        }
        if connection == 1 {
            daemon = restarted(&project, daemon);
            wait_for(&daemon.client, &path, "running");
        }
    }
    assert_eq!(received, [1, 2, 3, 4, 5, 6]);
    let mut lines = daemon.client.follow(&format!("{stream}?after=6"), &[]);
    let _closed = daemon.client.post(&format!("{path}/close"), &[], &Value::Null).expect(200);
    let cursors = json!({ "cursors": received });
    let _taken = daemon.client.post(&format!("{path}/ack"), &[], &cursors).expect(200);
    assert_eq!(next_event(&mut lines).expect("an event").1, "end");
    daemon.stop();
}

#[test]
fn reader_that_goes_frees_its_place() {
    let project = farm_project();
    // Two answers may last.
    let daemon = DaemonProcess::start(&project, &["--max-connections", "4"]);
    let path = opened(&daemon.client, &farm_request(&project, "true"));
    wait_for(&daemon.client, &path, "running");
    for _ in 0..6 {
        let _gone = daemon.client.begin("GET", &format!("{path}/completions?wait=60"), &[]);
    }
    wait::until(LONG_DEADLINE, "a reader has a place", || {
        daemon.client.get(&format!("{path}/completions?wait=1")).status == 200
    });
    daemon.stop();
}

#[test]
fn users_see_and_use_their_own_farms_only() {
    let (project, daemon) = crate::serve::tokens::with_users();
    let project = with_task(project);
    let user = |token: &str| daemon.client.with_token(token);
    let (ada, bob, reader) = (user("ada-token"), user("bob-token"), user("ada-reads"));
    let path = opened(&ada, &farm_request(&project, "echo done >answer.txt"));
    let list = |client: &HttpClient| client.get("/v1/farms").expect(200).json()["farms"].clone();
    assert_eq!(list(&bob), json!([]));
    assert_eq!(list(&ada).as_array().map(Vec::len), Some(1));
    let _admitted = ada.post(&format!("{path}/groups"), &[], &group("g", 1)).expect(201);
    let posts = [
        ("groups", group("g", 1)),
        ("groups/g/cancel", Value::Null),
        ("ack", json!({ "cursors": [1] })),
        ("policy", json!({ "version": 1 })),
        ("pause", Value::Null),
        ("resume", Value::Null),
        ("close", Value::Null),
    ];
    for (more, body) in &posts {
        let _hidden = bob.post(&format!("{path}/{more}"), &[], body).expect(404);
        let _refused = reader.post(&format!("{path}/{more}"), &[], body).expect(403);
    }
    for more in ["", "/groups/g", "/completions", "/completions/stream", "/completions/1/record"] {
        let _hidden = bob.get(&format!("{path}{more}")).expect(404);
    }
    for (client, status) in [(&bob, 404), (&reader, 403)] {
        let answer = client.send("DELETE", &path, &[], b"").expect("an answer");
        let _refused = answer.expect(status);
    }
    assert_eq!(completions(&reader, &path, 1)[0]["reward"], 1.0);
    let _record = reader.get(&format!("{path}/completions/1/record")).expect(200);
    let _refused = reader.post("/v1/farms", &[], &farm_request(&project, "true")).expect(403);
    daemon.stop();
}

#[test]
fn calls_of_a_sample_are_trajectories_with_tokens() {
    let server = ModelServer::start(std::time::Duration::ZERO);
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &["--allow-model-server", &server.origin()]);
    let call = format!("python3 - <<'PYTHON'\n{CALLER}\nPYTHON\n");
    let mut request = farm_request(&project, &call.repeat(2));
    request["document"]["gateway"] = json!({ "upstreams": [
        { "name": "main", "url": format!("{}/v1", server.origin()), "capture": "tokens" },
    ] });
    let path = opened(&daemon.client, &request);
    let _admitted = daemon.client.post(&format!("{path}/groups"), &[], &group("g", 1)).expect(201);
    let found = completions(&daemon.client, &path, 1);
    assert_eq!(found[0]["reward"], 1.0, "{found:#?}");
    let calls = daemon.client.get(&format!("{path}/completions/1/calls")).expect(200).json();
    let trajectories = calls["trajectories"].as_array().expect("trajectories");
    assert_eq!(trajectories.len(), 2, "{calls:#}");
    for trajectory in trajectories {
        let lengths =
            ["ids", "mask", "logprobs"].map(|key| trajectory[key].as_array().map(Vec::len));
        assert!(lengths[0] > Some(0) && lengths.iter().all(|one| *one == lengths[0]), "{calls:#}");
    }
    assert_eq!(calls["policy"], found[0]["policy"]);
    daemon.stop();
}
