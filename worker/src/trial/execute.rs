//! Scripts of any stage: run, watched, captured.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::failure::ScriptError;
use super::outputs;
use crate::environment::{Command, Environment, Failure};
use crate::exec::{self, Capture, End};

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

/// Runs a script from the environment's working directory. Unless it ends with code 0, nothing it
/// started is alive afterwards, or the error says so.
pub(super) async fn script(
    environment: &dyn Environment,
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    limit: Duration,
    capture: Arc<Capture>,
) -> Result<(), Unwell> {
    let command = Command { argv, env, workdir: None, user: None };
    let ran = exec::run(environment, command, limit, capture.clone()).await;
    let error = match ran.end {
        End::Exited(exit) if exit.code == 0 => return Ok(()),
        End::Exited(exit) => ScriptError::Exit {
            code: exit.code,
            oom_killed: exit.code == 137 && environment.oom_killed().await,
            last_words: outputs::last_words(&capture),
        },
        End::TimedOut => ScriptError::TimedOut { limit },
        End::Failed(failure) => ScriptError::Exec(failure),
    };
    Err(Unwell { error, left: ran.left })
}
