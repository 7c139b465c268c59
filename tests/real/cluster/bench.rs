//! `tests/bench/queue_overhead`: its figures, and no stream or worker left behind.

use std::fs;
use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::program::RunningProgram;
use rollout_tests::{hidden_commands, processes, wait};
use rustix::process::Signal;

use crate::cluster::{DEADLINE, cluster};

#[test]
fn queue_benchmark_leaves_nothing() {
    let Some(cluster) = cluster() else { return };
    let ended = start(&cluster, "200").wait(DEADLINE).expect_code(ExitCode::Success);
    let lines: Vec<serde_json::Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let windows: Vec<_> = lines.iter().map(|line| line["window"].as_u64()).collect();
    assert_eq!(windows, [Some(4), Some(64)]);
    for line in &lines {
        for figure in ["trials_per_second", "floor_per_second", "ratio", "report_bytes"] {
            assert!(line[figure].as_f64().is_some_and(|n| n > 0.0), "{figure}: {line}");
        }
        assert!(line["cpu_us_per_trial"]["worker"].as_f64().is_some_and(|n| n > 0.0), "{line}");
    }
    assert_eq!(streams(&cluster), Vec::<String>::new());
}

#[test]
fn queue_benchmark_interrupted_leaves_nothing() {
    let Some(cluster) = cluster() else { return };
    let mut run = start(&cluster, "1000000");
    let below = || processes::descendants(run.pid());
    wait::until(DEADLINE, "a worker", || !below().is_empty() && !streams(&cluster).is_empty());
    let workers = below();
    run.signal(Signal::INT);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Cancelled);
    assert_eq!(streams(&cluster), Vec::<String>::new());
    let lives = |worker: &processes::ProcessInfo| {
        processes::all().iter().any(|found| found.pid == worker.pid)
    };
    wait::until(DEADLINE, "the worker's end", || !workers.iter().any(lives));
}

fn start(cluster: &Cluster, items: &str) -> RunningProgram {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    command.arg(hidden_commands::QUEUE_OVERHEAD);
    command.args(["--nats", &cluster.server.url(), "--items", items, "--window", "4,64"]);
    command.args(["--rounds", "1", "--json", "--dir"]).arg(cluster.project.path());
    cluster.project.start(command)
}

/// Streams in the server's store. It removes the files of a deleted stream later, below a hidden name.
fn streams(cluster: &Cluster) -> Vec<String> {
    let store = cluster.project.path().join("nats/store/jetstream/$G/streams");
    let Ok(entries) = fs::read_dir(store) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}
