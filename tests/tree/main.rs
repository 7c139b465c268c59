//! Tree searches with the real program.

mod rerun;
mod separate_sweep;
mod baseline;
mod dry_run;
mod failed_evals;
mod events;
mod example;
mod idea_outcomes;
mod ideas;
mod limits;
mod model;
mod example_outcomes;
mod score;
mod small_search;
mod validate;
mod chaos;

use std::time::Duration;

use rollout_tests::project::Project;

/// How long a command may take, on a machine with two processors that does other things too.
const DEADLINE: Duration = Duration::from_secs(120);

/// An empty project for the program under test.
fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}
