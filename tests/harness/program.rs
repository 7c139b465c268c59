//! One run of the program under test.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

/// Time for a dropped program to end by itself.
const DROP_DEADLINE: Duration = Duration::from_secs(20);

/// Time between two interrupts: two at once would be one.
const INTERRUPT_PAUSE: Duration = Duration::from_millis(100);

/// A started program with its output captured to files. Dropping it interrupts it, and kills
/// it if that does not help.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    started: Instant,
}

/// A program that has ended.
#[derive(Debug)]
pub struct ProgramExit {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Its duration.
    pub took: Duration,
}

impl RunningProgram {
    /// Starts `command`, writing its output to `<prefix>.out` and `<prefix>.err`.
    pub(crate) fn start(mut command: Command, prefix: &std::path::Path) -> Self {
        let (stdout, stderr) = (prefix.with_extension("out"), prefix.with_extension("err"));
        let create = |path| File::create(path).expect("a file for output");
        command.stdin(Stdio::null()).stdout(create(&stdout)).stderr(create(&stderr));
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, stdout, stderr, started: Instant::now() }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_some()
    }

    /// Sends a signal; does nothing if the program has ended.
    pub fn signal(&mut self, signal: Signal) {
        // The program is not reaped yet, so the id is still its own.
        if !self.has_ended() {
            let pid = Pid::from_child(&self.child);
            kill_process(pid, signal).expect("a signal to our child");
        }
    }

    /// Interrupts it until it ends, as a user does who does not wait for running work: it removes its
    /// environments and keeps its results. Returns whether it ended within `deadline`.
    pub fn interrupt(&mut self, deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        while !self.has_ended() && Instant::now() < until {
            self.signal(Signal::TERM);
            wait::holds_within(INTERRUPT_PAUSE, || self.has_ended());
        }
        self.has_ended()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it has not ended within `deadline`, with its output and its child processes.
    #[track_caller]
    pub fn wait(mut self, deadline: Duration) -> ProgramExit {
        if !wait::holds_within(deadline, || self.has_ended()) {
            let below = crate::processes::descendants(self.pid());
            panic!(
                "still running after {deadline:?}\nprocesses: {below:#?}\nstdout:\n{}\nstderr:\n{}",
                self.stdout(),
                self.stderr()
            );
        }
        ProgramExit {
            status: self.child.wait().expect("our child"),
            stdout: self.stdout(),
            stderr: self.stderr(),
            took: self.started.elapsed(),
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if !self.interrupt(DROP_DEADLINE) {
            self.signal(Signal::KILL);
        }
        // This fails only if the process cannot be waited for, and then nothing can be done.
        drop(self.child.wait());
    }
}

impl ProgramExit {
    /// Asserts the exit code.
    ///
    /// # Panics
    /// With the program's output.
    #[track_caller]
    #[must_use]
    pub fn expect_code(self, code: ExitCode) -> Self {
        assert_eq!(
            self.status.code(),
            Some(i32::from(code.code())),
            "expected {code:?}, got {}\nstdout:\n{}\nstderr:\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The command lines of the program in its hints.
    pub fn hinted_commands(&self) -> Vec<String> {
        let hints = self.stderr.lines().filter(|line| line.starts_with("hint: "));
        let quoted = hints.flat_map(|hint| hint.split('`').skip(1).step_by(2));
        quoted.filter(|text| text.contains("rollout ")).map(str::to_owned).collect()
    }

    /// The only command line of the program in its hints.
    ///
    /// # Panics
    /// When there is none, or several.
    #[track_caller]
    pub fn hinted_command(&self) -> String {
        match self.hinted_commands().as_slice() {
            [command] => command.clone(),
            others => panic!("expected one command, found {others:?} in:\n{}", self.stderr),
        }
    }

    /// Asserts that standard error contains `text`.
    ///
    /// # Panics
    /// With the program's output.
    #[track_caller]
    #[must_use]
    pub fn expect_stderr(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no {text:?} in standard error:\n{}", self.stderr);
        self
    }
}

fn read(path: &std::path::Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
