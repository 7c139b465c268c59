//! One user who takes all of a limit, and the others.

use std::io::Read as _;
use std::time::{Duration, Instant};

use rollout_protocol::limits;
use rollout_tests::http::{HttpAnswer, HttpClient};
use rollout_tests::project::Project;
use serde_json::{Value, json};

use crate::serve::farms::{opened, problem_type};
use crate::serve::tokens::tokens;
use crate::serve::{DaemonProcess, project, submission, submitted};

/// Longest time of an answer to another user.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);

/// More than any limit of these servers.
const MANY: usize = 64;

/// A daemon of three users, which starts no run. It ends before its files are removed.
struct SharedDaemon {
    daemon: DaemonProcess,
    project: Project,
}

impl SharedDaemon {
    fn start(options: &[&str]) -> Self {
        let users = [
            ("ada", "submit", "ada-token"),
            ("bob", "submit", "bob-token"),
            ("root", "admin", "root-token"),
        ];
        let project = project().tasks(["slow/second"], &[]).write("tokens.toml", &tokens(&users));
        let options = [&["--tokens", "tokens.toml", "--max-running", "0"], options].concat();
        let daemon = DaemonProcess::start(&project, &options);
        Self { project, daemon }
    }

    fn user(&self, name: &str) -> HttpClient {
        self.daemon.client.with_token(&format!("{name}-token"))
    }

    /// Asserts that another user and the administrator get what `ask` asks for, at once.
    #[track_caller]
    fn assert_others_served<T>(&self, ask: impl Fn(&HttpClient) -> (u16, T)) {
        let mut held = Vec::new();
        for name in ["bob", "root"] {
            let (client, began) = (self.user(name), Instant::now());
            let (status, taken) = ask(&client);
            assert!((200..300).contains(&status), "{name}: {status}");
            assert!(began.elapsed() < ANSWER_DEADLINE, "{name}: {:?}", began.elapsed());
            held.push(taken);
        }
    }

    fn submission(&self) -> Value {
        submission(&self.project, 1)
    }
}

/// Asks until there is no room for more, and returns all that was taken.
#[track_caller]
fn take_all<T>(refusal: u16, ask: impl Fn() -> (u16, T)) -> Vec<T> {
    let mut taken = Vec::new();
    for _ in 0..MANY {
        let (status, one) = ask();
        if status == refusal {
            assert!(!taken.is_empty(), "nothing was taken");
            return taken;
        }
        assert!((200..300).contains(&status), "{status}");
        taken.push(one);
    }
    panic!("{MANY} were taken");
}

fn answered(answer: &HttpAnswer) -> (u16, ()) {
    (answer.status, ())
}

#[test]
fn streams_of_one_user_leave_streams_for_others() {
    let served = SharedDaemon::start(&["--max-connections", "32"]);
    let ada = served.user("ada");
    let of_ada = submitted(&ada, &served.submission());
    let of_bob = submitted(&served.user("bob"), &served.submission());
    let follow = |client: &HttpClient, id: &str| {
        let lines = client.open(&format!("/v1/runs/{id}/events"), &[]);
        (lines.status, lines)
    };
    let _of_bob = follow(&served.user("bob"), &of_bob);
    let held = take_all(429, || follow(&ada, &of_ada));
    assert!(held.len() >= 4, "{}", held.len());
    let refused = ada.get(&format!("/v1/runs/{of_ada}/events")).expect(429);
    let problem = refused.json();
    assert_eq!(problem["limit"], json!("streams"), "{problem:#}");
    assert_eq!(problem["depth"], json!(held.len()), "those of others are not told: {problem:#}");
    let _answered = ada.get("/v1/runs").expect(200);
    served.assert_others_served(|client| follow(client, &of_bob));
}

