//! Tree searches with the real program.

mod again;
mod apart;
mod baseline;
mod dry_run;
mod endings;
mod events;
mod example;
mod fates;
mod ideas;
mod limits;
mod model;
mod outcomes;
mod score;
mod small;
mod sound;
mod storm;

use std::time::Duration;

use rollout_tests::project::Project;

/// How long a command may take, on a machine with two processors that does other things too.
const DEADLINE: Duration = Duration::from_secs(120);

/// An empty project for the program under test.
fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}
