//! The worker process: this program with internal arguments. It reads its role from a line
//! on standard input, prints a line when it is ready, ends with its input, and prints the processor
//! time used in between.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use rollout_base::supervise;
use rollout_tests::hidden_commands::QUEUE_OVERHEAD;
use rollout_tests::noop_worker::{NoopWorker, NoopWorkerConfig};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

use crate::queue_overhead::comparison::QueueBenchError;
use crate::queue_overhead::{floor, usage};

/// Argument that makes the program the worker of a measurement.
pub(crate) const HELPER_ARGUMENT: &str = "worker";

/// Line that it prints when the clock may start.
const READY_LINE: &str = "ready";

/// Role of the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum HelperRole {
    /// Runs trials.
    Product(NoopWorkerConfig),
    /// Reports at once.
    Floor(floor::FloorConfig),
}

/// Handle of the worker process. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct HelperProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl HelperProcess {
    /// Starts it and waits until it is ready.
    pub(crate) async fn start(role: &HelperRole) -> Result<Self, QueueBenchError> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([QUEUE_OVERHEAD, HELPER_ARGUMENT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            // An interrupt must reach only this process, which ends its child.
            .process_group(0)
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(QueueBenchError::Closed);
        };
        let mut line = serde_json::to_string(role).map_err(std::io::Error::from)?;
        line.push('\n');
        input.write_all(line.as_bytes()).await?;
        let mut output = BufReader::new(output).lines();
        match output.next_line().await? {
            Some(line) if line == READY_LINE => Ok(Self { child, input, output }),
            _ => Err(QueueBenchError::Worker("did not start".to_owned())),
        }
    }

    /// Ends it. Returns the processor time that it used since it was ready.
    pub(crate) async fn finish(self) -> Result<Duration, QueueBenchError> {
        let Self { mut child, input, mut output } = self;
        drop(input);
        let line = output.next_line().await?;
        let status = child.wait().await?;
        match line.and_then(|line| line.parse().ok()) {
            Some(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
            None => Err(QueueBenchError::Worker(format!("ended with {status}"))),
        }
    }
}

/// Runs as the worker process: reads its role from standard input and works until that is closed.
///
/// # Errors
/// [`QueueBenchError`].
pub(crate) async fn serve() -> Result<(), QueueBenchError> {
    let (send_role, role) = oneshot::channel();
    let (close, closed) = oneshot::channel();
    // A separate thread: nothing waits for it when the work fails.
    supervise::thread("input", move || {
        let mut lines = std::io::stdin().lines();
        // Without a reader the process is about to end.
        let _gone = send_role.send(lines.next());
        while let Some(Ok(_)) = lines.next() {}
        let _gone = close.send(());
    })?;
    let line = role.await.ok().flatten().ok_or(QueueBenchError::Closed)??;
    match serde_json::from_str(&line).map_err(std::io::Error::from)? {
        HelperRole::Product(part) => {
            let worker = NoopWorker::connect(part).await?;
            run_until_closed(closed, async { Ok(worker.run().await?) }).await
        }
        HelperRole::Floor(floor) => {
            let worker = floor::FloorWorker::connect(floor).await?;
            run_until_closed(closed, worker.run()).await
        }
    }
}

async fn run_until_closed(
    closed: oneshot::Receiver<()>,
    work: impl Future<Output = Result<(), QueueBenchError>>,
) -> Result<(), QueueBenchError> {
    let before = usage::cpu();
    print_line(READY_LINE)?;
    tokio::select! {
        ended = work => {
            ended?;
            return Err(QueueBenchError::Worker("ended too early".to_owned()));
        }
        _ = closed => {}
    };
    print_line(&(usage::cpu() - before).as_nanos().to_string())
}

fn print_line(line: &str) -> Result<(), QueueBenchError> {
    let mut output = std::io::stdout().lock();
    output.write_all(format!("{line}\n").as_bytes())?;
    Ok(output.flush()?)
}