#[test]
fn requests_of_one_user_leave_requests_for_others() {
    let served = SharedDaemon::start(&["--max-connections", "32"]);
    let ada = served.user("ada");
    let mut held = Vec::new();
    for _ in 0..MANY {
        // A body that never comes.
        held.push(ada.begin("POST", "/v1/runs", &[("content-length", "9")]));
        if ada.get("/v1/runs").status == 429 {
            break;
        }
    }
    assert!((8..MANY).contains(&held.len()), "{}", held.len());
    served.assert_others_served(|client| answered(&client.get("/v1/runs")));
}

#[test]
fn bodies_of_one_user_leave_room_for_those_of_others() {
    let served = SharedDaemon::start(&["--max-body", "128"]);
    let ada = served.user("ada");
    let size = (128 * 1024 * 1024).to_string();
    let begin = || ada.begin("POST", "/v1/runs", &[("content-length", &size)]);
    let _held: Vec<_> = (0..9).map(|_| begin()).collect();
    let job = served.submission();
    served.assert_others_served(|client| answered(&client.post("/v1/runs", &[], &job)));
}

#[test]
fn runs_and_farms_of_one_user_leave_room_for_those_of_others() {
    let served = SharedDaemon::start(&["--max-queued", "8", "--max-farms", "8"]);
    let ada = served.user("ada");
    let job = served.submission();
    let farm = json!({ "name": "policy", "document": job["document"] });
    for (path, request) in [("/v1/runs", &job), ("/v1/farms", &farm)] {
        let taken = take_all(429, || answered(&ada.post(path, &[], request)));
        assert!(taken.len() >= 4, "{path}: {}", taken.len());
        served.assert_others_served(|client| answered(&client.post(path, &[], request)));
    }
}

#[test]
fn paused_runs_of_one_user_leave_room_for_runs_of_others() {
    let served = SharedDaemon::start(&["--max-queued", "8"]);
    let ada = served.user("ada");
    let job = served.submission();
    let submit_paused = || {
        let submitted = ada.post("/v1/runs", &[], &job);
        if submitted.status == 201 {
            let run = submitted.json();
            let path = format!("/v1/runs/{}/pause", run["id"].as_str().expect("an id"));
            let _paused = ada.post(&path, &[], &Value::Null).expect(202);
        }
        answered(&submitted)
    };
    let taken = take_all(429, submit_paused);
    assert!((4..8).contains(&taken.len()), "{}", taken.len());
    let refused = ada.post("/v1/runs", &[], &job).expect(429);
    let told = format!("{} of at most 8", taken.len());
    assert!(refused.text().contains(&told), "{}", refused.text());
    served.assert_others_served(|client| answered(&client.post("/v1/runs", &[], &job)));
}

#[test]
fn uploads_of_one_user_leave_disk_for_those_of_others() {
    // An upload counts twice: its archive, and the files that are made of it.
    let served = SharedDaemon::start(&["--user-disk", "16m", "--max-dataset", "2"]);
    let upload = |client: &HttpClient, number: usize| {
        let path = format!("/v1/datasets/{number:064x}");
        let mut upload = client.begin("PUT", &path, &[("content-length", "1048576")]);
        // The server waits for the body, or has refused.
        upload.set_read_timeout(Some(Duration::from_millis(500))).expect("set");
        let mut head = [0; 12];
        let status = match upload.read_exact(&mut head) {
            Ok(()) => String::from_utf8_lossy(&head[9..]).parse().expect("a status"),
            Err(_) => 200,
        };
        (status, upload)
    };
    let ada = served.user("ada");
    let taken = take_all(507, || upload(&ada, 1));
    assert!((4..8).contains(&taken.len()), "{}", taken.len());
    served.assert_others_served(|client| upload(client, 2));
}

/// A request of 64 samples, each with metadata of this length.
fn group(name: usize, bytes: usize) -> Value {
    json!({
        "group": format!("g{name}"),
        "task": { "named": "tasks/second" },
        "n": 64,
        "metadata": { "prompt": "x".repeat(bytes) },
    })
}

