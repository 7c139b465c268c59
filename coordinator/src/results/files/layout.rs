//! Where result files are inside a run directory.

use std::path::{Path, PathBuf};

use rollout_protocol::spec::trial::TrialName;

/// The job's configuration.
pub const CONFIG: &str = "config.json";
/// The command line that the run was started with.
pub const INVOCATION: &str = "invocation.json";
/// The result of the job, and of a trial inside its directory.
pub const RESULT: &str = "result.json";
/// What went wrong with a trial, for people.
pub const ERROR: &str = "error.txt";
/// Which files of a trial are not there because their content is damaged, for people.
pub const MISSING: &str = "missing.txt";
/// What became of the artifacts beside it.
pub const MANIFEST: &str = "manifest.json";
/// Where the blobs of a run are; and in a store, its identity.
pub const STORE: &str = "store.json";
/// Directory of the steps of a trial.
pub const STEPS: &str = "steps";
/// Trial directories that are being made.
pub(super) const STAGING: &str = ".tmp";

/// The directory of a trial's files.
pub fn trial_dir(run_dir: &Path, trial: &TrialName) -> PathBuf {
    let task = format!("{}__{}", trial.task, trial.attempt);
    run_dir.join(&trial.agent).join(&trial.dataset).join(task)
}
