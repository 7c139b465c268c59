//! One execution of a trial, from its image to its record; one file per phase.
//!
//! The phases are setup, install, execute and verify; a task with steps executes and verifies each
//! of them. The executor drives the phases, the collection and the teardown. Each phase returns its
//! outcome or its own kind of error, which the error table of the executor turns into an error of
//! the record.

mod artifacts;
mod collect;
mod failure;
mod format_doubt;
mod gateway;
mod harness;
mod host_faults;
mod install;
mod outputs;
mod phases;
mod preserve;
mod record;
mod refused_hosts;
mod rewards;
mod run;
mod score;
mod separate_verifier;
mod setup;
mod step;
mod step_files;
mod variables;
mod verify;
mod workspace_diffs;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rollout_base::rate_limit::RunRateLimiter;
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::settings::TrialSettings;
use rollout_protocol::spec::task::{StepSpec, TaskSpec};

use crate::executor::ExecutionContext;

pub use self::run::run;

/// The inputs of one execution.
#[derive(Debug, Clone)]
pub struct TrialContext {
    /// The execution.
    pub execution: ExecutionContext,
    /// Settings that all trials of the job share.
    pub settings: Arc<TrialSettings>,
    /// The agent.
    pub agent: Arc<AgentSpec>,
    /// The task.
    pub task: Arc<TaskSpec>,
    /// Number of the sample.
    pub attempt: u32,
    /// Rate limits of this worker for the run, if there are any.
    pub rate_limiter: Option<Arc<RunRateLimiter>>,
}

impl TrialContext {
    /// The first step.
    pub fn step(&self) -> &StepSpec {
        self.task.steps.first().expect("a task has a step")
    }
}
