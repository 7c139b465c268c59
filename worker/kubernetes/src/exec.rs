//! Execution of commands in a pod.
//!
//! A command is started at most once and runs detached from the call that started it. A call whose
//! connection breaks is followed by one that reads the output from where it stopped. The runner marks
//! the ends of the outputs, so output that a server dropped or a reader lost is noticed: it is read
//! again, or the execution fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rollout_environment::{
    CommandExit, ExecCommand, Failure, FailureKind, OutputSink, OutputStream,
};

use super::frames::new_mark;
use super::marked_output::MarkedOutput;
use super::pod::{Attempts, Broken, KubePod};
use super::scripts::{self, Launch};
use super::stream::{CutStream, ExecStream, StreamPart, StreamState};

/// Exit code of a command that ended with its container, or by a kill that also ended its runner.
const KILLED: i32 = 137;

/// A command on its way.
struct RunningCommand<'a> {
    pod: &'a KubePod,
    /// Identifies it in the container.
    id: String,
    script: String,
    output: &'a dyn OutputSink,
    program: String,
    user: Option<String>,
    workdir: String,
    /// Whether it has started.
    started: bool,
    out: MarkedOutput,
    err: MarkedOutput,
}

/// How an attempt ended.
enum Attempt {
    Ended(CommandExit),
    Broken { broken: Broken, progress: bool },
}

/// A frame about the end of a command.
#[derive(Debug, PartialEq, Eq)]
enum EndFrame {
    Ended {
        exit: RunnerExit,
        oom: u64,
        /// Lengths of both files of output, if nothing more arrives in them.
        lengths: Option<(u64, u64)>,
    },
    /// It never started, for this reason.
    Failed(String),
    /// No attempt has started it.
    NotStarted,
    /// Output that has not arrived is lost, for this reason.
    OutputLost(LostOutput),
}

/// Why output cannot arrive any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LostOutput {
    /// It was read so long ago that it was removed.
    Removed,
    /// No process could be started that reads it.
    NoReader,
    /// The process that reads it ended before the command.
    ReaderEnded,
    /// Its end has no mark: the command's runner could not write it.
    NoMark,
}

impl LostOutput {
    fn words(self) -> &'static str {
        match self {
            Self::Removed => "was lost: it was removed before it arrived",
            Self::NoReader => "was lost: no process can be started to read it",
            Self::ReaderEnded => "was lost: the process that reads it was ended",
            Self::NoMark => "was lost before it arrived: its end is missing",
        }
    }
}

/// How the runner of a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunnerExit {
    /// With the exit code of the command.
    Code(i32),
    /// By a kill, which may have ended the readers of the outputs, too.
    Killed,
}

impl KubePod {
    /// Runs `command` to its end.
    pub(super) async fn exec(
        &self,
        mut command: ExecCommand,
        workdir: &str,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        if self.is_stopped.load(Ordering::Acquire) {
            let text = format!("cannot run a command: the pod {} was stopped", self.name);
            return Err(Failure::new(FailureKind::NotStarted, text));
        }
        self.has_run.store(true, Ordering::Relaxed);
        self.service_hosts.exempt_command(&mut command.env, &self.env);
        let id = format!("{:032x}", rand::random::<u128>());
        let mut running = RunningCommand {
            pod: self,
            script: scripts::runner(&id, &command, &self.env, workdir),
            out: MarkedOutput::new(&id),
            err: MarkedOutput::new(&id),
            id,
            output: output.as_ref(),
            program: command.argv.first().cloned().unwrap_or_default(),
            workdir: command.workdir.unwrap_or_else(|| workdir.to_owned()),
            user: command.user,
            started: false,
        };
        running.run().await
    }
}