/// Asserts that a farm, when there is no room for more, tells that it knows its first group, and then that
/// it is closed to one with another number.
fn assert_told_without_room(client: &HttpClient, groups: &str, unknown: usize) {
    let _known = client.post(groups, &[], &group(0, 261_000)).expect(200);
    let refusal =
        |request: &Value| client.post(groups, &[], request).expect(409).json()["type"].clone();
    assert_eq!(refusal(&group(0, 260_000)), json!("urn:rollout:problem:conflict"));
    let close = groups.replace("/groups", "/close");
    let _closed = client.post(&close, &[], &Value::Null).expect(200);
    assert_eq!(refusal(&group(unknown, 261_000)), json!("urn:rollout:problem:closed"));
}

#[test]
fn groups_of_one_user_leave_bytes_for_those_of_others() {
    let served = SharedDaemon::start(&[]);
    let job = served.submission();
    let open = |client: &HttpClient, name: &str| {
        let farm = opened(client, &json!({ "name": name, "document": job["document"] }));
        // Its groups stay.
        let _paused = client.post(&format!("{farm}/pause"), &[], &Value::Null).expect(200);
        format!("{farm}/groups")
    };
    let ada = served.user("ada");
    let (mut groups, mut refusals, mut farms) = (0, Vec::new(), Vec::new());
    while refusals.len() < 4 && refusals.last().is_none_or(|max| *max == limits::FARM_HELD_BYTES) {
        let farm = open(&ada, &format!("farm-{}", refusals.len()));
        let refused = loop {
            let answer = ada.post(&farm, &[], &group(groups, 261_000));
            match answer.status {
                201 => groups += 1,
                _ => break answer.expect(429).json(),
            }
        };
        assert_eq!(refused["limit"], json!("held_bytes"), "{refused:#}");
        refusals.push(refused["max"].as_u64().expect("a number"));
        farms.push(farm);
    }
    assert_eq!(refusals.last(), Some(&limits::FARMS_HELD_BYTES), "{groups} groups: {refusals:?}");
    assert!(refusals.len() > 1, "one farm has less than all: {refusals:?}");
    assert_told_without_room(&ada, &farms[0], groups);
    let of_bob = open(&served.user("bob"), "policy");
    let of_root = open(&served.user("root"), "policy");
    for (client, farm) in [(served.user("bob"), of_bob), (served.user("root"), of_root)] {
        let _admitted = client.post(&farm, &[], &group(0, 1000)).expect(201);
    }
}

#[test]
fn limits_of_a_farm_above_their_defaults_are_for_administrators() {
    let served = SharedDaemon::start(&[]);
    let document = served.submission()["document"].clone();
    let open = |user: &str, limit: &str, value: u64| {
        let settings = json!({ "limits": { (limit): value } });
        let request = json!({ "name": "policy", "document": document, "settings": settings });
        served.user(user).post("/v1/farms", &[], &request)
    };
    for (limit, default) in [
        ("open_groups", u64::from(limits::FARM_OPEN_GROUPS)),
        ("open_samples", limits::FARM_OPEN_SAMPLES.into()),
        ("unacknowledged", limits::FARM_UNACKNOWLEDGED.into()),
        ("remembered_groups", limits::FARM_REMEMBERED_GROUPS.into()),
        ("cancelled_groups", limits::FARM_CANCELLED_GROUPS.into()),
        ("journal_bytes", limits::FARM_JOURNAL_BYTES),
    ] {
        let refused = open("ada", limit, default + 1).expect(422);
        assert_eq!(problem_type(&refused), "invalid-farm");
        let told =
            format!("the limit `{limit}` of the farm: a user of a server has at most {default}");
        assert!(refused.text().contains(&told), "{}", refused.text());
        let _opened = open("ada", limit, default).expect(201);
        let _opened = open("root", limit, default + 1).expect(201);
    }
}
