//! `rollout retry`: failed trials run again with the run's own options.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use rollout_protocol::exit::ExitCode;
use rollout_tests::net::free_port;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::Value;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// Adds two tasks that pass; an agent tells them apart by their instructions.
pub(super) fn with_two_tasks(mut project: Project) -> Project {
    for name in ["alone", "needs"] {
        let file = |file: &str| format!("tasks/{name}/{file}");
        let dockerfile = "FROM debian:bookworm-slim\nWORKDIR /app\n";
        project = project
            .write(&file("task.toml"), "version = \"1.0\"\n")
            .write(&file("environment/Dockerfile"), dockerfile)
            .write(&file("instruction.md"), &format!("{name}\n"))
            .write(&file("tests/test.sh"), "echo 1 >/logs/verifier/reward.txt\n");
    }
    project
}

/// A project with an agent that needs a listener on a port in one of two tasks.
fn project_with_needy_agent(port: u16) -> Project {
    let job = format!(
        "name: needy\nn_concurrent_trials: 2\nenvironment: {{type: process}}\nagents:\n  - name: a\n    \
         execute: |\n      grep -q alone \"$ROLLOUT_TASK_INSTRUCTION\" && exit 0\n      \
         exec 3<>/dev/tcp/127.0.0.1/{port}\ndatasets:\n  - path: tasks\n"
    );
    with_two_tasks(project()).write("job.yaml", &job)
}

#[test]
fn retry_of_failed_trial_keeps_previous_record() {
    let port = free_port();
    let project = project_with_needy_agent(port);
    let first = project.rollout(&["run", "job.yaml", "--json"]).wait(DEADLINE);
    let results = project.results("needy");
    assert_eq!(results.trial("a", "needs").error(), Some("agent_execution_failed"));
    let done = fs::read(results.trial("a", "alone").directory.join("result.json")).expect("read");

    let run_dir = results.path().to_string_lossy().into_owned();
    let none = project.rollout(&["retry", &run_dir, "--infra"]).wait(DEADLINE);
    assert_eq!(none.status.code(), first.status.code(), "{}", none.stderr);
    assert_eq!(results.trial("a", "needs").error(), Some("agent_execution_failed"));
    // The run was started with the flag.
    let events = project.rollout(&["retry", &run_dir, "--infra", "--json"]).wait(DEADLINE);
    assert_eq!(events.status.code(), first.status.code(), "{}", events.stderr);
    let last = events.stdout.lines().last().expect("the job's result");
    assert!(serde_json::from_str::<Value>(last).is_ok(), "{last}");
    let unknown = project.rollout(&["retry", &run_dir, "--trial", "a/tasks/no__1"]).wait(DEADLINE);
    let unknown = unknown.expect_code(ExitCode::Config);
    assert!(unknown.stderr.contains("a/tasks/no__1"), "{}", unknown.stderr);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
    let again = project.rollout(&["retry", &run_dir, "--failed"]).wait(DEADLINE);
    let _again = again.expect_code(ExitCode::Success);
    let needs = results.trial("a", "needs");
    assert_eq!((needs.reward(), needs.error()), (Some(1.0), None), "{}", needs.result);
    let superseded = needs.result["superseded"].as_array().expect("the previous execution");
    assert_eq!(superseded.len(), 1, "{}", needs.result);
    let former = &superseded[0]["end"]["verdict"]["error"]["type"];
    assert_eq!(former, "agent_execution_failed", "{}", needs.result);
    assert_eq!(
        done,
        fs::read(results.trial("a", "alone").directory.join("result.json")).expect("read")
    );
    assert_adds_up(&results, 2);

    // `rollout run` finds nothing to do, and a trial may be named whatever its outcome is.
    let same = project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    drop(same);
    let quiet: [&str; 6] = ["retry", &run_dir, "--trial", &needs.name, "--", "-q"];
    let named = project.rollout(&quiet).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((&*named.stdout, &*named.stderr), ("", ""));
    let needs = results.trial("a", "needs");
    assert_eq!(needs.result["superseded"].as_array().map(Vec::len), Some(2), "{}", needs.result);
    drop(listener);
    assert_nothing_left(&project);
}