impl RunningCommand<'_> {
    async fn run(&mut self) -> Result<CommandExit, Failure> {
        let pod = self.pod;
        let mut attempts = Attempts::default();
        loop {
            let attempt = tokio::select! {
                attempt = self.attempt() => attempt?,
                lost = pod.lost() => return self.end_with_pod(lost.failure, lost.is_oom_killed),
            };
            match attempt {
                Attempt::Ended(exit) => return Ok(exit),
                Attempt::Broken { broken, progress } => {
                    if progress {
                        attempts.reset();
                    }
                    if let Err(failure) = attempts.pause(pod, broken).await {
                        return self.end_with_pod(failure, pod.is_oom_killed());
                    }
                }
            }
        }
    }

    /// The memory limit ends a whole container, so a command that it ended has a known outcome.
    fn end_with_pod(&self, failure: Failure, is_oom: bool) -> Result<CommandExit, Failure> {
        if is_oom && self.started { Ok(CommandExit { code: KILLED }) } else { Err(failure) }
    }

    /// Starts the command unless it was started, and reads its output.
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        let (before, pod) = (self.progress(), self.pod);
        let mut launching = if self.started { None } else { Some(pod.launching.read().await) };
        let script_bytes = if self.started { 0 } else { self.script.len() };
        let (out, err) = (self.out.received(), self.err.received());
        let launch = Launch { id: &self.id, script_bytes, out, err };
        let mark = new_mark();
        let argv = launch.argv(pod.shell, &mark);
        let mut stream = match ExecStream::open(pod.target(), argv, &mark).await {
            Ok(stream) => stream,
            Err(failure) => return Ok(broken(Broken::Call(failure), false)),
        };
        if script_bytes > 0
            && let Err(cut) = stream.input.send(self.script.as_bytes()).await
        {
            return Ok(broken(Broken::Cut(cut), false));
        }
        let (mut last, mut alive) = (None, false);
        let cut = loop {
            if let Some(exit) = self.finished(last.as_ref())? {
                stream.confirm().await;
                return Ok(Attempt::Ended(exit));
            }
            let mut text = None;
            let read = stream.read(|part| match part {
                StreamPart::Stdout(bytes) => self.write(OutputStream::Stdout, bytes),
                StreamPart::Stderr(bytes) => self.write(OutputStream::Stderr, bytes),
                StreamPart::Frame(found) => text = Some(found),
            });
            let read = read.await;
            match text.as_deref() {
                None => {}
                Some("s") => {
                    self.started = true;
                    launching = None;
                }
                Some("b") => alive = true,
                Some(text) => last = parse_end(text).or(last),
            }
            // The next attempt sends the script again.
            if !self.started && last == Some(EndFrame::NotStarted) {
                break CutStream("the command was not started".to_owned());
            }
            match read {
                Ok(StreamState::Open) => {}
                Ok(StreamState::Ended) => break stream.end_reason(b"").await,
                Err(cut) => break cut,
            }
        };
        drop(launching);
        let progress = alive || self.progress() != before;
        Ok(broken(Broken::Cut(cut), progress))
    }

    fn progress(&self) -> (u64, u64, bool) {
        (self.out.received(), self.err.received(), self.started)
    }

    fn write(&mut self, stream: OutputStream, bytes: &[u8]) {
        let output = match stream {
            OutputStream::Stdout => &mut self.out,
            OutputStream::Stderr => &mut self.err,
        };
        output.feed(bytes, |bytes| self.output.write(stream, bytes));
    }

    /// The exit, if the command has ended and all its output has arrived.
    fn finished(&mut self, last: Option<&EndFrame>) -> Result<Option<CommandExit>, Failure> {
        match last {
            Some(EndFrame::Ended { exit, oom, lengths }) => {
                self.pod.record_oom(*oom);
                self.ended(*exit, *lengths)
            }
            Some(EndFrame::Failed(why)) => Err(self.start_failure(why)),
            Some(EndFrame::NotStarted) if self.started => {
                let text = format!("the state of `{}` in its pod was removed", self.program);
                Err(Failure::new(FailureKind::NotStarted, text))
            }
            Some(EndFrame::NotStarted) | None => Ok(None),
            Some(EndFrame::OutputLost(why)) => Err(self.output_failure(why.words())),
        }
    }

    /// The exit of a command that has ended, once its output has arrived.
    fn ended(
        &mut self,
        exit: RunnerExit,
        lengths: Option<(u64, u64)>,
    ) -> Result<Option<CommandExit>, Failure> {
        let code = match exit {
            RunnerExit::Code(code) => code,
            RunnerExit::Killed => KILLED,
        };
        if self.out.is_whole() && self.err.is_whole() {
            return Ok(Some(CommandExit { code }));
        }
        let received = (self.out.received(), self.err.received());
        match lengths {
            Some((out, err)) if received.0 > out || received.1 > err => {
                Err(self.output_failure("is not as long as it was"))
            }
            Some(lengths) if lengths == received && exit == RunnerExit::Killed => {
                self.out.finish(|bytes| self.output.write(OutputStream::Stdout, bytes));
                self.err.finish(|bytes| self.output.write(OutputStream::Stderr, bytes));
                Ok(Some(CommandExit { code }))
            }
            Some(lengths) if lengths == received => {
                Err(self.output_failure(LostOutput::NoMark.words()))
            }
            _ => Ok(None),
        }
    }

    fn output_failure(&self, what: &str) -> Failure {
        let text = format!("the output of `{}` {what}", self.program);
        Failure::new(FailureKind::Service, text)
    }

    fn start_failure(&self, why: &str) -> Failure {
        let Self { pod, program, workdir, .. } = self;
        let user = self.user.as_deref().unwrap_or_default();
        let (kind, why) = match why {
            "user" => (FailureKind::Refused, format!("unable to find user {user}")),
            "switch" => (
                FailureKind::Unsupported,
                format!(
                    "the user {user} needs a container that starts as root, and `setpriv` or `su`"
                ),
            ),
            "workdir" => (FailureKind::NotStarted, format!("no directory {workdir}")),
            "program" => (FailureKind::NotStarted, "no such program".to_owned()),
            "fork" => (FailureKind::NotStarted, "no process can be started".to_owned()),
            other => (FailureKind::NotStarted, other.to_owned()),
        };
        let text = format!("cannot run `{program}` in the pod {}: {why}", pod.name);
        Failure::new(kind, text)
    }
}

