//! What every trial of a job runs under.

use serde::{Deserialize, Serialize};

use crate::spec::environment::EnvironmentSpec;

/// The part of a job that a trial's outcome can depend on. Concurrency, retry, metrics and the
/// number of attempts are not in it: they may change between sittings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialSettings {
    /// Absolute path of the instruction inside the environment.
    pub instruction_path: String,
    /// Where trials run.
    pub environment: EnvironmentSpec,
    /// How they are verified.
    pub verifier: VerifierSettings,
}

/// How trials are verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifierSettings {
    /// Run no verifier: trials end `unverified`.
    pub disable: bool,
    /// End everything the agent left running before verification, also after a normal end.
    pub kill_agent_processes: bool,
}
