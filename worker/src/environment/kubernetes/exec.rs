//! Execution of commands in a pod.
//!
//! A command is started at most once and runs detached from the call that started it. A call whose
//! connection breaks is followed by one that reads the output from where it stopped. The last frame
//! says how much output there is, so output that a server dropped is noticed and read again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::frames::new_mark;
use super::pod::{Attempts, Broken, KubePod};
use super::scripts::{self, Launch};
use super::stream::{CutStream, ExecStream, StreamPart, StreamState};
use crate::environment::{
    CommandExit, ExecCommand, Failure, FailureKind, OutputSink, OutputStream,
};

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
    /// Bytes of both outputs that were given to `output`.
    out: u64,
    err: u64,
}

/// How an attempt ended.
enum Attempt {
    Ended(CommandExit),
    Broken { broken: Broken, progress: bool },
}

/// The last frame of a script.
#[derive(Debug, PartialEq, Eq)]
enum LastFrame {
    Ended {
        code: i32,
        out: u64,
        err: u64,
        oom: u64,
    },
    /// It never started, for this reason.
    Failed(String),
    /// No attempt has started it.
    NotStarted,
    /// Output that has not arrived was removed.
    OutputLost,
}

impl KubePod {
    /// Runs `command` to its end.
    pub(super) async fn exec(
        &self,
        command: ExecCommand,
        workdir: &str,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        if self.is_stopped.load(Ordering::Acquire) {
            let text = format!("cannot run a command: the pod {} was stopped", self.name);
            return Err(Failure::new(FailureKind::NotStarted, text));
        }
        let id = format!("{:032x}", rand::random::<u128>());
        let mut running = RunningCommand {
            pod: self,
            script: scripts::runner(&id, &command, &self.env, workdir),
            id,
            output: output.as_ref(),
            program: command.argv.first().cloned().unwrap_or_default(),
            workdir: command.workdir.unwrap_or_else(|| workdir.to_owned()),
            user: command.user,
            started: false,
            out: 0,
            err: 0,
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
        let (before, pod) = ((self.out, self.err, self.started), self.pod);
        let mut launching = if self.started { None } else { Some(pod.launching.read().await) };
        let script_bytes = if self.started { 0 } else { self.script.len() };
        let launch = Launch { id: &self.id, script_bytes, out: self.out, err: self.err };
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
                Some(text) => last = parse_last(text).or(last),
            }
            // The next attempt sends the script again.
            if !self.started && last == Some(LastFrame::NotStarted) {
                break CutStream("the command was not started".to_owned());
            }
            match read {
                Ok(StreamState::Open) => {}
                Ok(StreamState::Ended) => break stream.end_reason(b"").await,
                Err(cut) => break cut,
            }
        };
        drop(launching);
        let progress = alive || (self.out, self.err, self.started) != before;
        Ok(broken(Broken::Cut(cut), progress))
    }

    fn write(&mut self, stream: OutputStream, bytes: &[u8]) {
        match stream {
            OutputStream::Stdout => self.out += bytes.len() as u64,
            OutputStream::Stderr => self.err += bytes.len() as u64,
        }
        self.output.write(stream, bytes);
    }

    /// The exit, if the last frame and all output before it have arrived.
    fn finished(&mut self, last: Option<&LastFrame>) -> Result<Option<CommandExit>, Failure> {
        match last {
            Some(LastFrame::Ended { code, out, err, oom }) => {
                self.pod.record_oom(*oom);
                if self.out > *out || self.err > *err {
                    let text = format!("the output of `{}` is not as long as it was", self.program);
                    return Err(Failure::new(FailureKind::Service, text));
                }
                let whole = (self.out, self.err) == (*out, *err);
                Ok(whole.then_some(CommandExit { code: *code }))
            }
            Some(LastFrame::Failed(why)) => Err(self.start_failure(why)),
            Some(LastFrame::NotStarted) if self.started => {
                let text = format!("the state of `{}` in its pod was removed", self.program);
                Err(Failure::new(FailureKind::NotStarted, text))
            }
            Some(LastFrame::NotStarted) | None => Ok(None),
            Some(LastFrame::OutputLost) => {
                let text =
                    format!("the output of `{}` was removed before it arrived", self.program);
                Err(Failure::new(FailureKind::Service, text))
            }
        }
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
            other => (FailureKind::NotStarted, other.to_owned()),
        };
        let text = format!("cannot run `{program}` in the pod {}: {why}", pod.name);
        Failure::new(kind, text)
    }
}

fn broken(broken: Broken, progress: bool) -> Attempt {
    Attempt::Broken { broken, progress }
}

/// Parses a frame that is the last one of a script.
fn parse_last(text: &str) -> Option<LastFrame> {
    let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
    match kind {
        "n" => Some(LastFrame::NotStarted),
        "l" => Some(LastFrame::OutputLost),
        "f" => Some(LastFrame::Failed(rest.to_owned())),
        "e" => {
            let mut fields = rest.split(' ');
            let code = fields.next()?.parse().ok()?;
            let mut number = || fields.next()?.parse().ok();
            Some(LastFrame::Ended { code, out: number()?, err: number()?, oom: number()? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_frame_is_parsed() {
        let ended = LastFrame::Ended { code: 137, out: 5, err: 6, oom: 1 };
        assert_eq!(parse_last("e 137 5 6 1"), Some(ended));
        assert_eq!(parse_last("f user"), Some(LastFrame::Failed("user".to_owned())));
        assert_eq!(parse_last("n"), Some(LastFrame::NotStarted));
        assert_eq!(parse_last("l"), Some(LastFrame::OutputLost));
        for other in ["e", "e x 1 2 3", "e 1 2", "q", ""] {
            assert_eq!(parse_last(other), None, "{other}");
        }
    }
}
