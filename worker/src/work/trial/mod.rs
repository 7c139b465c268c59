//! One execution of a trial, from its image to its record: a file per phase.
//!
//! [`run`] drives the phases: setup, install, execute, verify, collect, teardown; a task with steps
//! executes and verifies each of them. Each phase takes its inputs and gives its outcome or its own
//! kind of error, which the table of the executor turns into errors of the record.

mod apart;
mod artifacts;
mod blame;
mod collect;
mod course;
mod execute;
mod failure;
mod health;
mod keep;
mod outputs;
mod preserve;
mod record;
mod rewards;
mod run;
mod score;
mod setup;
mod step;
mod variables;
mod verify;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::digest::Digest;
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::settings::TrialSettings;
use rollout_protocol::spec::task::{StepSpec, TaskSpec};
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

use crate::environment::Labels;
use crate::executor::{PhaseSink, Slot};
use crate::rate_limit::Pacing;
use crate::spool;

pub use self::run::run;

/// What one execution needs to know.
#[derive(Debug, Clone)]
pub struct TrialContext {
    /// Whose execution it is.
    pub labels: Labels,
    /// Digest of everything it runs under.
    pub spec: Digest,
    /// What every trial of the job runs under.
    pub settings: Arc<TrialSettings>,
    /// The agent.
    pub agent: Arc<AgentSpec>,
    /// The task.
    pub task: Arc<TaskSpec>,
    /// Which sample it is.
    pub attempt: u32,
    /// A directory of this execution alone. Does not exist yet: whoever needs it calls
    /// [`TrialContext::create_scratch`], so that an execution that needs none costs none.
    pub scratch: PathBuf,
    /// Whether and how hard to stop.
    pub stop: watch::Receiver<Option<StopLevel>>,
    /// Told of every phase that begins.
    pub phases: Arc<dyn PhaseSink>,
    /// How fast this worker goes about the run's work, when that is limited.
    pub pacing: Option<Arc<Pacing>>,
    /// The slot that it occupies.
    pub slot: Arc<dyn Slot>,
    /// Longest time in which it waits for a service that gives no answer; zero does not wait.
    pub max_park: Duration,
}

impl TrialContext {
    /// The first step.
    pub fn step(&self) -> &StepSpec {
        self.task.steps.first().expect("a task has a step")
    }

    /// Creates the scratch directory and notes in it whose it is: when this process dies, its
    /// adopter reports the execution lost. Must be done before an environment is made, and may be
    /// done again.
    ///
    /// # Errors
    /// The system's, about the scratch directory.
    pub async fn create_scratch(&self) -> std::io::Result<()> {
        spool::create_scratch(&self.labels, self.spec, self.scratch.clone()).await
    }
}
