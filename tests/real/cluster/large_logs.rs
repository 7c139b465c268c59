//! Memory of a worker whose trials leave more in `/logs` than it may use.
//!
//! `ROLLOUT_TEST_LOG_MIB` sets the size of the logs of each of the eight trials. The test prints how
//! fast they were stored, beside a plain copy to the same service; it asserts nothing on time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rollout_protocol::Timestamp;
use rollout_protocol::exit::ExitCode;
use rollout_tests::ignored::report_ignored_part;
use rollout_tests::print_notice;
use rollout_tests::processes;
use rollout_tests::project::Project;
use rollout_tests::s3_process::S3Process;
use rollout_tests::s3_server::{S3_BUCKET, S3_KEY_ID, S3_SECRET, S3Server};

use crate::cluster::{assert_no_leaks, cluster};

/// Trials at once.
const TRIALS: u64 = 8;

/// Size of the logs of each in MiB: several parts of an upload.
const DEFAULT_MIB: u64 = 24;

/// Most memory of the worker beyond that of an idle one, in MiB, unless half of the logs are less.
const MOST_MIB: u64 = 200;

/// Longest duration of a run of 8 GiB on a busy machine.
const DEADLINE: Duration = Duration::from_secs(900);

/// Copies objects of a server to other keys of it, all at once, with a plain client. Without one,
/// this part is ignored.
fn copy_plainly(server: &S3Process, files: &[PathBuf]) -> Option<Duration> {
    let began = Instant::now();
    let start = |(number, file): (usize, &PathBuf)| {
        let url = format!("http://127.0.0.1:{}/{S3_BUCKET}/copies/{number}", server.port());
        let mut command = Command::new("curl");
        command.args(["--fail", "--silent", "--show-error", "--aws-sigv4", "aws:amz:us-east-1:s3"]);
        command.args(["--user", &format!("{S3_KEY_ID}:{S3_SECRET}"), "--upload-file"]).arg(file);
        command.args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD", &url]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
    };
    let started: Result<Vec<_>, _> = files.iter().enumerate().map(start).collect();
    let Ok(started) = started else {
        report_ignored_part("a plain copy for comparison: needs curl");
        return None;
    };
    for mut copy in started {
        assert!(copy.wait().expect("it ends").success(), "a copy to the server failed");
    }
    Some(began.elapsed())
}

#[test]
fn worker_stores_logs_larger_than_its_memory_whole_in_s3() {
    let mib = std::env::var("ROLLOUT_TEST_LOG_MIB").ok();
    let mib = mib.map_or(DEFAULT_MIB, |mib| mib.parse().expect("a number"));
    let Some(cluster) = cluster() else { return };
    let program = Path::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let cluster = cluster.with_s3_store(program);
    let server = cluster.s3.as_ref().expect("a store in S3");
    write_job(&cluster.project, mib);
    let mut worker = cluster.worker("a", 8).with_option("--store-cache", "2g").started();
    let pid = worker.process().pid();
    worker.wait_for_stderr("takes work from pool", DEADLINE);
    let idle = processes::memory_kib(pid, "VmRSS");
    let coordinator = cluster.coordinator("job.yaml");
    let mut coordinator = coordinator.with_option("--materialize", "metadata_only").started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    let ended = Timestamp::now();
    let peak = processes::memory_kib(pid, "VmHWM");

    let results = cluster.project.results("large");
    assert_eq!((results.count("total_trials"), results.count("passed_trials")), (TRIALS, TRIALS));
    let (mut files, mut first_end) = (BTreeSet::new(), ended);
    for trial in results.trials() {
        let logs = &trial.result["logs"];
        assert_eq!(logs["truncated"], false);
        assert!(logs["archive"]["size_bytes"].as_u64() > Some(mib * 1024 * 1024), "{logs}");
        let digest = logs["archive"]["digest"].as_str().expect("a digest");
        let hex = digest.trim_start_matches("sha256:");
        files.insert(server.bucket().join(format!("runs/blobs/{}/{}", &hex[..2], &hex[2..])));
        let written = trial.result["timestamps"]["agent_execution_ended_at"].as_str();
        let written: Timestamp = written.expect("a time").parse().expect("a time");
        first_end = first_end.min(written);
        assert!(!trial.directory.join("logs").exists(), "only metadata");
    }
    assert_eq!(files.len() as u64, TRIALS, "different bytes each");
    let verify = ["blob", "verify", "--run", "jobs/large"];
    let mut verify = cluster.project.command(&verify);
    verify.envs(S3Server::environment());
    let _whole = cluster.project.start(verify).wait(DEADLINE).expect_code(ExitCode::Success);

    let (used, bound) = (peak.saturating_sub(idle) / 1024, MOST_MIB.min(TRIALS * mib / 2));
    let total = (TRIALS * mib) as f64;
    let storing = ended.duration_since(first_end).as_secs_f64();
    print_notice(&format!(
        "{TRIALS} x {mib} MiB of logs: the worker used {used} MiB more than when it was idle \
         ({} MiB), and stored {:.0} MiB/s from the end of the first agent to the end of the run",
        idle / 1024,
        total / storing
    ));
    if let Some(time) = copy_plainly(server, &files.into_iter().collect::<Vec<_>>()) {
        let rate = total / time.as_secs_f64();
        print_notice(&format!("a plain parallel copy to the same server: {rate:.0} MiB/s"));
    }
    assert!(used < bound, "{used} MiB, fewer than {bound} are expected");
    assert_no_leaks(&cluster, &["large"], [worker]);
}

fn write_job(project: &Project, mib: u64) {
    let job = format!(
        "name: large\njobs_dir: jobs\nn_concurrent_trials: {TRIALS}\nn_attempts: {TRIALS}\n\
         environment: {{type: process}}\nagents:\n  - name: recorder\n    execute: |\n      \
         head -c {mib}M /dev/urandom >/logs/agent/recording\ndatasets:\n  - path: tasks\n"
    );
    let files = [
        ("job.yaml", job.as_str()),
        ("tasks/record/task.toml", "version = \"1.0\"\n"),
        ("tasks/record/environment/Dockerfile", "FROM scratch\n"),
        ("tasks/record/instruction.md", "record\n"),
        ("tasks/record/tests/test.sh", "echo 1 >/logs/verifier/reward.txt\n"),
    ];
    for (name, text) in files {
        let path = project.path().join(name);
        fs::create_dir_all(path.parent().expect("below the project")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
}
