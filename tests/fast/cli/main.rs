//! Texts that the program prints, as reviewed snapshots: help of every command, common errors.
//!
//! `INSTA_UPDATE=always cargo test -p rollout-tests --test cli` writes the snapshots anew; review the
//! difference.

mod errors;
mod help;

use std::time::Duration;

use rollout_tests::project::Project;

/// How long a command may take that starts nothing.
const DEADLINE: Duration = Duration::from_secs(120);

/// An empty project for the program under test.
fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}

/// Compares a text with the snapshot of this name in `tests/fast/cli/snapshots`.
#[track_caller]
fn assert_printed(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}
