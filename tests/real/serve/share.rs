//! One pool of slots for the runs and searches of all users.

use rollout_protocol::Timestamp;
use rollout_protocol::exit::ExitCode;
use rollout_tests::http::HttpClient;
use rollout_tests::leak_check::assert_no_leaks;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::metrics::Samples;
use rollout_tests::project::Project;
use rollout_tests::search::ExampleSearch;
use rollout_tests::wait;
use serde_json::{Value, json};

use crate::serve::tokens::tokens;
use crate::serve::{DEADLINE, DaemonProcess, project, search, submission, submitted};

/// The name of a trial at the counter.
const TRIAL: &str = "trial";

#[test]
fn urgent_run_overtakes_a_large_one_and_slots_are_never_exceeded() {
    let project = project().tasks(["slow/second"], &[]);
    let options = ["--slots", "2", "--max-running", "3"];
    let daemon = DaemonProcess::start(&project, &options);
    let mut large = submission(&project, 60);
    large["document"]["n_concurrent_trials"] = json!(20);
    let large = submitted(&daemon.client, &large);
    daemon.wait_for(&large, &["running"]);
    let mut urgent = submission(&project, 4);
    urgent["priority"] = json!(10);
    let urgent = submitted(&daemon.client, &urgent);
    let run = daemon.wait_for(&urgent, &["completed"]);
    assert_eq!(run["progress"]["completed"], json!(4), "{run:#}");
    let run = daemon.client.get(&format!("/v1/runs/{large}")).expect(200).json();
    let settled = run["progress"]["settled"].as_u64().expect("a number");
    assert!(settled < 40, "the large run had most slots: {run:#}");
    daemon.stop();
    assert_eq!(most_at_once(&project, &[&large, &urgent]), 2);
}

/// The largest number of trials whose environments existed at the same time.
fn most_at_once(project: &Project, runs: &[&str]) -> i32 {
    let mut changes = Vec::new();
    for id in runs {
        let export = ["export", &format!("state/jobs/{id}"), "--format", "jsonl"];
        let rows = project.rollout(&export).wait(DEADLINE).expect_code(ExitCode::Success).stdout;
        let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        // Trials that were cancelled before they began have no times.
        for row in rows.filter(|row| row["environment_setup_started_at"].is_string()) {
            let time = |key: &str| -> Timestamp {
                row[key].as_str().expect("a time").parse().expect("a time")
            };
            changes.extend([(time("environment_setup_started_at"), 1), (time("ended_at"), -1)]);
        }
    }
    assert!(changes.len() > 8, "trials ran: {changes:?}");
    // At the same moment one ends before another begins.
    changes.sort();
    let counts = changes.iter().scan(0, |count, (_, change)| {
        *count += change;
        Some(*count)
    });
    counts.max().unwrap_or_default()
}

/// A daemon with one slot for two users, and a counter that all commands of searches and all trials
/// connect to while they run. The daemon ends before its files are removed.
struct OneSlot {
    daemon: DaemonProcess,
    project: Project,
    counter: LiveCounter,
}

impl OneSlot {
    /// Starts the daemon for trials that take this long.
    fn start(trial_seconds: f64) -> Self {
        let counter = LiveCounter::start();
        let project = project_of(&counter, trial_seconds);
        let examples = project.path().join("examples").display().to_string();
        let options = ["--tokens", "tokens.toml", "--allow-path", &examples, "--slots", "1"];
        let mut daemon = DaemonProcess::start(&project, &options);
        daemon.client = daemon.client.with_token("root-token");
        Self { daemon, project, counter }
    }

    fn user(&self, name: &str) -> HttpClient {
        self.daemon.client.with_token(&format!("{name}-token"))
    }

    fn submitted_search(&self, user: &str) -> String {
        submitted(&self.user(user), &search::submission(&self.project))
    }

    fn submitted_run(&self, user: &str) -> String {
        submitted(&self.user(user), &submission(&self.project, 1))
    }

    fn request(&self, id: &str, verb: &str) {
        let path = format!("/v1/runs/{id}/{verb}");
        let _accepted = self.daemon.client.post(&path, &[], &json!(null)).expect(202);
    }

    /// Executions that wait for a slot.
    fn waiting(&self) -> f64 {
        let text = self.daemon.client.get("/metrics").expect(200).text();
        Samples::parse(&text).sum("rollout_daemon_waiting_executions", "")
    }

    /// Ends the daemon and asserts that nothing is left.
    fn stop(self) {
        self.daemon.stop();
        assert_no_leaks(&self.project);
    }
}

/// The example search with one depth, and a task whose trial takes this long.
fn project_of(counter: &LiveCounter, trial_seconds: f64) -> Project {
    let port = counter.port();
    let solution = format!(
        "#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/{port}\necho {TRIAL} >&3\nsleep {trial_seconds}\n"
    );
    let users = [
        ("ada", "submit", "ada-token"),
        ("bob", "submit", "bob-token"),
        ("root", "admin", "root-token"),
    ];
    let project = project()
        .tasks(["slow/second"], &[])
        .write("tasks/second/solution/solve.sh", &solution)
        .write("tokens.toml", &tokens(&users));
    let search = ExampleSearch::with_command_counters(counter, counter)
        .with_replacement("max_depth: 2", "max_depth: 1");
    search.write(project)
}

#[test]
fn search_runs_one_eval_per_slot_and_run_of_another_user_overtakes_it() {
    let served = OneSlot::start(0.5);
    // Four evals at a time by its document.
    let search = served.submitted_search("ada");
    let is_seen = || !served.counter.observed().is_empty();
    wait::until(DEADLINE, "a command of the search runs", is_seen);
    let run = served.submitted_run("bob");
    for id in [&run, &search] {
        let ended = served.daemon.wait_for(id, &["completed", "failed"]);
        assert_eq!(ended["state"], json!("completed"), "{ended:#}");
    }
    let seen = served.counter.observed();
    assert_eq!(served.counter.peak(), 1, "{seen:#?}");
    let trial = seen.iter().find(|one| one.task == TRIAL).expect("the trial ran");
    let is_overtaken = seen.iter().any(|one| one.began > trial.began);
    assert!(is_overtaken, "the run waited for the end of the search: {seen:#?}");
    served.stop();
}

#[test]
fn search_that_waits_for_a_slot_is_paused_and_cancelled_at_once() {
    let served = OneSlot::start(600.0);
    let run = served.submitted_run("bob");
    wait::until(DEADLINE, "the trial runs", || served.counter.running() == 1);
    let search = served.submitted_search("ada");
    for (verb, state) in [("pause", "paused"), ("cancel", "cancelled")] {
        wait::until(DEADLINE, "the search waits", || served.waiting() == 1.0);
        served.request(&search, verb);
        served.daemon.wait_for(&search, &[state]);
        wait::until(DEADLINE, "the search waits no more", || served.waiting() == 0.0);
        if state == "paused" {
            served.request(&search, "continue");
        }
    }
    let seen = served.counter.observed();
    assert_eq!(served.counter.running(), 1, "the trial has the slot: {seen:#?}");
    assert_eq!(seen.len(), 1, "no command of the search ran: {seen:#?}");
    served.request(&run, "cancel");
    served.daemon.wait_for(&run, &["cancelled"]);
    served.stop();
}