/// A job whose agent runs `script` in the two tasks.
fn job_of(script: &str) -> String {
    format!(
        "name: needy\nenvironment: {{type: process}}\nagents:\n  - name: a\n    execute: |\n      \
         {script}\ndatasets:\n  - path: tasks\n"
    )
}

#[test]
fn retry_after_corrected_script_keeps_other_results_under_their_spec() {
    let wrong = "grep -q alone \"$ROLLOUT_TASK_INSTRUCTION\"";
    let project = with_two_tasks(project()).write("job.yaml", &job_of(wrong));
    let _failed = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let results = project.results("needy");
    let spec = |task: &str| results.trial("a", task).result["spec"].clone();
    let (kept, former) = (spec("alone"), spec("needs"));
    assert_eq!(results.trial("a", "needs").error(), Some("agent_execution_failed"));

    project.write_file("job.yaml", &job_of("true"));
    let refused = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let refused = refused.expect_code(ExitCode::PlanMismatch);
    assert!(refused.stderr.contains("rollout retry jobs/needy --failed"), "{}", refused.stderr);
    let unknown = ["retry", "jobs/needy", "--failed", "--agent", "b"];
    let unknown = project.rollout(&unknown).wait(DEADLINE).expect_code(ExitCode::Config);
    let agents = "no settled trial of agent b: agents with settled trials are a";
    assert!(unknown.stderr.contains(agents), "{}", unknown.stderr);

    let again = ["retry", "jobs/needy", "--failed", "--agent", "a", "--task", "tasks/needs"];
    let again = project.rollout(&again).wait(DEADLINE).expect_code(ExitCode::Success);
    let told = "1 result of other settings or files is kept: a/tasks/alone__1";
    for text in [told, "agent a: execute changed"] {
        assert!(again.stderr.contains(text), "no {text:?} in {}", again.stderr);
    }
    assert_eq!(results.trial("a", "needs").reward(), Some(1.0));
    assert_eq!(spec("alone"), kept, "its result stays");
    assert_ne!(spec("needs"), former, "it ran under the corrected script");
    let superseded = results.trial("a", "needs").result["superseded"].clone();
    assert_eq!(superseded.as_array().map(Vec::len), Some(1), "{superseded}");
    let digest = superseded[0]["record"]["digest"].as_str().expect("the record before");
    let words = ["blob", "get", digest, "--run", "jobs/needy"];
    let record = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    let record: serde_json::Value = serde_json::from_str(&record).expect("a document");
    assert_eq!(record["spec"], former, "it keeps the script that it ran under");
    assert_adds_up(&results, 2);

    // Later sessions know what this one kept; the former script is another change.
    for words in [&["resume", "jobs/needy"][..], &["run", "job.yaml"]] {
        let ended = project.rollout(words).wait(DEADLINE).expect_code(ExitCode::Success);
        assert!(ended.stderr.contains(told), "{}", ended.stderr);
    }
    project.write_file("job.yaml", &job_of(wrong));
    let back = project.rollout(&["resume", "jobs/needy"]).wait(DEADLINE);
    drop(back.expect_code(ExitCode::PlanMismatch));
    project.write_file("job.yaml", &job_of("true"));
    let all = ["retry", "jobs/needy", "--agent", "a"];
    let all = project.rollout(&all).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(!all.stderr.contains("is kept"), "{}", all.stderr);
    assert_ne!(spec("alone"), kept, "a filter alone selects every outcome");
    assert_nothing_left(&project);
}

