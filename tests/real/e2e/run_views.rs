//! Commands that read a run while it is live, after its owner was killed, and when it is finished.

use std::collections::BTreeMap;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::Value;

use crate::e2e::{DEADLINE, project};

const RUN: &str = "jobs/slow";
const TRIALS: u64 = 8;

/// Kinds of events that the journal holds.
const DURABLE: [&str; 6] =
    ["run_started", "run_opened", "trial_retry", "trial_lost", "trial_settled", "run_ended"];

fn json(project: &Project, arguments: &[&str]) -> Value {
    let exit = project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    serde_json::from_str(&exit.stdout).expect("one JSON document")
}

/// The status of the run, after a check that every command counts the same or more.
#[track_caller]
fn status(project: &Project, at_least: u64) -> Value {
    let status = json(project, &["status", RUN, "--json"]);
    let count = |key: &str| status["counts"][key].as_u64().expect("a count");
    let settled = ["completed", "failed", "cancelled", "unverified"].map(count).iter().sum::<u64>();
    assert_eq!(count("settled"), settled, "{status:#}");
    let unsettled = ["running", "waiting", "queued"].map(count).iter().sum::<u64>();
    assert_eq!((count("total"), settled + unsettled), (TRIALS, TRIALS), "{status:#}");
    assert!(settled >= at_least, "settled counts decreased: {status:#}");

    let trials = json(project, &["show", RUN, "--json"]);
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    for trial in trials["trials"].as_array().expect("a list") {
        *states.entry(trial["state"].as_str().expect("a state").to_owned()).or_default() += 1;
    }
    assert_eq!(states.values().sum::<u64>(), TRIALS, "{trials:#}");
    let shown = states.get("completed").copied().unwrap_or_default();
    assert!(shown >= count("completed"), "{trials:#}");

    let list = json(project, &["list", "--json"]);
    let run = &list["runs"][0];
    assert_eq!((&run["name"], &run["total"]), (&"slow".into(), &TRIALS.into()), "{list:#}");
    assert!(run["settled"].as_u64() >= Some(shown), "{list:#}");
    status
}

fn events(project: &Project, arguments: &[&str]) -> Vec<Value> {
    let all = [&["events", RUN, "--json"], arguments].concat();
    let exit = project.rollout(&all).wait(DEADLINE).expect_code(ExitCode::Success);
    exit.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn settled(status: &Value) -> u64 {
    status["counts"]["settled"].as_u64().expect("a count")
}

#[test]
fn run_is_read_while_live_after_kill_and_after_resume() {
    let attempts = TRIALS.to_string();
    let values = [("PROVIDER", "process"), ("ATTEMPTS", attempts.as_str())];
    let project = project().tasks(["slow/second"], &[]).job("slow.yaml", &values);
    let mut run = project.rollout(&["run", "job.yaml", "--materialize", "none", "--json"]);
    // The last file that the first session writes before it offers anything.
    let begun = || project.path().join(RUN).join("plan.json").exists();
    wait::until(DEADLINE, "the plan", begun);

    let (mut before, mut seen) = (0, Value::Null);
    wait::until(DEADLINE, "three results", || {
        seen = status(&project, before);
        before = settled(&seen);
        before >= 3
    });
    assert_eq!(seen["state"], "running", "{seen:#}");
    assert_eq!(seen["owner"]["pid"], run.pid(), "{seen:#}");
    assert!(seen["counts"]["running"].as_u64() > Some(0), "{seen:#}");
    let live = events(&project, &[]);
    let done = live.iter().find(|event| event["event"] == "trial_settled").expect("a result");
    let trial = done["settlement"]["item"].as_str().expect("an item");
    let shown = json(&project, &["show", RUN, trial, "--json"]);
    assert_eq!(shown["executions"][0]["role"], "settled", "{shown:#}");
    let listed = json(&project, &["logs", RUN, trial, "--list", "--json"]);
    let files = listed["logs"].as_array().expect("a list");
    assert!(files.iter().any(|file| file["path"] == "logs/verifier/reward.txt"), "{listed:#}");

    run.signal(Signal::KILL);
    let printed = run.wait(DEADLINE).stdout;
    let killed = status(&project, before);
    assert_eq!(killed["state"], "interrupted", "{killed:#}");
    assert_eq!(killed["counts"]["running"], 0, "{killed:#}");
    assert_eq!(killed["resume"]["command"][2], "job.yaml", "{killed:#}");
    let after = events(&project, &[]);
    assert_eq!(after[..live.len()], live, "events that were read stay");
    assert_printed_events_are_durable(&printed, &after);

    let resumed = project.rollout(&["run", "job.yaml", "--materialize", "none", "-q"]);
    let _ended = resumed.wait(DEADLINE).expect_code(ExitCode::Success);
    let finished = status(&project, settled(&killed));
    assert_eq!((&finished["state"], settled(&finished)), (&"completed".into(), TRIALS));
    assert_eq!(finished["resume"], Value::Null, "{finished:#}");
    let last = after.last().and_then(|event| event["seq"].as_u64()).expect("a number");
    let rest = events(&project, &["--from", &(last + 1).to_string()]);
    assert_eq!(rest[0]["event"], "run_started", "{rest:#?}");
    assert_eq!(events(&project, &[]), [after, rest].concat());
}

/// Every durable event that a run printed is among those of its journal, with the same content.
#[track_caller]
fn assert_printed_events_are_durable(printed: &str, durable: &[Value]) {
    let whole = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut compared = 0;
    for mut event in whole.filter(|event| DURABLE.iter().any(|kind| event["event"] == *kind)) {
        let same = durable.iter().any(|known| {
            let mut known = known.clone();
            known.as_object_mut().expect("an object").remove("seq");
            // An event is sent a little later than its record is made.
            for value in [&mut known, &mut event] {
                value["at"] = Value::Null;
            }
            known == event
        });
        assert!(same, "not in the journal: {event:#}");
        compared += 1;
    }
    assert!(compared > 3, "{printed}");
}

#[test]
fn commands_for_jobs_point_to_those_for_searches() {
    let project = project().write("search/engine.json", "{}").write("search/manifest.json", "{}");
    for arguments in [&["show", "search"][..], &["events", "search"], &["logs", "search", "x"]] {
        let exit = project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Usage);
        assert!(exit.stderr.contains("it is the directory of a search"), "{}", exit.stderr);
    }
}
