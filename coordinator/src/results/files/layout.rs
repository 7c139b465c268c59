//! Names and paths of result files in a run directory.

use std::path::{Path, PathBuf};

use rollout_protocol::reference;
use rollout_protocol::spec::trial::TrialName;

/// The job's configuration.
pub const CONFIG: &str = "config.json";
/// The command line that started the run.
pub const INVOCATION: &str = "invocation.json";
/// The result of the job, and of a trial inside its directory.
pub const RESULT: &str = "result.json";
/// The errors of a trial as readable text.
pub const ERROR: &str = "error.txt";
/// Readable list of a trial's files that are missing because their content is damaged.
pub const MISSING: &str = "missing.txt";
/// Status of the artifacts in its directory.
pub const MANIFEST: &str = "manifest.json";
/// Location of a run's blob store; in a store, its identity.
pub const STORE: &str = "store.json";
/// Directory of the analysis tables of a complete run.
pub const TABLES: &str = "tables";
/// Directory of the steps of a trial.
pub const STEPS: &str = reference::STEPS_DIR;
/// Directory of unfinished trial directories.
pub(super) const STAGING: &str = ".tmp";

/// The directory of a trial's files.
pub fn trial_dir(run_dir: &Path, trial: &TrialName) -> PathBuf {
    let task = format!("{}__{}", trial.task, trial.attempt);
    run_dir.join(&trial.agent).join(&trial.dataset).join(task)
}
