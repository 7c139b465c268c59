//! Tree searches with the real program.

mod agents;
mod baseline;
mod best;
mod chaos;
mod damage;
mod dry_run;
mod entrypoints;
mod events;
mod example;
mod example_outcomes;
mod failed_evals;
mod hints;
mod idea_outcomes;
mod ideas;
mod limits;
mod model;
mod rerun;
mod run_views;
mod score;
mod separate_sweep;
mod small_search;
mod store;
mod traces;
mod validate;

use std::time::Duration;

use rollout_tests::project::Project;

/// Longest duration of a command.
const DEADLINE: Duration = rollout_tests::wait::RUN_DEADLINE;

/// An empty project for the program under test.
fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}
