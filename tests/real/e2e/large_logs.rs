//! Memory of a run whose trials leave more in `/logs` than it may use.
//!
//! `ROLLOUT_TEST_LOG_MIB` sets the size of the logs of each of the eight trials, up to 128. Larger
//! ones are for `tests/real/cluster/large_logs.rs`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use rollout_tests::s3_server::S3Server;
use rollout_tests::wait;

use crate::e2e::{DEADLINE, project};

/// Trials at once.
const TRIALS: u64 = 8;

/// Size of the logs of each in MiB: several parts of an upload.
const DEFAULT_MIB: u64 = 24;

/// Largest size of the logs of each in MiB.
const LARGEST_MIB: u64 = 128;

/// Most anonymous memory of the process, in MiB, unless half of the logs are less.
const MOST_MIB: u64 = 200;

fn job(mib: u64) -> Project {
    let job = format!(
        "name: large\nn_concurrent_trials: {TRIALS}\nn_attempts: {TRIALS}\n\
         environment: {{type: process}}\nagents:\n  - name: recorder\n    execute: |\n      \
         head -c {mib}M /dev/urandom >/logs/agent/recording\ndatasets:\n  - path: tasks\n"
    );
    project()
        .write("job.yaml", &job)
        .write("tasks/record/task.toml", "version = \"1.0\"\n[environment]\nmemory_mb = 4096\n")
        .write("tasks/record/environment/Dockerfile", "FROM scratch\n")
        .write("tasks/record/instruction.md", "record\n")
        .write("tasks/record/tests/test.sh", "echo 1 >/logs/verifier/reward.txt\n")
}

/// Anonymous memory of a process, in KiB; the page cache does not count.
fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.map_or(0, |number| number.parse().expect("a number"))
}

#[test]
fn logs_larger_than_memory_are_stored_whole_in_s3() {
    let mib = std::env::var("ROLLOUT_TEST_LOG_MIB").ok();
    let mib = mib.map_or(DEFAULT_MIB, |mib| mib.parse().expect("a number")).min(LARGEST_MIB);
    let (server, project) = (S3Server::start(), job(mib));
    let url = server.store_url("runs");
    let arguments = ["run", "job.yaml", "--store", &url, "--materialize", "metadata_only"];
    let mut command = project.command(&[&arguments[..], &["--store-cache", "64m"]].concat());
    command.envs(S3Server::environment());
    let mut run = project.start(command);
    let most = Cell::new(0);
    let ended = wait::holds_within(DEADLINE, || {
        most.set(anonymous_kib(run.pid()).max(most.get()));
        run.has_ended()
    });
    assert!(ended, "not complete within {DEADLINE:?}");
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);

    let bound = MOST_MIB.min(TRIALS * mib / 2);
    let peak = most.get() / 1024;
    assert!((1..bound).contains(&peak), "{peak} MiB, fewer than {bound} are expected");
    let results = project.results("large");
    assert_eq!((results.count("total_trials"), results.count("passed_trials")), (TRIALS, TRIALS));
    let trials = results.trials();
    let logs = trials.iter().map(|trial| &trial.result["logs"]);
    let digests = logs.map(|logs| {
        assert_eq!(logs["truncated"], false);
        assert!(logs["archive"]["size_bytes"].as_u64() > Some(mib * 1024 * 1024), "{logs}");
        logs["archive"]["digest"].to_string()
    });
    assert_eq!(digests.collect::<BTreeSet<_>>().len() as u64, TRIALS);
    assert!(!trials[0].directory.join("logs").exists(), "only metadata");
    let mut verify = project.command(&["blob", "verify", "--run", "jobs/large"]);
    verify.envs(S3Server::environment());
    let _whole = project.start(verify).wait(DEADLINE).expect_code(ExitCode::Success);
}
