//! Healthchecks: waiting until an environment is ready.

use std::sync::Arc;
use std::time::Duration;

use rollout_environment::{
    CommandExit, Environment, ExecCommand, Failure, FailureKind, ImageHealthcheck, time_limit,
    with_words,
};
use rollout_gateway::agents::shell;
use rollout_protocol::spec::task::Healthcheck;
use rollout_protocol::spec::timeout::seconds;
use tokio::time::Instant;

use crate::executor::errors::SetupError;
use crate::executor::{self, Capture, ManagedEnvironment, NormalExit, ScriptEnd, stderr_summary};

/// Time between checks of an image while failures do not count, unless the image names one.
const IMAGE_INTERVAL: Duration = Duration::from_secs(1);

/// Time after its limit for the end of a check by its environment: a loaded host needs seconds to start
/// a command. A check that still runs then is ended with all other processes.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A command that an environment is asked with until it is ready.
#[derive(Debug)]
pub(super) struct HealthProbe {
    /// The check, for messages.
    pub(super) name: &'static str,
    /// The hint if it fails.
    pub(super) hint: &'static str,
    argv: Vec<String>,
    /// Time limit of one check.
    limit: Duration,
    /// Time between two checks.
    interval: Duration,
    /// Time at the start during which failures do not count, and the time between checks then.
    grace: Duration,
    grace_interval: Duration,
    /// Number of failures in a row that end the wait.
    retries: u32,
}

impl From<&Healthcheck> for HealthProbe {
    fn from(check: &Healthcheck) -> Self {
        // Not `seconds`: a period of zero must stay zero.
        let grace = Duration::try_from_secs_f64(check.start_period_sec.max(0.0));
        Self {
            name: "healthcheck",
            hint: "",
            argv: shell(check.command.clone()),
            limit: seconds(check.timeout_sec),
            interval: seconds(check.interval_sec),
            grace: grace.unwrap_or(Duration::MAX),
            grace_interval: seconds(check.start_interval_sec),
            retries: check.retries.max(1),
        }
    }
}

impl HealthProbe {
    /// The check of an image, with the hint if it fails.
    pub(super) fn of_image(check: &ImageHealthcheck, hint: &'static str) -> Self {
        Self {
            name: "HEALTHCHECK of the image",
            hint,
            argv: check.argv.clone(),
            limit: check.timeout,
            interval: check.interval,
            // An engine first looks after an interval: earlier failures cannot count.
            grace: check.start_period.max(check.interval),
            grace_interval: check.start_interval.unwrap_or(IMAGE_INTERVAL).min(check.interval),
            retries: check.retries.max(1),
        }
    }
}

/// Runs the check until it ends with code 0. Its failures count once its start period is over;
/// `retries` of them in a row mean that the environment never becomes ready.
pub(super) async fn wait_until_healthy(
    environment: &ManagedEnvironment,
    check: &HealthProbe,
    capture: impl Fn() -> Arc<Capture>,
) -> Result<(), SetupError> {
    let began = Instant::now();
    let mut failures = 0;
    loop {
        // As in Docker, the beginning of a check decides whether it counts.
        let starting = began.elapsed() < check.grace;
        let Err(why) = check_once(environment, check, capture()).await? else { return Ok(()) };
        if !starting {
            failures += 1;
            if failures >= check.retries {
                let HealthProbe { name, hint, .. } = *check;
                return Err(SetupError::Unhealthy { check: name, failures, why, hint });
            }
        }
        let pause = if starting { check.grace_interval } else { check.interval };
        tokio::time::sleep(pause).await;
    }
}

/// Runs the check once; the inner error is why the environment is not ready.
async fn check_once(
    environment: &ManagedEnvironment,
    check: &HealthProbe,
    capture: Arc<Capture>,
) -> Result<Result<(), String>, SetupError> {
    let argv = check.argv.clone();
    let command = ExecCommand { argv, env: environment.network_env(), workdir: None, user: None };
    let (running, limit) = (environment.expect_running(), check.limit);
    let began = Instant::now();
    let ran = executor::run_until(
        running,
        run_limited(running, command, limit, capture.clone()),
        limit.saturating_add(END_WITHIN),
        NormalExit::AnyCode,
        std::future::pending(),
    )
    .await;
    if let Some(left) = ran.processes_left {
        return Err(SetupError::Create(left));
    }
    let exceeded = || Err(format!("it exceeded its time limit of {limit:?}"));
    Ok(match ran.end {
        ScriptEnd::Exited(exit) if exit.code == 0 => Ok(()),
        ScriptEnd::Exited(exit) if time_limit::is_end_at_limit(exit, began.elapsed(), limit) => {
            exceeded()
        }
        ScriptEnd::Exited(exit) => {
            let words = stderr_summary(&capture).await;
            Err(with_words(format!("it ended with code {}", exit.code), &words))
        }
        ScriptEnd::TimedOut => exceeded(),
        ScriptEnd::Failed(failure) if failure.kind == FailureKind::NotStarted => {
            // Programs of the environment can have ended it: then it is not the check that fails.
            running.check_running().await.map_err(SetupError::Create)?;
            Err(failure.chain())
        }
        ScriptEnd::Failed(failure) => return Err(SetupError::Create(failure)),
    })
}

/// Runs the check, which the environment ends alone at its limit: a service that is slow to answer lives
/// on.
async fn run_limited(
    environment: &dyn Environment,
    command: ExecCommand,
    limit: Duration,
    output: Arc<Capture>,
) -> Result<CommandExit, Failure> {
    let argv = time_limit::limited(&command.argv, limit);
    let limited = ExecCommand { argv, ..command.clone() };
    match environment.exec(limited, output.clone()).await {
        // Some images have no shell, and a check that needs none.
        Err(failure) if failure.kind == FailureKind::NotStarted => {
            environment.exec(command, output).await
        }
        ended => ended,
    }
}
