//! A Docker engine for one test, which can be stopped, killed and restarted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::ignored::report_ignored;
use crate::process_lock::ProcessLock;
use crate::program::RunningProgram;
use crate::wait;

/// Base image of the tests' tasks.
const BASE: &str = "debian:bookworm-slim";

/// Time an engine may take to answer or to exit on a busy machine.
const START_STOP_DEADLINE: Duration = Duration::from_secs(120);

/// An engine with its data in a directory of the test, and its own bridge: an engine without one
/// would remove the bridge of the host's engine. Dropping it ends the engine and its containers.
#[derive(Debug)]
pub struct TestEngine {
    directory: tempfile::TempDir,
    bridge: NetworkBridge,
    starts: u32,
    run: Option<RunningProgram>,
}

impl TestEngine {
    /// Starts an engine with the image `debian:bookworm-slim`; the test is ignored if
    /// engines are disabled or cannot be started.
    ///
    /// # Panics
    /// When the engine does not start.
    pub fn start() -> Option<Self> {
        crate::docker::DockerEngine::available()?;
        if !rustix::process::geteuid().is_root() || !Path::new("/usr/sbin/dockerd").exists() {
            report_ignored("needs root, who can start a Docker engine, and the program dockerd");
            return None;
        }
        // Not below TMPDIR, which may be long: socket paths are limited to 107 bytes.
        let directory = tempfile::Builder::new().prefix("engine-").tempdir_in("/tmp");
        let directory = directory.expect("a directory");
        let mut engine = Self { directory, bridge: NetworkBridge::new()?, starts: 0, run: None };
        engine.ensure_started();
        engine.load_base();
        Some(engine)
    }

    /// Value for `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.directory.path().join("docker.sock").display())
    }

    /// Starts it, unless it runs, and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn ensure_started(&mut self) {
        if self.run.is_some() {
            return;
        }
        let at = |name: &str| self.directory.path().join(name);
        // A killed engine leaves its pid file.
        let _pid_file = fs::remove_file(at("docker.pid"));
        let mut command = Command::new("/usr/sbin/dockerd");
        command.arg("--data-root").arg(at("data")).arg("--exec-root").arg(at("exec"));
        command.arg("--pidfile").arg(at("docker.pid")).arg("-H").arg(self.host());
        command.arg("--bridge").arg(&self.bridge.name);
        command.args(["--iptables=false", "--ip-masq=false"]);
        // A containerd that does not answer in time leaves its stacks there.
        command.env("TMPDIR", self.directory.path());
        // Less garbage collection: the engine starts itself again for each archive call.
        command.env("GOGC", "400");
        self.starts += 1;
        let mut run = RunningProgram::start(command, &at(&format!("engine-{}", self.starts)));
        let came = wait::holds_within(START_STOP_DEADLINE, || run.has_ended() || self.answers());
        assert!(came && !run.has_ended(), "the engine does not start:\n{}", run.stderr());
        self.run = Some(run);
    }

    /// Sends SIGTERM and waits for its exit; it ends its containers.
    pub fn terminate(&mut self) {
        self.stop_with(Signal::TERM);
    }

    /// kill -9; its containers keep running until it is started again.
    pub fn kill(&mut self) {
        self.stop_with(Signal::KILL);
    }

    /// SIGSTOP.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Names and states of all its containers.
    pub fn containers(&self) -> Vec<String> {
        lines(&self.docker(&["ps", "-a", "--format", "{{.Names}} {{.Status}}"]))
    }

    /// Objects in it that a run may have left: containers, networks and volumes.
    pub fn leaked_objects(&self) -> Vec<String> {
        let networks = self.docker(&["network", "ls", "-q", "--filter", "type=custom"]);
        let volumes = self.docker(&["volume", "ls", "-q"]);
        [self.containers(), lines(&networks), lines(&volumes)].concat()
    }

    /// Runs `docker` against it.
    ///
    /// # Panics
    /// When the command fails.
    #[track_caller]
    pub fn docker(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("docker runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "docker {arguments:?}: {text}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.arg("-H").arg(self.host()).args(arguments);
        command
    }

    fn answers(&self) -> bool {
        let asked = self.command(&["version", "--format", "{{.Server.Version}}"]).output();
        asked.is_ok_and(|output| output.status.success())
    }

    fn load_base(&self) {
        let archive: PathBuf = self.directory.path().join("base.tar");
        let saved = Command::new("docker").args(["save", "-o"]).arg(&archive).arg(BASE).output();
        let saved = saved.expect("docker runs");
        assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
        self.docker(&["load", "-i", &archive.to_string_lossy()]);
    }

    fn stop_with(&mut self, signal: Signal) {
        if let Some(mut run) = self.run.take() {
            run.signal(Signal::CONT);
            run.signal(signal);
            let _ended = run.wait(START_STOP_DEADLINE);
        }
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(run) = &mut self.run {
            run.signal(signal);
        }
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        if self.run.is_some() && !std::thread::panicking() {
            for name in lines(&self.docker(&["ps", "-aq"])) {
                // The engine ends with the test.
                let _gone = self.command(&["rm", "-f", &name]).output();
            }
        }
        self.terminate();
        let below = self.directory.path().to_string_lossy().into_owned();
        end_supervisors(&below);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if mount.starts_with(&below) {
                let _gone = Command::new("umount").args(["-l", mount]).status();
            }
        }
    }
}

/// Ends the container supervisors that an engine in `directory` left. An engine killed while it
/// started or removed a container no longer knows the supervisor, which then never exits.
fn end_supervisors(directory: &str) {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments);
        let program = arguments.split('\0').next().and_then(|path| path.rsplit('/').next());
        let is_supervisor = program.is_some_and(|name| name.starts_with("containerd-shim"));
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        if is_supervisor
            && arguments.contains(directory)
            && let Some(pid) = pid.and_then(Pid::from_raw)
        {
            // It may have ended by now.
            let _ended = kill_process(pid, Signal::KILL);
        }
    }
}

/// Networks of engines that may run at the same time on this machine.
const NETWORKS: u32 = 256;

/// A network bridge, removed when dropped.
#[derive(Debug)]
struct NetworkBridge {
    name: String,
    _lock: ProcessLock,
}

impl NetworkBridge {
    /// Creates a bridge; without the program `ip`, the test is ignored.
    fn new() -> Option<Self> {
        if Command::new("ip").arg("-V").output().is_err() {
            report_ignored("needs the program ip, to start a Docker engine");
            return None;
        }
        let (number, lock) = (0..NETWORKS)
            .find_map(|number| {
                Some((number, ProcessLock::try_acquire(&format!("engine-{number}"))?))
            })
            .expect("a free network");
        // Names of network interfaces have at most 15 bytes.
        let name = format!("rollout-{number}");
        let address = format!("172.28.{}.{}/30", number / 64, number % 64 * 4 + 1);
        let bridge = Self { name, _lock: lock };
        // Without the lock, it is of a process that was killed.
        bridge.delete();
        ip(&["link", "add", "name", &bridge.name, "type", "bridge"]);
        ip(&["address", "add", &address, "dev", &bridge.name]);
        ip(&["link", "set", &bridge.name, "up"]);
        Some(bridge)
    }

    fn delete(&self) {
        let _gone = Command::new("ip").args(["link", "delete", &self.name]).output();
    }
}

impl Drop for NetworkBridge {
    fn drop(&mut self) {
        self.delete();
    }
}

#[track_caller]
fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments:?}: {text}");
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}
