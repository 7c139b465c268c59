//! Execution of scripts of any stage.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use super::gateway::AgentClock;
use super::shell::{ShellAgent, ShellPlace};
use super::variables::ScriptEnv;
use crate::dependency::Dependency;
use crate::environment::{CommandExit, Environment, ExecCommand, Failure, OutputSink};
use crate::executor::errors::ScriptError;
use crate::executor::{self, Capture, NormalExit, ScriptEnd, ScriptLimit};

/// A script and how it runs.
#[derive(Debug)]
pub(super) struct TrialScript {
    pub(super) work: ScriptWork,
    pub(super) env: ScriptEnv,
    /// User; the environment's own when absent.
    pub(super) user: Option<String>,
    pub(super) limit: Duration,
    /// Exit codes that are no failure.
    pub(super) normal: NormalExit,
    /// Whether its processes live on although it ended with another code.
    pub(super) keep_processes: bool,
    /// Measures its time limit, if model calls may stop its clock.
    pub(super) clock: Option<AgentClock>,
}

/// The work of a script.
#[derive(Debug)]
pub(super) enum ScriptWork {
    Command(Vec<String>),
    Shell(ShellAgent),
}

/// A failed script.
#[derive(Debug)]
pub(super) struct ScriptFailure {
    pub(super) error: ScriptError,
    /// Processes of the script may still be alive.
    pub(super) processes_left: Option<Failure>,
}

impl From<ScriptError> for ScriptFailure {
    fn from(error: ScriptError) -> Self {
        Self { error, processes_left: None }
    }
}

/// Runs a script of the agent and measures the storage when it has ended, before anything else
/// runs: the agent's files are not charged to the verifier. The script is ended when `stop_ignored`
/// gives the grace time that it had.
pub(super) async fn run_agent_script(
    environment: &dyn Environment,
    agent: TrialScript,
    capture: Arc<Capture>,
    stop_ignored: impl Future<Output = Duration> + Send,
) -> Result<CommandExit, ScriptFailure> {
    let ended = Box::pin(run_script_until(environment, agent, capture, stop_ignored)).await;
    match environment.check_storage().await {
        Ok(()) => ended,
        Err(failure) => {
            let processes_left = executor::kill_processes(environment).await;
            Err(ScriptFailure { error: ScriptError::Exec(failure), processes_left })
        }
    }
}

/// Runs a script in the environment's working directory. Unless it ends with a normal code or
/// `spares` is set, nothing it started is alive afterwards, or the error says so.
pub(super) async fn run_script(
    environment: &dyn Environment,
    script: TrialScript,
    capture: Arc<Capture>,
) -> Result<CommandExit, ScriptFailure> {
    run_script_until(environment, script, capture, std::future::pending()).await
}

/// Returns when the clock of an agent has reached its limit; never without a clock of its own.
async fn wait_for_limit(clock: Option<&AgentClock>, limit: Duration, engine: Option<&Dependency>) {
    match clock {
        Some(clock) => clock.wait_for_limit(limit, engine).await,
        None => std::future::pending().await,
    }
}

async fn run_script_until(
    environment: &dyn Environment,
    script: TrialScript,
    capture: Arc<Capture>,
    stop_ignored: impl Future<Output = Duration> + Send,
) -> Result<CommandExit, ScriptFailure> {
    let TrialScript { work, env, user, limit, normal, keep_processes, clock } = script;
    let harmless = if keep_processes { NormalExit::AnyCode } else { normal };
    let (grace, stopped) = (OnceLock::new(), watch::Sender::new(false));
    let end = async {
        let limit_passed = wait_for_limit(clock.as_ref(), limit, environment.dependency());
        tokio::select! {
            // It returns at most once.
            ignored = stop_ignored => drop(grace.set(ignored)),
            () = limit_passed => {}
        }
        stopped.send_replace(true);
    };
    let output: Arc<dyn OutputSink> = capture.clone();
    let working = match work {
        ScriptWork::Command(argv) => {
            environment.exec(ExecCommand { argv, env, workdir: None, user }, output)
        }
        ScriptWork::Shell(agent) => {
            let stopped = stopped.subscribe();
            Box::pin(agent.run(ShellPlace { environment, env, user, output, stopped }))
        }
    };
    let own_limit = if clock.is_some() { Duration::MAX } else { limit };
    let ran = executor::run_until(environment, working, own_limit, harmless, end).await;
    if let (ScriptEnd::TimedOut, Some(grace)) = (&ran.end, grace.into_inner()) {
        let error = ScriptError::StopIgnored { grace };
        return Err(ScriptFailure { error, processes_left: ran.processes_left });
    }
    let limit = ScriptLimit { limit, whose: None };
    let ended = ran.end.into_result(environment, &capture, limit, normal).await;
    ended.map_err(|error| ScriptFailure { error, processes_left: ran.processes_left })
}