fn broken(broken: Broken, progress: bool) -> Attempt {
    Attempt::Broken { broken, progress }
}

/// Parses a frame about the end of a command.
fn parse_end(text: &str) -> Option<EndFrame> {
    let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
    match kind {
        "n" => Some(EndFrame::NotStarted),
        "l" => Some(EndFrame::OutputLost(match rest {
            "removed" => LostOutput::Removed,
            "fork" => LostOutput::NoReader,
            _ => LostOutput::ReaderEnded,
        })),
        "f" => Some(EndFrame::Failed(rest.to_owned())),
        "c" | "e" => {
            let mut fields = rest.split(' ');
            let exit = match fields.next()? {
                "k" => RunnerExit::Killed,
                code => RunnerExit::Code(code.parse().ok()?),
            };
            let mut number = || fields.next()?.parse().ok();
            let lengths = if kind == "e" { Some((number()?, number()?)) } else { None };
            Some(EndFrame::Ended { exit, lengths, oom: number()? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_frame_is_parsed() {
        let ended = |exit, lengths| Some(EndFrame::Ended { exit, lengths, oom: 1 });
        assert_eq!(parse_end("e 3 5 6 1"), ended(RunnerExit::Code(3), Some((5, 6))));
        assert_eq!(parse_end("e k 5 6 1"), ended(RunnerExit::Killed, Some((5, 6))));
        assert_eq!(parse_end("c 3 1"), ended(RunnerExit::Code(3), None));
        assert_eq!(parse_end("f user"), Some(EndFrame::Failed("user".to_owned())));
        assert_eq!(parse_end("n"), Some(EndFrame::NotStarted));
        let lost = |why| Some(EndFrame::OutputLost(why));
        assert_eq!(parse_end("l removed"), lost(LostOutput::Removed));
        assert_eq!(parse_end("l fork"), lost(LostOutput::NoReader));
        assert_eq!(parse_end("l ended"), lost(LostOutput::ReaderEnded));
        for other in ["e", "e x 1 2 3", "e 1 2", "c 1", "q", ""] {
            assert_eq!(parse_end(other), None, "{other}");
        }
    }
}
