//! One script, run to its end or to its time limit, after which nothing it started is alive; and
//! the interpretation of its end.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::dependency;
use rollout_environment::{
    CommandExit, Environment, ExecCommand, Failure, FailureKind, OutputSink,
};
use rollout_protocol::Timestamp;
use rollout_protocol::record::CommandRecord;
use rollout_protocol::spec::eval::EvalStage;
use tokio::sync::Notify;

use super::capture::Capture;
use super::errors::ScriptError;
use super::last_lines::stderr_summary;

/// Longest wait for the end of all processes: killing a thousand takes one second, a restart of the
/// environment a few more.
const KILL_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait for a command to return after its processes are gone.
const RETURN_LIMIT: Duration = Duration::from_secs(10);

/// The result of a script.
#[derive(Debug)]
pub struct ScriptRun {
    /// How it ended.
    pub end: ScriptEnd,
    /// Processes may still be alive: the environment must not be used any more.
    pub processes_left: Option<Failure>,
}

/// How a script ended.
#[derive(Debug)]
pub enum ScriptEnd {
    /// By itself, or by a signal that this program did not send.
    Exited(CommandExit),
    /// Killed at its time limit, or because it was told to end.
    TimedOut,
    /// Unknown.
    Failed(Failure),
}

/// Which exits of a command are normal: other processes of the environment live on then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormalExit {
    /// Code 0.
    Zero,
    /// Any code.
    AnyCode,
}

/// The time limit of a script, as its error states it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptLimit {
    /// The limit.
    pub(crate) limit: Duration,
    /// Whose limit it is, unless that is obvious.
    pub(crate) whose: Option<&'static str>,
}

impl ScriptEnd {
    /// The exit of a successful script; otherwise the error. `normal` defines which codes are no
    /// failure.
    pub(crate) async fn into_result(
        self,
        environment: &dyn Environment,
        capture: &Capture,
        ScriptLimit { limit, whose }: ScriptLimit,
        normal: NormalExit,
    ) -> Result<CommandExit, ScriptError> {
        match self {
            Self::Exited(exit) if exit.code == 0 || normal == NormalExit::AnyCode => Ok(exit),
            Self::Exited(exit) => Err(ScriptError::Exit {
                code: exit.code,
                oom_killed: exit.code == 137 && environment.oom_killed().await,
                last_words: stderr_summary(capture).await,
            }),
            Self::TimedOut => Err(ScriptError::TimedOut { limit, whose }),
            Self::Failed(failure) => Err(ScriptError::Exec(failure)),
        }
    }

    /// The record of a command that began at `started_at` and has just ended.
    pub(crate) fn command_record(&self, stage: EvalStage, started_at: Timestamp) -> CommandRecord {
        let (exit_code, timed_out) = match self {
            Self::Exited(exit) => (Some(exit.code), false),
            Self::TimedOut => (None, true),
            Self::Failed(_) => (None, false),
        };
        CommandRecord { stage, started_at, ended_at: Timestamp::now(), exit_code, timed_out }
    }
}

/// Runs a command. Unless it ends normally, everything that runs in the environment is killed
/// before this returns. The limit does not count outages of the environment's engine.
pub async fn run_command(
    environment: &dyn Environment,
    command: ExecCommand,
    limit: Duration,
    output: Arc<dyn OutputSink>,
    normal: NormalExit,
) -> ScriptRun {
    let work = environment.exec(command, output);
    run_until(environment, work, limit, normal, std::future::pending()).await
}

/// Runs work that starts commands in an environment, as [`run_command`] runs one command. Also ends
/// it when `end` does, as at its time limit.
pub async fn run_until(
    environment: &dyn Environment,
    work: impl Future<Output = Result<CommandExit, Failure>> + Send,
    limit: Duration,
    normal: NormalExit,
    end: impl Future<Output = ()> + Send,
) -> ScriptRun {
    let mut running = Box::pin(work);
    let ran = tokio::select! {
        biased;
        ran = dependency::within(environment.dependency(), limit, &mut running) => ran,
        () = end => None,
    };
    match ran {
        Some(Ok(exit)) if exit.code == 0 || normal == NormalExit::AnyCode => {
            ScriptRun { end: ScriptEnd::Exited(exit), processes_left: None }
        }
        Some(Ok(exit)) => ScriptRun {
            end: ScriptEnd::Exited(exit),
            processes_left: kill_processes(environment).await,
        },
        Some(Err(failure)) => {
            let processes_left = match failure.kind {
                FailureKind::Gone => None,
                _ => kill_processes(environment).await,
            };
            ScriptRun { end: ScriptEnd::Failed(failure), processes_left }
        }
        None => {
            // The command must be polled while it is killed: it reads the last of the output.
            let killed = Notify::new();
            let killing = async {
                let left = kill_processes(environment).await;
                killed.notify_one();
                left
            };
            let return_timeout = async {
                killed.notified().await;
                tokio::time::sleep(RETURN_LIMIT).await;
            };
            let returning = async {
                tokio::select! {
                    _ = &mut running => {}
                    () = return_timeout => {}
                }
            };
            let (processes_left, ()) = tokio::join!(killing, returning);
            ScriptRun { end: ScriptEnd::TimedOut, processes_left }
        }
    }
}

/// Kills everything that runs in an environment; returns why something may be alive.
pub async fn kill_processes(environment: &dyn Environment) -> Option<Failure> {
    match tokio::time::timeout(KILL_LIMIT, environment.kill_processes()).await {
        Ok(Ok(())) => None,
        Ok(Err(failure)) if failure.kind == FailureKind::Gone => None,
        Ok(Err(failure)) => Some(failure),
        Err(_) => Some(Failure::new(
            FailureKind::LeftBehind,
            format!(
                "killing the processes of {} took longer than {KILL_LIMIT:?}",
                environment.id()
            ),
        )),
    }
}
