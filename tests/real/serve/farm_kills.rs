//! A trainer over HTTP whose server is killed again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rollout_tests::http::{HttpAnswer, HttpClient};
use rollout_tests::leak_check::assert_no_leaks;
use rollout_tests::net::free_port;
use rollout_tests::project::Project;
use rollout_tests::wait::{self, LONG_DEADLINE};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::farms::{farm_project, farm_request, group};
use crate::serve::{DEADLINE, DaemonProcess};

/// Groups of the trainer, unless the environment asks for more.
const GROUPS: usize = 8;

/// Samples of each group.
const N: usize = 3;

/// Times that the server is killed.
const KILLS: usize = 5;

/// Completions that are read at once.
const LIMIT: usize = 4;

/// Longest time of a trainer.
const TRAINING: Duration = Duration::from_secs(600);

/// Number of groups: `--extended` asks for more.
fn groups() -> usize {
    let wanted = std::env::var("ROLLOUT_TEST_FARM_GROUPS").ok();
    wanted.map_or(GROUPS, |text| text.parse().expect("a number of groups"))
}

/// A client that sends its requests until they are answered, also by the next server.
pub(crate) struct Trainer<'a> {
    pub(crate) client: HttpClient,
    /// Completions so far.
    pub(crate) read: &'a AtomicUsize,
}

/// Everything that a trainer saw.
#[derive(Default)]
pub(crate) struct Training {
    completions: BTreeMap<u64, Value>,
    acknowledged: BTreeSet<u64>,
}

impl Training {
    /// Fails unless every sample ended once, with a reward.
    #[track_caller]
    pub(crate) fn assert_complete(&self, groups: usize) {
        let samples = groups * N;
        let cursors: Vec<_> = self.completions.keys().copied().collect();
        assert_eq!(cursors, (1..=samples as u64).collect::<Vec<_>>());
        let of_sample = |one: &Value| (one["group"].to_string(), one["index"].as_u64());
        let distinct: BTreeSet<_> = self.completions.values().map(of_sample).collect();
        assert_eq!(distinct.len(), samples, "every sample ends once");
        let all = &self.completions;
        assert!(all.values().all(|one| one["reward"] == 1.0), "{all:?}");
        let ends = all.values().filter(|one| one["group_end"] == "complete");
        assert_eq!(ends.count(), groups);
    }
}

impl Trainer<'_> {
    /// Sends a request until the answer has one of these statuses. 503 says that the farm is being
    /// opened.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        statuses: &[u16],
    ) -> HttpAnswer {
        let headers = [("content-type", "application/json"), ("idempotency-key", "farm")];
        let body = serde_json::to_vec(body).expect("JSON");
        let mut answer = None;
        wait::until(TRAINING, "a server answers", || {
            answer = self.client.send(method, path, &headers, &body);
            answer.as_ref().is_some_and(|answer| answer.status != 503 && is_whole(answer))
        });
        let answer = answer.expect("an answer");
        assert!(statuses.contains(&answer.status), "{method} {path}: {}", answer.text());
        answer
    }

    /// Trains with this many groups of a farm whose agents run `execute`, which writes `answer.txt`.
    /// Returns the path of the farm.
    pub(crate) fn train(
        &self,
        project: &Project,
        execute: &str,
        groups: usize,
    ) -> (String, Training) {
        let request = farm_request(project, execute);
        let farm = self.send("POST", "/v1/farms", &request, &[200, 201]).json();
        let path = format!("/v1/farms/{}", farm["id"].as_str().expect("an id"));
        let (mut submitted, mut seen) = (0, Training::default());
        while seen.acknowledged.len() < groups * N {
            if submitted < groups {
                let group = group(&format!("group-{submitted}"), u32::try_from(N).expect("few"));
                self.send("POST", &format!("{path}/groups"), &group, &[200, 201]);
                submitted += 1;
            }
            self.read(&path, &mut seen);
        }
        (path, seen)
    }

    /// Reads completions and acknowledges them.
    fn read(&self, path: &str, seen: &mut Training) {
        let path_and_query = format!("{path}/completions?limit={LIMIT}&wait=1");
        let read = self.send("GET", &path_and_query, &Value::Null, &[200]).json();
        let completions = read["completions"].as_array().expect("completions");
        let mut cursors = Vec::new();
        for completion in completions {
            let cursor = completion["cursor"].as_u64().expect("a cursor");
            assert!(!seen.acknowledged.contains(&cursor), "{cursor} is shown after its answer");
            let known = seen.completions.entry(cursor).or_insert_with(|| completion.clone());
            assert_eq!(known, completion, "a completion does not change");
            cursors.push(cursor);
        }
        self.read.store(seen.completions.len(), Ordering::Relaxed);
        if !cursors.is_empty() {
            let body = json!({ "cursors": cursors });
            self.send("POST", &format!("{path}/ack"), &body, &[200]);
            seen.acknowledged.extend(cursors);
        }
    }
}

/// Whether the server lived until the end of its answer.
fn is_whole(answer: &HttpAnswer) -> bool {
    let length = answer.header("content-length").and_then(|value| value.parse().ok());
    length == Some(answer.body.len())
}

#[test]
fn killed_server_loses_and_repeats_no_completion() {
    let (project, port, groups) = (farm_project(), free_port(), groups());
    let read = AtomicUsize::new(0);
    let mut daemon = DaemonProcess::start_on(&project, port, &[]);
    let trainer = Trainer { client: daemon.client.clone(), read: &read };
    let (mut daemon, (path, seen)) = thread::scope(|scope| {
        let training = scope.spawn(|| trainer.train(&project, "echo done >answer.txt", groups));
        for kill in 1..=KILLS {
            let until = kill * groups * N / (KILLS + 1);
            wait::until(TRAINING, "the trainer reads", || {
                training.is_finished() || read.load(Ordering::Relaxed) >= until
            });
            daemon.process.signal(Signal::KILL);
            let _killed = daemon.process.wait(DEADLINE);
            daemon = DaemonProcess::start_on(&project, port, &[]);
        }
        (daemon, training.join().expect("the trainer ends"))
    });

    seen.assert_complete(groups);
    let _closed = trainer.send("POST", &format!("{path}/close"), &Value::Null, &[200]);
    wait::until(LONG_DEADLINE, "the farm ends", || {
        daemon.client.get(&path).expect(200).json()["is_final"] == true
    });
    daemon.process.signal(Signal::TERM);
    let _ended = daemon.process.wait(DEADLINE);
    assert_no_leaks(&project);
}
