//! An image registry for one test, which can be killed and restarted.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::ignored::report_ignored;
use crate::net::free_port;
use crate::program::RunningProgram;
use crate::wait;

/// Time a registry may take to answer or to exit.
const START_STOP_DEADLINE: Duration = Duration::from_secs(60);

/// A registry on a port of 127.0.0.1. Dropping it kills it.
#[derive(Debug)]
pub struct TestRegistry {
    directory: PathBuf,
    port: u16,
    starts: u32,
    run: Option<RunningProgram>,
}

impl TestRegistry {
    /// Starts an empty registry with its files in `directory`; the test is ignored if
    /// the program is not installed.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(directory: &Path) -> Option<Self> {
        if Command::new("docker-registry").arg("--version").output().is_err() {
            report_ignored("needs the program docker-registry");
            return None;
        }
        fs::create_dir_all(directory).expect("a directory");
        let directory = directory.to_owned();
        let mut registry = Self { directory, port: free_port(), starts: 0, run: None };
        registry.ensure_started();
        Some(registry)
    }

    /// Prefix of its image names.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it, unless it runs, and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn ensure_started(&mut self) {
        if self.run.is_some() {
            return;
        }
        let configuration = self.directory.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {:?}}}\n\
             http:\n  addr: 127.0.0.1:{}\n",
            self.directory.join("images"),
            self.port
        );
        fs::write(&configuration, text).expect("a file");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&configuration);
        self.starts += 1;
        let mut run = RunningProgram::start(
            command,
            &self.directory.join(format!("registry-{}", self.starts)),
        );
        let port = self.port;
        let answers = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        let came = wait::holds_within(START_STOP_DEADLINE, || run.has_ended() || answers());
        assert!(came && !run.has_ended(), "the registry does not start:\n{}", run.stderr());
        self.run = Some(run);
    }

    /// kill -9; its images are kept.
    pub fn kill(&mut self) {
        if let Some(mut run) = self.run.take() {
            run.signal(Signal::KILL);
            let _killed = run.wait(START_STOP_DEADLINE);
        }
    }
}
