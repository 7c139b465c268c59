//! The S3 server of [`crate::s3_server`] in a process of its own, which can be killed and restarted.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::net::free_port;
use crate::program::RunningProgram;
use crate::s3_server::{self, S3_BUCKET, S3Key};
use crate::wait;

/// First argument of a program that is to be a server.
const COMMAND: &str = "__s3-server";

/// Name under which a program takes the place of Garage.
const GARAGE: &str = "garage";

/// Port of Garage's S3 service.
const GARAGE_PORT: u16 = 3900;

/// Time a server may take to answer on a busy machine.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// A server on a port of 127.0.0.1, with its objects in a directory of the test. Dropping it kills
/// it.
#[derive(Debug)]
pub struct S3Process {
    program: PathBuf,
    directory: PathBuf,
    port: u16,
    starts: u32,
    run: Option<RunningProgram>,
}

impl S3Process {
    /// Starts `program`, which calls [`serve_if_requested`], with an empty bucket in `directory`.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(program: &Path, directory: &Path) -> Self {
        std::fs::create_dir_all(directory.join("root").join(S3_BUCKET)).expect("a directory");
        let (program, directory) = (program.to_owned(), directory.to_owned());
        let mut server = Self { program, directory, port: free_port(), starts: 0, run: None };
        server.ensure_started();
        server
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of a store below `prefix`.
    pub fn store_url(&self, prefix: &str) -> String {
        s3_server::store_url(self.port, prefix)
    }

    /// The directory of its bucket; an object's path in it is its key.
    pub fn bucket(&self) -> PathBuf {
        self.directory.join("root").join(S3_BUCKET)
    }

    /// Process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.run.as_ref().map(RunningProgram::pid)
    }

    /// Starts it, unless it runs, and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn ensure_started(&mut self) {
        if self.run.is_some() {
            return;
        }
        let mut command = Command::new(&self.program);
        command.arg(COMMAND).arg(self.port.to_string()).arg(self.directory.join("root"));
        self.starts += 1;
        let output = self.directory.join(format!("server-{}", self.starts));
        let mut run = RunningProgram::start(command, &output);
        let answers = || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok();
        wait::holds_within(ANSWER_DEADLINE, || run.has_ended() || answers());
        assert!(!run.has_ended() && answers(), "the server does not start:\n{}", run.stderr());
        self.run = Some(run);
    }

    /// kill -9; its objects stay.
    pub fn kill(&mut self) {
        if let Some(mut run) = self.run.take() {
            run.signal(Signal::KILL);
            let _killed = run.wait(ANSWER_DEADLINE);
        }
    }

    /// Pauses it (SIGSTOP) or resumes it (SIGCONT).
    pub fn signal(&mut self, signal: Signal) {
        if let Some(run) = &mut self.run {
            run.signal(signal);
        }
    }
}

/// Runs the server if this process is to be one: by its first argument, or in the place of Garage in
/// `docker-compose.yml`. Programs call it first.
///
/// # Panics
/// When an argument is wrong, or the port is in use.
pub fn serve_if_requested() -> bool {
    let mut arguments = std::env::args();
    let program = arguments.next().map(PathBuf::from).unwrap_or_default();
    if program.file_name().is_some_and(|name| name == GARAGE) {
        serve_as_garage();
        return true;
    }
    if arguments.next().as_deref() != Some(COMMAND) {
        return false;
    }
    let port: u16 = arguments.next().and_then(|port| port.parse().ok()).expect("a port");
    let root = PathBuf::from(arguments.next().expect("a directory"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a free port");
    s3_server::run(&root, listener, &S3Key::default(), std::future::pending());
    true
}

/// Serves as `garage server --single-node --default-bucket` does: with the bucket and the key in its
/// variables, on all addresses.
fn serve_as_garage() {
    let variable = |name: &str| {
        std::env::var(format!("GARAGE_DEFAULT_{name}")).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let key = S3Key { id: variable("ACCESS_KEY"), secret: variable("SECRET_KEY") };
    let root = PathBuf::from("/var/lib/garage");
    std::fs::create_dir_all(root.join(variable("BUCKET"))).expect("a bucket");
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, GARAGE_PORT)).expect("a free port");
    s3_server::run(&root, listener, &key, std::future::pending());
}
