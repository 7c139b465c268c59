//! The real program on real tasks, in sandboxes and on a real Docker engine.

mod blobs;
mod catalog;
mod changed_plan;
mod corporate_network;
mod damage;
mod entrypoints;
mod examples;
mod fail_under;
mod faults;
mod foreign_tasks;
mod formats;
mod hangup;
mod harness;
mod hints;
mod hostile;
mod interruption;
mod invalid_config;
mod isolation;
mod large_logs;
mod live_commands;
mod live_events;
mod live_output;
mod load;
mod lock;
mod moved_runs;
mod no_engine;
mod readme;
mod resource_exhaustion;
mod resume;
mod retry;
mod run_views;
mod s3;
mod secrets;
mod tables;
mod task_commit;
mod terminal;
mod traces;
mod workspace_diffs;

use std::time::Duration;

use rollout_tests::leak_check::assert_no_leaks as assert_nothing_left;
use rollout_tests::project::Project;
use rollout_tests::results::Results;

/// Longest duration of a run.
const DEADLINE: Duration = rollout_tests::wait::RUN_DEADLINE;

/// An empty project for the program under test.
fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}

/// Fails unless the counts of a job's result add up to `total`.
#[track_caller]
fn assert_adds_up(results: &Results, total: u64) {
    let parts = ["completed", "failed", "cancelled", "unverified", "skipped"];
    let sum: u64 = parts.iter().map(|part| results.count(&format!("{part}_trials"))).sum();
    assert_eq!((sum, results.count("total_trials")), (total, total), "{:#}", results.job());
    results.assert_headline();
}