#[test]
fn export_of_a_killed_retry_has_only_trials_that_are_settled() {
    let wrong = "grep -q alone \"$ROLLOUT_TASK_INSTRUCTION\"";
    let project = with_two_tasks(project());
    let mark = project.mark();
    project.write_file("job.yaml", &job_of(wrong));
    let _failed = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let export = |format: &str, out: &str| {
        let words = ["export", "jobs/needy", "--format", format, "--out", out];
        let exported = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
        assert!(!exported.stderr.contains("missing"), "{}", exported.stderr);
        let out = project.path().join(out);
        let file = if format == "tables" { out.join("trials.jsonl") } else { out };
        let text = fs::read_to_string(file).expect("a file");
        text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect()
    };
    let before: Vec<Value> = export("jsonl", "before.jsonl");
    assert_eq!(before.len(), 2, "{before:?}");

    project.write_file("job.yaml", &job_of(&format!("exec -a {mark} sleep 86400")));
    let mut retry = project.rollout(&["retry", "jobs/needy", "--failed"]);
    let hangs = || !rollout_tests::processes::with_mark(&mark).is_empty();
    wait::until(DEADLINE, "the agent", hangs);
    retry.signal(Signal::KILL);
    let _killed = retry.wait(DEADLINE);
    let status = project.rollout(&["status", "jobs/needy", "--json"]).wait(DEADLINE);
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!(status["counts"]["settled"], 1, "{status}");
    for (format, out) in [("jsonl", "after.jsonl"), ("tables", "tables")] {
        let rows: Vec<Value> = export(format, out);
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert!(rows[0].to_string().contains("alone"), "{rows:?}");
    }

    project.write_file("job.yaml", &job_of("true"));
    let all = project.rollout(&["retry", "jobs/needy", "--agent", "a"]).wait(DEADLINE);
    drop(all);
    assert_nothing_left(&project);
}

/// Fails unless the results of both trials are unchanged after another run of the job.
fn assert_as_before(project: &Project, before: &[Value]) {
    let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    drop(ended);
    let results = project.results("needy");
    let now: Vec<Value> = results.trials().into_iter().map(|trial| trial.result).collect();
    assert_eq!(now, before);
    assert_adds_up(&results, 2);
}

#[test]
fn repair_after_retry_keeps_retried_verdict() {
    let port = free_port();
    let project = project_with_needy_agent(port);
    let _failed = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let results = project.results("needy");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
    let run_dir = results.path().to_string_lossy().into_owned();
    let retried = project.rollout(&["retry", &run_dir, "--failed"]).wait(DEADLINE);
    drop(retried.expect_code(ExitCode::Success));
    let before: Vec<Value> = results.trials().into_iter().map(|trial| trial.result).collect();
    assert_eq!(results.trial("a", "needs").reward(), Some(1.0));
    let journal = |epoch: u32| results.path().join(format!("journal/{epoch:06}.log"));
    let damage = |epoch: u32, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(journal(epoch)).expect("readable");
        change(&mut bytes);
        fs::write(journal(epoch), bytes).expect("writable");
    };
    let repair = || {
        let refused = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
        drop(refused.expect_code(ExitCode::RunDamaged));
        project.rollout(&["repair", &run_dir]).wait(DEADLINE).expect_code(ExitCode::Success).stdout
    };

    // One changed bit: in the first result, and in the opening that names the retried trial.
    for epoch in [1, 2] {
        damage(epoch, &|bytes| bytes[400] ^= 4);
        assert!(repair().contains("restored, one bit had changed"));
        assert_as_before(&project, &before);
    }
    // The opening itself, and then everything in the rebuilt journal.
    damage(2, &|bytes| bytes[40..300].fill(b'x'));
    let output = repair();
    assert!(output.contains("trials with a result: 2"), "{output}");
    assert_as_before(&project, &before);
    let rebuilt = (1..40).find(|epoch| journal(*epoch).exists()).expect("a rebuilt segment");
    damage(rebuilt, &|bytes| {
        let end = bytes.len() - 100;
        bytes[30..end].fill(b'x');
    });
    let told = repair();
    assert!(told.contains("trials with a result: 2"), "{told}");
    assert_as_before(&project, &before);
    drop(listener);
    assert_nothing_left(&project);
}
