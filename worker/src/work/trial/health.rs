//! Healthchecks: waiting until an environment is ready.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::spec::task::Healthcheck;
use rollout_protocol::spec::timeout::seconds;
use tokio::time::Instant;

use crate::agents::shell;
use crate::environment::{ExecCommand, FailureKind};
use crate::executor::errors::SetupError;
use crate::executor::{self, Capture, ManagedEnvironment, NormalExit, ScriptEnd, stderr_summary};

/// Runs the check until it ends with code 0. Its failures count once its start period is over;
/// `retries` of them in a row mean that the environment never becomes ready.
pub(super) async fn wait_until_healthy(
    environment: &ManagedEnvironment,
    check: &Healthcheck,
    capture: impl Fn() -> Arc<Capture>,
) -> Result<(), SetupError> {
    let began = Instant::now();
    // Not `seconds`: a period of zero must stay zero.
    let grace = Duration::try_from_secs_f64(check.start_period_sec.max(0.0));
    let grace = grace.unwrap_or(Duration::MAX);
    let mut failures = 0;
    loop {
        let Err(why) = check_once(environment, check, capture()).await? else { return Ok(()) };
        let starting = began.elapsed() < grace;
        if !starting {
            failures += 1;
            if failures >= check.retries.max(1) {
                return Err(SetupError::Unhealthy { failures, why });
            }
        }
        let pause = if starting { check.start_interval_sec } else { check.interval_sec };
        tokio::time::sleep(seconds(pause)).await;
    }
}

/// Runs the check once; the inner error is why the environment is not ready.
async fn check_once(
    environment: &ManagedEnvironment,
    check: &Healthcheck,
    capture: Arc<Capture>,
) -> Result<Result<(), String>, SetupError> {
    let argv = shell(check.command.clone());
    let command = ExecCommand { argv, env: environment.network_env(), workdir: None, user: None };
    let limit = seconds(check.timeout_sec);
    let ran = executor::run_command(
        environment.expect_running(),
        command,
        limit,
        capture.clone(),
        NormalExit::AnyCode,
    )
    .await;
    if let Some(left) = ran.processes_left {
        return Err(SetupError::Create(left));
    }
    Ok(match ran.end {
        ScriptEnd::Exited(exit) if exit.code == 0 => Ok(()),
        ScriptEnd::Exited(exit) => {
            let words = stderr_summary(&capture).await;
            let said = if words.is_empty() { "" } else { ": " };
            Err(format!("it ended with code {}{said}{words}", exit.code))
        }
        ScriptEnd::TimedOut => Err(format!("it exceeded its time limit of {limit:?}")),
        ScriptEnd::Failed(failure) if failure.kind == FailureKind::NotStarted => {
            Err(failure.chain())
        }
        ScriptEnd::Failed(failure) => return Err(SetupError::Create(failure)),
    })
}
