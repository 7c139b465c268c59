//! Execution of scripts of any stage, and of the agent `shell`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rollout_base::dependency::Dependency;
use rollout_environment::{CommandExit, Environment, ExecCommand, Failure, OutputSink};
use tokio::sync::watch;

use super::ScriptEnv;
use super::limits::{LIMITS_VARIABLE, ToldLimits, keep_current};
use super::model_calls::AgentClock;
use super::shell::{ShellAgent, ShellPlace};
use crate::executor::errors::ScriptError;
use crate::executor::{self, Capture, NormalExit, ScriptEnd, ScriptLimit, ScriptRun};

/// A script and how it runs.
#[derive(Debug)]
pub(in crate::work) struct PlannedScript {
    pub(in crate::work) work: ScriptWork,
    pub(in crate::work) env: ScriptEnv,
    /// Working directory; the environment's own when absent.
    pub(in crate::work) workdir: Option<String>,
    /// User; the environment's own when absent.
    pub(in crate::work) user: Option<String>,
    pub(in crate::work) limit: Duration,
    /// Exit codes that are no failure.
    pub(in crate::work) normal: NormalExit,
    /// Whether its processes live on although it ended with another code.
    pub(in crate::work) keep_processes: bool,
    /// Measures its time limit, if model calls may stop its clock.
    pub(in crate::work) clock: Option<AgentClock>,
    /// The limits that its file has, if it is the work of an agent or of a search.
    pub(in crate::work) told: Option<ToldLimits>,
}

/// The work of a script.
#[derive(Debug)]
pub(in crate::work) enum ScriptWork {
    Command(Vec<String>),
    Shell(ShellAgent),
}

/// A failed script.
#[derive(Debug)]
pub(in crate::work) struct ScriptFailure {
    pub(in crate::work) error: ScriptError,
    /// Processes of the script may still be alive.
    pub(in crate::work) processes_left: Option<Failure>,
}

impl From<ScriptError> for ScriptFailure {
    fn from(error: ScriptError) -> Self {
        Self { error, processes_left: None }
    }
}

/// Places the file with the limits of a script, if it is told any and the environment has room for it, and
/// names it to the script.
pub(in crate::work) async fn place_limits(
    environment: &dyn Environment,
    script: &mut PlannedScript,
) -> Result<(), ScriptError> {
    let Some(told) = script.told.filter(ToldLimits::has_any) else { return Ok(()) };
    let placed = told.place_first(environment).await;
    script.told = placed.map_err(|failure| ScriptError::Place { what: "the limits", failure })?;
    if let Some(told) = &script.told {
        script.env.insert(LIMITS_VARIABLE.to_owned(), told.path().to_owned());
    }
    Ok(())
}

/// Runs a script of the agent, which finds its limits in a file, and measures the storage when it has
/// ended, before anything else runs: the agent's files are not charged to the verifier. The script is
/// ended when `stop_ignored` gives the grace time that it had.
pub(in crate::work) async fn run_agent_script(
    environment: &dyn Environment,
    mut agent: PlannedScript,
    capture: Arc<Capture>,
    stop_ignored: impl Future<Output = Duration> + Send,
) -> Result<CommandExit, ScriptFailure> {
    place_limits(environment, &mut agent).await?;
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
pub(in crate::work) async fn run_script(
    environment: &dyn Environment,
    script: PlannedScript,
    capture: Arc<Capture>,
) -> Result<CommandExit, ScriptFailure> {
    run_script_until(environment, script, capture, std::future::pending()).await
}

/// Returns when the clock of an agent has reached its limit; never without a clock of its own. Either
/// tells how long the script's time has stood still.
async fn wait_for_limit(
    clock: Option<&AgentClock>,
    limit: Duration,
    engine: Option<&Dependency>,
    stood: &watch::Sender<Duration>,
) {
    match (clock, engine) {
        (Some(clock), _) => clock.wait_for_limit(limit, engine, stood).await,
        (None, Some(engine)) => {
            let before = engine.downtime();
            loop {
                engine.wait_for_recovery().await;
                stood.send_replace(engine.downtime().saturating_sub(before));
            }
        }
        (None, None) => std::future::pending().await,
    }
}

async fn run_script_until(
    environment: &dyn Environment,
    script: PlannedScript,
    capture: Arc<Capture>,
    stop_ignored: impl Future<Output = Duration> + Send,
) -> Result<CommandExit, ScriptFailure> {
    let (limit, normal, grace) = (script.limit, script.normal, OnceLock::new());
    let ended = async {
        // It returns at most once.
        let ignored = stop_ignored.await;
        let _first = grace.set(ignored);
    };
    let ran = run_to_end(environment, script, capture.clone(), ended).await;
    if let (ScriptEnd::TimedOut, Some(grace)) = (&ran.end, grace.into_inner()) {
        let error = ScriptError::StopIgnored { grace };
        return Err(ScriptFailure { error, processes_left: ran.processes_left });
    }
    let limit = ScriptLimit { limit, whose: None };
    let ended = ran.end.into_result(environment, &capture, limit, normal).await;
    ended.map_err(|error| ScriptFailure { error, processes_left: ran.processes_left })
}

/// Runs a script to its end, to its time limit, or until `told_to_end` returns.
pub(in crate::work) async fn run_to_end(
    environment: &dyn Environment,
    script: PlannedScript,
    capture: Arc<Capture>,
    told_to_end: impl Future<Output = ()> + Send,
) -> ScriptRun {
    let PlannedScript { work, env, workdir, user, limit, normal, keep_processes, .. } = script;
    let (clock, told) = (script.clock, script.told);
    let harmless = if keep_processes { NormalExit::AnyCode } else { normal };
    let stopped = watch::Sender::new(false);
    let stood = watch::Sender::new(Duration::ZERO);
    let end = async {
        let engine = environment.dependency();
        let limit_passed = wait_for_limit(clock.as_ref(), limit, engine, &stood);
        tokio::select! {
            () = told_to_end => {}
            () = limit_passed => {}
            never = keep_current(told, environment, stood.subscribe()) => match never {},
        }
        stopped.send_replace(true);
    };
    let output: Arc<dyn OutputSink> = capture;
    let working = match work {
        ScriptWork::Command(argv) => {
            environment.exec(ExecCommand { argv, env, workdir, user }, output)
        }
        ScriptWork::Shell(agent) => {
            let stopped = stopped.subscribe();
            let place = ShellPlace { environment, env, workdir, user, output, stopped };
            Box::pin(agent.run(place))
        }
    };
    let own_limit = if clock.is_some() { Duration::MAX } else { limit };
    executor::run_until(environment, working, own_limit, harmless, end).await
}
