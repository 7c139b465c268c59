//! The same trials run with `rollout run`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rollout_tests::engine_proxy::EngineProxy;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tempfile::TempDir;
use tokio::process::Command;

use crate::report::BenchBatch;
use crate::{BenchError, StopSignals};

/// Image of all trials.
pub(crate) const IMAGE: &str = "debian:bookworm-slim";

/// Script of the agent.
pub(crate) const SOLUTION: &str = "echo solved >/tmp/solved\n";

/// Script of the verifier.
pub(crate) const TEST: &str = "test -e /tmp/solved && echo 1 >/logs/verifier/reward.txt\n";

/// Clock ticks per second in `/proc`, fixed by Linux for programs.
const TICKS: f64 = 100.0;

/// Trials of the two runs whose calls are counted, and their concurrency.
const FEW_TRIALS: u32 = 4;
const MANY_TRIALS: u32 = 12;
const COUNTED_AT_A_TIME: u32 = 4;

/// A task and its runs.
pub(crate) struct ProductBench {
    directory: TempDir,
    runs: AtomicU32,
}

/// Numbers of requests to the engine.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct CallCounts {
    /// Per trial.
    pub(crate) per_trial: f64,
    /// Per run, independent of its number of trials.
    pub(crate) per_run: f64,
}

impl ProductBench {
    /// Writes the task.
    pub(crate) fn new() -> Result<Self, BenchError> {
        let directory = tempfile::Builder::new().prefix("docker-overhead-").tempdir()?;
        let task = directory.path().join("tasks/tiny");
        for (name, text) in [
            ("instruction.md", "Solve it.\n"),
            ("task.toml", &format!("[environment]\ndocker_image = \"{IMAGE}\"\n")),
            ("solution/solve.sh", SOLUTION),
            ("tests/test.sh", TEST),
        ] {
            let path = task.join(name);
            fs::create_dir_all(path.parent().expect("below the task"))?;
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { directory, runs: AtomicU32::new(0) })
    }

    /// Runs `number` trials, `concurrency` at a time, in one run of the program.
    pub(crate) async fn trials(
        &self,
        number: u32,
        concurrency: u32,
        materialize: &str,
        stops: &mut StopSignals,
    ) -> Result<BenchBatch, BenchError> {
        let command = self.command(number, concurrency, materialize)?;
        let (began, cpu) = (Instant::now(), children_cpu()?);
        run(command, stops).await?;
        let (wall, cpu) = (began.elapsed().as_secs_f64(), children_cpu()? - cpu);
        Ok(BenchBatch { wall, cpu, trials: number })
    }

    /// Counts requests with two runs of different length; `None` if the engine is not at a Unix
    /// socket.
    pub(crate) async fn calls(
        &self,
        stops: &mut StopSignals,
    ) -> Result<Option<CallCounts>, BenchError> {
        if std::env::var("DOCKER_HOST").is_ok_and(|host| !host.starts_with("unix://")) {
            return Ok(None);
        }
        let proxy = EngineProxy::counting(&self.directory.path().join("engine.sock"));
        let mut counts = [0.0; 2];
        for (count, number) in counts.iter_mut().zip([FEW_TRIALS, MANY_TRIALS]) {
            let mut command = self.command(number, COUNTED_AT_A_TIME, "none")?;
            command.env("DOCKER_HOST", proxy.host());
            let before = proxy.requests();
            run(command, stops).await?;
            *count = (proxy.requests() - before) as f64;
        }
        let per_trial = (counts[1] - counts[0]) / f64::from(MANY_TRIALS - FEW_TRIALS);
        Ok(Some(CallCounts { per_trial, per_run: counts[0] - per_trial * f64::from(FEW_TRIALS) }))
    }

    fn command(
        &self,
        number: u32,
        at_a_time: u32,
        materialize: &str,
    ) -> Result<Command, BenchError> {
        let name = format!("run-{}", self.runs.fetch_add(1, Ordering::Relaxed));
        let job = self.directory.path().join(format!("{name}.yaml"));
        let text = format!(
            "name: {name}\nn_attempts: {number}\nn_concurrent_trials: {at_a_time}\n\
             environment:\n  type: docker\nretry:\n  max_attempts: 1\n\
             agents:\n  - name: oracle\ndatasets:\n  - path: tasks\n"
        );
        fs::write(&job, text)?;
        let mut command = Command::new(std::env::current_exe()?);
        let arguments = ["--quiet", "--fail-under", "1", "--materialize", materialize];
        command.arg("run").arg(&job).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command.current_dir(self.directory.path());
        Ok(command)
    }
}

/// Runs the command to its end; forwards stop signals, so that it removes its containers.
async fn run(mut command: Command, stops: &mut StopSignals) -> Result<(), BenchError> {
    let mut child = command.spawn()?;
    let status = tokio::select! {
        status = child.wait() => status?,
        () = stops.wait() => {
            let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
            kill_process(pid.ok_or("stopped")?, Signal::TERM)?;
            child.wait().await?;
            return Err("stopped".into());
        }
    };
    if status.success() { Ok(()) } else { Err(format!("rollout run: {status}").into()) }
}

/// Processor time of ended child processes, in seconds.
fn children_cpu() -> Result<f64, BenchError> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name before it may contain anything; the state, the third field, follows.
    let (_, fields) = stat.rsplit_once(") ").ok_or("/proc/self/stat has no name")?;
    let ticks = |field: usize| -> Result<f64, BenchError> {
        Ok(fields.split(' ').nth(field - 3).ok_or("/proc/self/stat is short")?.parse()?)
    };
    Ok((ticks(16)? + ticks(17)?) / TICKS)
}
