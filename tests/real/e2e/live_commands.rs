//! Commands from another process for a run without a server.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::executor::HEEDING;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::net::free_port;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

fn command(project: &Project, arguments: &[&str]) -> ProgramExit {
    project.rollout(arguments).wait(DEADLINE)
}

/// The document that a command prints.
fn receipt(project: &Project, arguments: &[&str]) -> Value {
    let ended = command(project, &[arguments, &["--json"]].concat());
    serde_json::from_str(&ended.expect_code(ExitCode::Success).stdout).expect("a receipt")
}

#[test]
fn embedded_run_is_paused_retried_and_resumed_from_another_process() {
    let project = project();
    let (counter, port) = (LiveCounter::start(), free_port());
    let load = Load { at_once: 2, ..Load::new("live", 8, (0.6, 0.9)) };
    load.write(&project, &counter);
    load.fail_without_listener(&project, 1, port);
    let running = project.rollout(&["run", &load.file()]);
    let results = project.results("live");
    wait::until(DEADLINE, "a failure", || results.trials().iter().any(|t| t.error().is_some()));

    let paused = receipt(&project, &["pause", "jobs/live"]);
    assert!(paused["named"].as_u64().is_some_and(|left| left >= 1), "{paused}");
    // Those that the worker has taken may not have their agents yet.
    let begun_at_most = counter.observed().len() + 2;
    wait::until(DEADLINE, "the running trials to end", || {
        let status = receipt(&project, &["status", "jobs/live"]);
        status["counts"]["running"] == 0 && results.trial_count() == counter.observed().len()
    });
    let status = receipt(&project, &["status", "jobs/live"]);
    assert_eq!((&status["paused"], &status["state"]), (&true.into(), &"running".into()));
    let unknown = ["retry", "jobs/live", "--failed", "--agent", "busy", "--agent", "typo"];
    let unknown = command(&project, &unknown).expect_code(ExitCode::Config);
    let agents = "no settled trial of agent typo: agents with settled trials are busy";
    assert!(unknown.stderr.contains(agents), "{}", unknown.stderr);
    for words in [&["retry", "jobs/live", "--failed"][..], &["resume", "jobs/live"]] {
        let words = [words, &["--", "--agent-env=KEY=hidden"]].concat();
        let refused = command(&project, &words).expect_code(ExitCode::Usage).stderr;
        assert!(refused.contains("--agent-env") && !refused.contains("hidden"), "{refused}");
    }
    let retried = receipt(&project, &["retry", "jobs/live", "--failed"]);
    assert_eq!((&retried["named"], &retried["reopened"]), (&1.into(), &1.into()), "{retried}");
    let shown = receipt(&project, &["show", "jobs/live", &load.trial(1)]);
    assert_eq!(shown["state"], "queued", "{shown}");
    let idle = command(&project, &["control", "jobs/live", &load.trial(1), "stop"]);
    assert!(idle.expect_code(ExitCode::Config).stderr.contains("no worker runs it"));
    let (seen, repeated) = (counter.observed().len(), counter.repeated());
    assert!(
        seen <= begun_at_most && repeated == 0,
        "nothing begins in a pause: {seen}, {repeated}"
    );

    let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
    let resumed = command(&project, &["resume", "jobs/live"]).expect_code(ExitCode::Success);
    assert!(resumed.stdout.contains("continued"), "{}", resumed.stdout);
    let _ended = running.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(&results, 8);
    // A trial that the worker took in the moment of the pause runs although its offer was withdrawn.
    // If it still runs when the pause ends, it begins again, and one of the two is ended.
    let completed = results.count("completed_trials");
    assert_eq!((completed, counter.repeated() - counter.killed()), (8, 1));
    let first = results.trial("busy", &load.task(1));
    assert_eq!(first.result["superseded"].as_array().map(Vec::len), Some(1), "{}", first.result);
    let over = command(&project, &["pause", "jobs/live"]).expect_code(ExitCode::Config);
    assert!(over.stderr.contains("does not run on this host"), "{}", over.stderr);
    assert!(!results.path().join("control.json").exists(), "it is removed at the end");
    assert_nothing_left(&project);
}

#[test]
fn embedded_run_is_cancelled_from_another_process() {
    let project = project();
    let counter = LiveCounter::start();
    let load = Load { at_once: 2, ..Load::new("live", 4, (60.0, 60.0)) };
    load.write(&project, &counter);
    let running = project.rollout(&["run", &load.file()]);
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    let file = project.results("live").path().join("control.json");
    let file: Value =
        serde_json::from_slice(&std::fs::read(file).expect("readable")).expect("JSON");
    let socket = Path::new(file["socket"].as_str().expect("a path"));
    let mode = socket.metadata().expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its user may connect");

    let one = receipt(&project, &["cancel", "jobs/live", "--task", &load.task(1)]);
    assert_eq!((&one["named"], &one["ended"]), (&1.into(), &1.into()), "{one}");
    wait::until(DEADLINE, "the agent's end", || counter.killed() == 1);
    let all = receipt(&project, &["cancel", "jobs/live"]);
    assert_eq!(all["named"], 4, "{all}");
    let _ended = running.wait(DEADLINE);
    let results = project.results("live");
    assert_eq!(results.count("cancelled_trials"), 4, "{:#}", results.job());
    assert!(!socket.exists(), "it is removed at the end");
    assert_nothing_left(&project);
}

