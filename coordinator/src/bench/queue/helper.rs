//! The worker process: this program under a word of its own. It is told what to do in a line on its
//! standard input, says when it is ready, ends with its input, and says what processor time it took
//! in between.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use rollout_worker::supervise;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

use super::{Fault, floor, product};
use crate::bench::usage;

/// First argument of the program as a worker of a measurement: not for people.
pub const WORD: &str = "__bench-worker";

/// What it says when the clock may start.
const READY: &str = "ready";

/// What the process does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Part {
    /// Runs trials.
    Product(product::Part),
    /// Reports at once.
    Floor(floor::Floor),
}

/// The process, seen from the one that measures. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Helper {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Helper {
    /// Starts it and waits until it is ready.
    pub(super) async fn start(part: &Part) -> Result<Self, Fault> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WORD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            // Whoever interrupts the measurement interrupts this process, which ends the other.
            .process_group(0)
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else { return Err(Fault::Closed) };
        let mut line = serde_json::to_string(part).map_err(std::io::Error::from)?;
        line.push('\n');
        input.write_all(line.as_bytes()).await?;
        let mut output = BufReader::new(output).lines();
        match output.next_line().await? {
            Some(line) if line == READY => Ok(Self { child, input, output }),
            _ => Err(Fault::Worker("did not begin".to_owned())),
        }
    }

    /// Ends it; the processor time that it took since it was ready.
    pub(super) async fn finish(self) -> Result<Duration, Fault> {
        let Self { mut child, input, mut output } = self;
        drop(input);
        let line = output.next_line().await?;
        let status = child.wait().await?;
        match line.and_then(|line| line.parse().ok()) {
            Some(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
            None => Err(Fault::Worker(format!("ended with {status}"))),
        }
    }
}

/// Is the process: reads what to do from standard input and does it until that is closed.
///
/// # Errors
/// [`Fault`].
pub async fn serve() -> Result<(), Fault> {
    let (told, tell) = oneshot::channel();
    let (close, closed) = oneshot::channel();
    // A thread of its own: nobody waits for it when the work fails.
    supervise::thread("input", move || {
        let mut lines = std::io::stdin().lines();
        // Without a reader the process is about to end.
        let _gone = told.send(lines.next());
        while let Some(Ok(_)) = lines.next() {}
        let _gone = close.send(());
    })?;
    let line = tell.await.ok().flatten().ok_or(Fault::Closed)??;
    match serde_json::from_str(&line).map_err(std::io::Error::from)? {
        Part::Product(part) => {
            let worker = product::Worker::connect(part).await?;
            until(closed, worker.work()).await
        }
        Part::Floor(floor) => {
            let worker = floor::Worker::connect(floor).await?;
            until(closed, worker.work()).await
        }
    }
}

async fn until(
    closed: oneshot::Receiver<()>,
    work: impl Future<Output = Result<(), Fault>>,
) -> Result<(), Fault> {
    let before = usage::cpu();
    say(READY)?;
    tokio::select! {
        ended = work => {
            ended?;
            return Err(Fault::Worker("ended by itself".to_owned()));
        }
        _ = closed => {}
    };
    say(&(usage::cpu() - before).as_nanos().to_string())
}

fn say(line: &str) -> Result<(), Fault> {
    let mut output = std::io::stdout().lock();
    output.write_all(format!("{line}\n").as_bytes())?;
    Ok(output.flush()?)
}
