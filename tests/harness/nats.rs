//! A nats-server for one test, which can be killed, restarted and wiped.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::ignored::or_ignored;
use crate::net::free_port;
use crate::program::RunningProgram;
use crate::wait;

/// Variable with the nats-server programs, separated by colons. Tests that need only one use the
/// first; `no` skips the tests.
const PROGRAM: &str = "ROLLOUT_TEST_NATS";

/// Time a server may take to answer on a busy machine.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Lines of a log that a failed test shows.
const LOG_END_LINES: usize = 60;

/// A server on a port of 127.0.0.1, with its store in a directory of the test. Dropping it kills
/// it.
#[derive(Debug)]
pub struct NatsServer {
    program: PathBuf,
    directory: PathBuf,
    /// Additional configuration lines.
    settings: String,
    port: u16,
    starts: u32,
    run: Option<RunningProgram>,
}

/// Servers to test with; without one, the test is ignored.
pub fn programs() -> Vec<PathBuf> {
    or_ignored(find_programs()).unwrap_or_default()
}

/// Servers to test with, at least one.
///
/// # Errors
/// The reason, without a nats-server.
pub fn find_programs() -> Result<Vec<PathBuf>, String> {
    let named = std::env::var(PROGRAM).ok().filter(|programs| programs != "no");
    named
        .map(|programs| std::env::split_paths(&programs).collect())
        .ok_or_else(|| format!("needs a nats-server, named by {PROGRAM}"))
}

/// The first server to test with whose routes lose no subscription. Before 2.12.10 and 2.14.2, a server
/// that connects to others at a bad moment never learns what they subscribed to: it answers no leader
/// and gets no copy, until it is started again.
///
/// # Errors
/// The reason, without one.
pub fn find_cluster_program() -> Result<PathBuf, String> {
    let found = find_programs()?.into_iter().find(|program| {
        let version = version(program);
        version >= [2, 14, 2] || ([2, 12, 10]..[2, 13, 0]).contains(&version)
    });
    found.ok_or_else(|| format!("needs a nats-server of 2.14.2 or newer, named by {PROGRAM}"))
}

/// Version of a server: major, minor, patch.
fn version(program: &Path) -> [u32; 3] {
    let ended = Command::new(program).arg("--version").output().expect("nats-server runs");
    let text = String::from_utf8_lossy(&ended.stdout);
    let numbers = text.trim().rsplit('v').next().unwrap_or_default();
    let mut numbers = numbers.split(['.', '-']).map(|number| number.parse().unwrap_or_default());
    std::array::from_fn(|_| numbers.next().unwrap_or_default())
}

impl NatsServer {
    /// Starts a server with its files in `directory`; without a nats-server, the test is ignored.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn start(directory: &Path) -> Option<Self> {
        let program = programs().into_iter().next()?;
        Some(Self::start_with(&program, directory, ""))
    }

    /// Starts this server with additional configuration lines.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_with(program: &Path, directory: &Path, settings: &str) -> Self {
        fs::create_dir_all(directory).expect("a directory");
        let directory = directory.to_owned();
        let (program, settings) = (program.to_owned(), settings.to_owned());
        let port = free_port();
        let mut server = Self { program, directory, settings, port, starts: 0, run: None };
        server.ensure_started();
        server
    }

    /// Its port, unchanged across restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its name in a cluster.
    pub fn name(&self) -> String {
        format!("tests-{}", self.port)
    }

    /// Process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.run.as_ref().map(RunningProgram::pid)
    }

    /// URL for clients.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Starts it, unless it runs, and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn ensure_started(&mut self) {
        if self.run.is_some() {
            return;
        }
        let configuration = self.directory.join("server.conf");
        let store = self.directory.join("store");
        let text = format!(
            "listen: \"127.0.0.1:{}\"\nserver_name: \"{}\"\njetstream {{ store_dir: {:?} }}\n{}",
            self.port,
            self.name(),
            store,
            self.settings
        );
        fs::write(&configuration, text).expect("a file");
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(&configuration);
        self.starts += 1;
        let mut run =
            RunningProgram::start(command, &self.directory.join(format!("server-{}", self.starts)));
        let answers = || run.has_ended() || self.answers();
        let came = wait::holds_within(ANSWER_DEADLINE, answers) && !run.has_ended();
        assert!(came, "the nats-server does not start:\n{}", run.stderr());
        self.run = Some(run);
    }

    /// The last lines of its log, to explain a failure; empty while it does not run.
    pub fn log_end(&self) -> String {
        let log = self.run.as_ref().map(RunningProgram::stderr).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_END_LINES)..].join("\n")
    }

    /// Whether it answers.
    pub fn answers(&self) -> bool {
        let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) else { return false };
        let patience = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let mut line = String::new();
        patience.is_ok()
            && BufReader::new(stream).read_line(&mut line).is_ok()
            && line.starts_with("INFO ")
    }

    /// kill -9; its store stays.
    pub fn kill(&mut self) {
        if let Some(mut run) = self.run.take() {
            run.signal(Signal::KILL);
            let _killed = run.wait(ANSWER_DEADLINE);
        }
    }

    /// Waits until it has ended by itself.
    pub fn wait_for_end(&mut self) {
        if let Some(run) = self.run.take() {
            let _ended = run.wait(ANSWER_DEADLINE);
        }
    }

    /// Sends a signal: SIGSTOP pauses it, SIGCONT resumes it, SIGTERM ends it.
    pub fn signal(&mut self, signal: Signal) {
        if let Some(run) = &mut self.run {
            run.signal(signal);
        }
    }

    /// kill -9, and removes its store.
    ///
    /// # Panics
    /// When the store cannot be removed.
    pub fn wipe(&mut self) {
        self.kill();
        fs::remove_dir_all(self.directory.join("store")).expect("its store");
    }
}