#[test]
fn harness_of_embedded_run_is_controlled_from_another_process() {
    let heeding = json!(HEEDING);
    let job = format!(
        "name: live\nenvironment: {{type: process, provider_config: {{ignore_dockerfile: true}}}}\n\
         agents:\n  - name: heeds\n    harness: {{command: {heeding}, integration_level: \
         cli_events, events_path: /logs/agent/e.jsonl}}\ndatasets: [{{path: tasks}}]\n"
    );
    let verify = "test -s answer.txt; echo $((1 - $?)) >/logs/verifier/reward.txt\n";
    let project = project()
        .write("job.yaml", &job)
        .write("tasks/t/task.toml", "version = '1.0'\n")
        .write("tasks/t/instruction.md", "Write the answer.\n")
        .write("tasks/t/environment/Dockerfile", "FROM debian:bookworm-slim\n")
        .write("tasks/t/tests/test.sh", verify);
    let running = project.rollout(&["run", "job.yaml"]);
    let control = |action: &str| command(&project, &["control", "jobs/live", "heeds", action]);
    wait::until(DEADLINE, "an acknowledged checkpoint", || control("checkpoint").status.success());
    let stopped = control("stop").expect_code(ExitCode::Success);
    assert!(stopped.stdout.contains("action taken: stop"), "{}", stopped.stdout);
    let _ended = running.wait(DEADLINE).expect_code(ExitCode::Success);
    let heeded = project.results("live").trial("heeds", "t");
    let controls = heeded.result["harness"]["controls"].as_array().map(Vec::len);
    assert_eq!((heeded.reward(), controls), (Some(1.0), Some(2)), "{:#}", heeded.result);
    assert_nothing_left(&project);
}

#[test]
fn socket_of_killed_run_is_no_coordinator() {
    let project = project();
    let counter = LiveCounter::start();
    let load = Load { at_once: 2, ..Load::new("live", 2, (60.0, 60.0)) };
    load.write(&project, &counter);
    let mut running = project.rollout(&["run", &load.file()]);
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    running.signal(Signal::KILL);
    let _killed = running.wait(DEADLINE);
    let results = project.results("live");
    assert!(results.path().join("control.json").exists(), "nothing removed it");
    let refused = command(&project, &["cancel", "jobs/live"]).expect_code(ExitCode::Config);
    assert!(refused.stderr.contains("does not run on this host"), "{}", refused.stderr);
    let resumed = project.rollout(&["resume", "jobs/live"]);
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    let _cancelled = receipt(&project, &["cancel", "jobs/live"]);
    let _ended = resumed.wait(DEADLINE);
    assert_eq!(results.count("cancelled_trials"), 2, "{:#}", results.job());
    assert_nothing_left(&project);
}

#[test]
fn resumed_run_keeps_the_command_that_started_it() {
    let project = project();
    let counter = LiveCounter::start();
    let load = Load { at_once: 2, ..Load::new("live", 4, (0.1, 0.2)) };
    load.write(&project, &counter);
    load.fail_without_listener(&project, 1, free_port());
    let invocation = || std::fs::read(project.results("live").path().join("invocation.json"));
    let stop = |arguments: &[&str]| {
        let mut running = project.rollout(arguments);
        wait::until(DEADLINE, "an agent", || counter.running() > 0);
        running.signal(Signal::TERM);
        let _stopped = running.wait(DEADLINE);
    };
    stop(&["run", &load.file(), "--materialize", "outputs_only"]);
    let first = invocation().expect("stored");
    stop(&["resume", "jobs/live"]);
    assert_eq!(invocation().expect("stored"), first);
    let options = ["resume", "jobs/live", "--materialize", "none"];
    let refused = command(&project, &options).expect_code(ExitCode::Usage);
    assert!(refused.stderr.contains("after `--`"), "{}", refused.stderr);
    let _ended = command(&project, &["resume", "jobs/live"]).expect_code(ExitCode::Success);
    let _again = command(&project, &["retry", "jobs/live", "--failed"]);
    assert_eq!(invocation().expect("stored"), first);
    assert_adds_up(&project.results("live"), 4);
    assert_nothing_left(&project);
}
