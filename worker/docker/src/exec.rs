//! Execution of commands in a container.
//!
//! The engine cannot kill a command, and it loses the exit code of one that prints after its client
//! has disconnected. So a command's output is read by its own task until the streams end, however
//! early the caller gets its answer. The streams of a command that left a process behind end two
//! seconds after the command itself; its exit code is available at once, by asking.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::ExecInspectResponse;
use futures_util::{Stream as FutureStream, StreamExt as _};
use rollout_base::supervise;
use rollout_environment::{
    CommandExit, ExecCommand, Failure, FailureKind, OutputSink, OutputStream,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::container::Container;
use super::failure::has_status;

/// Buffer for a command's output.
const BUFFER: usize = 64 * 1024;

/// First check whether a command has ended while its streams are open. Short commands end their
/// streams earlier and need no such call.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The longest time between two checks.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// If no output arrives for this long after the end of the command, there is no more.
const QUIET_PERIOD: Duration = Duration::from_millis(100);

/// After this long the engine has closed the streams itself, or never will.
const DRAIN_WITHIN: Duration = Duration::from_millis(2500);

/// Bytes of output kept to recognise the engine's own errors.
const OUTPUT_START_BYTES: usize = 1024;

impl Container {
    /// Runs `command` to its end.
    pub(super) async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        self.check_storage_exceeded()?;
        match self.exec_once(command, output).await {
            Ok(exit) => Ok(exit),
            Err(failure) => Err(self.attribute_full_disk(failure).await),
        }
    }

    async fn exec_once(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        let program = command.argv.first().cloned().unwrap_or_default();
        let what = format!("cannot run `{program}`");
        let id = self.create_exec(command, &what).await?;
        let printed = Arc::new(ExecOutput::new(output));
        let closing = OutputCloser(Arc::clone(&printed));
        let ended = self.start_exec(&id, &what, &printed).await?;
        let found = self.wait(&id, &what, &printed, ended).await?;
        drop(closing);
        self.check_storage_exceeded()?;
        self.command_exit(&found, &what, &printed).await
    }

    async fn create_exec(&self, mut command: ExecCommand, what: &str) -> Result<String, Failure> {
        self.service_hosts.exempt_command(&mut command.env, &self.own_lists);
        let env = command.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            env: Some(env),
            cmd: Some(command.argv),
            user: command.user,
            working_dir: command.workdir,
            ..Default::default()
        };
        match self.client.docker().await?.create_exec(&self.engine_id, options).await {
            Ok(made) => Ok(made.id),
            Err(error) if has_status(&error, 409) => Err(self.exit_failure().await),
            Err(error) => Err(self.failure(what, error)),
        }
    }

    async fn start_exec(
        &self,
        id: &str,
        what: &str,
        printed: &Arc<ExecOutput>,
    ) -> Result<oneshot::Receiver<()>, Failure> {
        let options = StartExecOptions { output_capacity: Some(BUFFER), ..Default::default() };
        let started = self.client.docker().await?.start_exec(id, Some(options)).await;
        let (output, input) = match started {
            Ok(StartExecResults::Attached { output, input }) => (output, input),
            Ok(StartExecResults::Detached) => {
                return Err(Failure::new(FailureKind::Bug, format!("{what}: it was detached")));
            }
            Err(error) if has_status(&error, 409) => return Err(self.exit_failure().await),
            Err(error) => return Err(self.failure(what, error)),
        };
        let (end, ended) = oneshot::channel();
        let printed = Arc::clone(printed);
        self.track_reader(supervise::spawn("docker exec output", async move {
            read(output, &printed).await;
            drop(input);
            // The receiver may have been dropped.
            end.send(()).ok();
        }));
        Ok(ended)
    }

    /// Waits for the end of the command and of its output.
    async fn wait(
        &self,
        id: &str,
        what: &str,
        printed: &ExecOutput,
        mut ended: oneshot::Receiver<()>,
    ) -> Result<ExecInspectResponse, Failure> {
        let mut pause = FIRST_POLL_INTERVAL;
        loop {
            tokio::select! {
                _ = &mut ended => break,
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
            match self.inspect_exec(id, what).await {
                Ok(found) if found.running != Some(true) => {
                    printed.drain(&mut ended).await;
                    return Ok(found);
                }
                // An engine that does not answer may recover: the open stream shows whether it has.
                Ok(_) => {}
                Err(failure) if failure.kind == FailureKind::Unreachable => {}
                Err(failure) => return Err(failure),
            }
        }
        // A command that closed its streams may still be running.
        let mut pause = Duration::from_millis(5);
        loop {
            let found = self.inspect_exec(id, what).await?;
            if found.running != Some(true) {
                return Ok(found);
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
        }
    }

    async fn inspect_exec(&self, id: &str, what: &str) -> Result<ExecInspectResponse, Failure> {
        match self.client.docker().await?.inspect_exec(id).await {
            Ok(found) => Ok(found),
            Err(error) if has_status(&error, 404) => {
                self.check_storage_exceeded()?;
                let message = format!("{what}: the container {} was removed meanwhile", self.name);
                Err(Failure::new(FailureKind::Gone, message))
            }
            Err(error) => Err(self.failure(what, error)),
        }
    }

    /// The exit code, or the failure of a command that never started. In that case the engine
    /// writes its error to the command's own stream, and no process ever existed.
    async fn command_exit(
        &self,
        found: &ExecInspectResponse,
        what: &str,
        printed: &ExecOutput,
    ) -> Result<CommandExit, Failure> {
        let Some(code) = found.exit_code else {
            let message = format!("{what} in the container {}: no exit code", self.name);
            return Err(Failure::new(FailureKind::Service, message));
        };
        let words = printed.output_start();
        let no_such_user =
            words.starts_with("unable to find user") || words.starts_with("unable to find group");
        let is_engine_error = words.contains("OCI runtime") || no_such_user;
        if matches!(code, 126 | 127) && found.pid.unwrap_or(0) == 0 && is_engine_error {
            // The whole container may be ending.
            sleep(QUIET_PERIOD).await;
            if !self.is_running().await? {
                return Err(self.exit_failure().await);
            }
            let message = format!("{what} in the container {}: {}", self.name, words.trim());
            let kind = if no_such_user { FailureKind::Refused } else { FailureKind::NotStarted };
            return Err(Failure::new(kind, message));
        }
        Ok(CommandExit { code: i32::try_from(code).unwrap_or(i32::MAX) })
    }
}

async fn read(
    mut output: impl FutureStream<Item = Result<LogOutput, bollard::errors::Error>> + Unpin,
    printed: &ExecOutput,
) {
    while let Some(piece) = output.next().await {
        match piece {
            Ok(LogOutput::StdErr { message }) => printed.write(OutputStream::Stderr, &message),
            Ok(piece) => printed.write(OutputStream::Stdout, piece.as_ref()),
            Err(error) => {
                tracing::debug!(%error, "a command's output was cut off");
                return;
            }
        }
    }
}

/// A command's output on its way to the caller.
struct ExecOutput {
    output: Mutex<Option<Arc<dyn OutputSink>>>,
    first_words: Mutex<Vec<u8>>,
    pieces: AtomicU64,
}

/// Closes the output of a command whose caller has its answer or has stopped waiting. The rest is
/// read and discarded.
struct OutputCloser(Arc<ExecOutput>);

impl Drop for OutputCloser {
    fn drop(&mut self) {
        self.0.output.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl ExecOutput {
    fn new(output: Arc<dyn OutputSink>) -> Self {
        Self {
            output: Mutex::new(Some(output)),
            first_words: Mutex::default(),
            pieces: AtomicU64::new(0),
        }
    }

    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        if self.pieces.fetch_add(1, Ordering::Relaxed) == 0 {
            let mut words = self.first_words.lock().unwrap_or_else(PoisonError::into_inner);
            words.extend_from_slice(&bytes[..bytes.len().min(OUTPUT_START_BYTES)]);
        }
        if let Some(output) = &*self.output.lock().unwrap_or_else(PoisonError::into_inner) {
            output.write(stream, bytes);
        }
    }

    fn output_start(&self) -> String {
        let words = self.first_words.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&words).into_owned()
    }

    /// Waits until the output of an ended command has arrived.
    async fn drain(&self, ended: &mut oneshot::Receiver<()>) {
        let deadline = Instant::now() + DRAIN_WITHIN;
        let mut seen = self.pieces.load(Ordering::Relaxed);
        while Instant::now() < deadline {
            tokio::select! {
                _ = &mut *ended => return,
                () = sleep(QUIET_PERIOD) => {}
            }
            let now = self.pieces.load(Ordering::Relaxed);
            if now == seen {
                return;
            }
            seen = now;
        }
    }
}
