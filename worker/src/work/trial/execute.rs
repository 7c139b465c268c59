//! Scripts of any stage: run, watched, captured.

use std::sync::Arc;
use std::time::Duration;

use super::variables::Variables;
use crate::environment::{ExecCommand, Environment, CommandExit, Failure};
use crate::executor::errors::ScriptError;
use crate::executor::{self, Capture, Normal, ScriptLimit};

/// A script and how it runs.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) argv: Vec<String>,
    pub(super) env: Variables,
    /// User; the environment's own when absent.
    pub(super) user: Option<String>,
    pub(super) limit: Duration,
    /// Which codes are no failure.
    pub(super) normal: Normal,
    /// What it started lives on although it ended with another code.
    pub(super) spares: bool,
}

/// A script that did not end well.
#[derive(Debug)]
pub(super) struct Unwell {
    pub(super) error: ScriptError,
    /// Processes of the script may still be alive.
    pub(super) left: Option<Failure>,
}

impl From<ScriptError> for Unwell {
    fn from(error: ScriptError) -> Self {
        Self { error, left: None }
    }
}

/// Runs a script of the agent and measures what was written when it has ended, before anything
/// else runs: what the agent wrote is not charged to the verifier.
pub(super) async fn agent_script(
    environment: &dyn Environment,
    agent: Script,
    capture: Arc<Capture>,
) -> Result<CommandExit, Unwell> {
    let ended = script(environment, agent, capture).await;
    match environment.check_storage().await {
        Ok(()) => ended,
        Err(failure) => {
            let left = executor::kill(environment).await;
            Err(Unwell { error: ScriptError::Exec(failure), left })
        }
    }
}

/// Runs a script from the environment's working directory. Unless it ends with a normal code
/// or is told to spare it, nothing it started is alive afterwards, or the error says so.
pub(super) async fn script(
    environment: &dyn Environment,
    script: Script,
    capture: Arc<Capture>,
) -> Result<CommandExit, Unwell> {
    let Script { argv, env, user, limit, normal, spares } = script;
    let command = ExecCommand { argv, env, workdir: None, user };
    let harmless = if spares { Normal::AnyCode } else { normal };
    let ran = executor::run(environment, command, limit, capture.clone(), harmless).await;
    let limit = ScriptLimit { limit, whose: None };
    let ended = ran.end.judged(environment, &capture, limit, normal).await;
    ended.map_err(|error| Unwell { error, left: ran.left })
}
