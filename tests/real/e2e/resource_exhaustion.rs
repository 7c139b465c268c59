//! Hosts without free disk space or file descriptors: their failures are not those of an agent.

use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::ignored::report_ignored;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// Trials whose logs are nested deeper than the number of files they may have open.
const DEEP_LOGS_JOB: &str = "\
name: deep
n_attempts: 24
n_concurrent_trials: 24
environment: {type: process}
agents:
  - name: deep
    execute: |
      p=/logs/agent; for i in $(seq 1 30); do p=$p/d; mkdir $p; echo x >$p/f; done
datasets:
  - path: tasks
";

#[test]
fn open_file_limit_bounds_concurrency_and_keeps_rewards() {
    for limit in ["120", "256"] {
        let project = project().tasks(["faults/passes"], &[]).write("job.yaml", DEEP_LOGS_JOB);
        let command = project.limited(&format!("-n {limit}"), &["run", "job.yaml"]);
        let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
        let warning = format!("may have {limit} files open");
        assert!(ended.stderr.contains(&warning), "{}", ended.stderr);
        let results = project.results("deep");
        assert_adds_up(&results, 24);
        for trial in results.trials() {
            assert_eq!((trial.reward(), trial.error()), (Some(1.0), None), "{}", trial.name);
            let deepest = format!("logs/agent/{}f", "d/".repeat(30));
            assert_eq!(trial.text(&deepest).as_deref(), Some("x\n"), "{}", trial.name);
        }
        assert_nothing_left(&project);
    }
}

#[test]
fn open_file_soft_limit_is_kept_for_trials() {
    let job = "name: limit\nenvironment: {type: process}\nagents:\n  - name: asks\n    execute: |\n      \
               ulimit -Sn >/logs/agent/soft; ulimit -Hn >/logs/agent/hard\ndatasets:\n  - path: tasks\n";
    let project = project().tasks(["faults/passes"], &[]).write("job.yaml", job);
    let command = project.limited("-Sn 300", &["run", "job.yaml"]);
    let _ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("limit").trial("asks", "passes");
    assert_eq!(trial.text("logs/agent/soft").as_deref(), Some("300\n"));
    assert_ne!(trial.text("logs/agent/hard").as_deref(), Some("300\n"));
    assert_nothing_left(&project);
}

/// Agents that fill the disk below their sandboxes: one fails, one gives a wrong answer, one
/// succeeds.
const FULL_DISK_JOB: &str = "\
name: full
n_concurrent_trials: 1
retry: {max_attempts: 2, initial_delay_ms: 10, max_delay_ms: 10}
environment: {type: process}
agents:
  - name: fails
    execute: dd if=/dev/zero of=/work.bin bs=64k count=120
  - name: answers-wrongly
    execute: |
      dd if=/dev/zero of=/work.bin bs=64k count=120 2>/dev/null
      sleep 3; truncate -s 1000000 /work.bin; echo 0 >/answer
  - name: answers
    execute: |
      dd if=/dev/zero of=/work.bin bs=64k count=120 2>/dev/null
      sleep 3; truncate -s 1000000 /work.bin; echo 1 >/answer
datasets:
  - path: tasks
";

/// A task whose reward is the agent's answer, with a storage limit of its own.
fn with_task(project: Project, name: &str, storage_mb: u32) -> Project {
    let file = format!("version = \"1.0\"\n[environment]\nstorage_mb = {storage_mb}\n");
    let test = "#!/bin/bash\ncat /answer >/logs/verifier/reward.txt\n";
    project
        .write(&format!("tasks/{name}/task.toml"), &file)
        .write(&format!("tasks/{name}/instruction.md"), "Answer.\n")
        .write(&format!("tasks/{name}/tests/test.sh"), test)
}

/// Runs the job with a file system of 4 MB below its sandboxes; the test is ignored when this
/// user may not mount one.
fn run_on_small_disk(project: &Project) -> Option<ProgramExit> {
    const SMALL: &str = "mkdir -p jobs/full/.work && mount -t tmpfs -o size=4m tmpfs \
                         jobs/full/.work && exec \"$@\"";
    let of_program = project.command(&["run", "job.yaml"]);
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c", SMALL, "sh"]);
    command.arg(of_program.get_program()).args(of_program.get_args());
    command.current_dir(project.path()).env_clear();
    command.envs(of_program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let may_mount = ["-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"];
    if !Command::new("unshare").args(may_mount).status().is_ok_and(|status| status.success()) {
        report_ignored("needs a user who may mount a small file system");
        return None;
    }
    Some(project.start(command).wait(DEADLINE))
}

#[test]
fn disk_full_is_infrastructure_error_and_keeps_rewards() {
    let project = with_task(project(), "answer", 100).write("job.yaml", FULL_DISK_JOB);
    let Some(ended) = run_on_small_disk(&project) else { return };
    let ended = ended.expect_code(ExitCode::Infrastructure);
    let results = project.results("full");
    assert_adds_up(&results, 3);
    for agent in ["fails", "answers-wrongly"] {
        let trial = results.trial(agent, "answer");
        let error = &trial.result["error"];
        assert_eq!(error["code"], "disk_full", "{agent}: {error:#}\n{}", ended.stderr);
        assert_eq!((&error["class"], trial.reward()), (&"infrastructure".into(), None), "{agent}");
        let tries = trial.result["superseded"].as_array().map_or(0, Vec::len);
        assert_eq!(tries, 1, "{agent} was tried again");
    }
    assert_eq!(results.trial("answers", "answer").reward(), Some(1.0), "{}", ended.stderr);
    assert_nothing_left(&project);
}

#[test]
fn disk_full_by_trial_beyond_limit_is_its_error() {
    let job = FULL_DISK_JOB.split("  - name: answers-wrongly").next().expect("a beginning");
    let job = format!("{job}datasets:\n  - path: tasks\n");
    let project = with_task(project(), "answer", 2).write("job.yaml", &job);
    let Some(ended) = run_on_small_disk(&project) else { return };
    let _ended = ended.expect_code(ExitCode::Success);
    let trial = project.results("full").trial("fails", "answer");
    let error = &trial.result["error"];
    assert_eq!(error["code"], "storage_exceeded", "{error:#}");
    assert_eq!(error["class"], "agent", "{error:#}");
    assert_nothing_left(&project);
}
