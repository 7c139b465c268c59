//! The real program on real tasks, in sandboxes and on a real Docker engine.

mod crash;
mod examples;
mod faults;
mod hostile;
mod interruption;
mod invalid;
mod isolation;
mod load;
mod readme;

use std::time::Duration;

use rollout_tests::docker::Engine;
use rollout_tests::processes;
use rollout_tests::project::Project;
use rollout_tests::results::Results;
use rollout_tests::wait;

/// How long a run may take, on a machine with two processors that does other things too.
const DEADLINE: Duration = Duration::from_secs(240);

/// How long what a program leaves to the system to end may take.
const SOON: Duration = Duration::from_secs(10);

/// An empty project for the program under test.
fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}

/// Fails if something of the project runs or exists outside its directory.
#[track_caller]
fn assert_nothing_left(project: &Project) {
    let mark = project.mark();
    wait::holds_within(SOON, || processes::with_mark(&mark).is_empty());
    assert_eq!(processes::with_mark(&mark), [], "processes");
    if let Some(engine) = Engine::available() {
        let containers = engine.containers(&project.path().to_string_lossy());
        assert_eq!(containers, Vec::<String>::new(), "containers");
    }
}

/// Fails unless the counts of a job's result add up to `total`.
#[track_caller]
fn assert_adds_up(results: &Results, total: u64) {
    let parts = ["completed", "failed", "cancelled", "unverified", "skipped"];
    let sum: u64 = parts.iter().map(|part| results.count(&format!("{part}_trials"))).sum();
    assert_eq!((sum, results.count("total_trials")), (total, total), "{:#}", results.job());
}
