//! The example that learns, and the lines of the README, with the client and the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check::assert_no_leaks;
use rollout_tests::net::free_port;
use rollout_tests::program::RunningProgram;
use rollout_tests::project::{Project, repository};
use rollout_tests::{python, wait};
use rustix::process::Signal;
use serde_json::Value;

use crate::python_client::project;

/// Longest time of a training on a busy machine with two processors.
const TRAINING: Duration = Duration::from_secs(900);

/// Steps of the training, of 32 samples each.
const STEPS: usize = 8;

/// A server of one user, and what its clients need.
struct LocalServer<'a> {
    project: &'a Project,
    port: u16,
    process: Option<RunningProgram>,
}

impl<'a> LocalServer<'a> {
    fn start(project: &'a Project) -> Self {
        let mut server = Self { project, port: free_port(), process: None };
        server.start_again();
        server
    }

    fn start_again(&mut self) {
        let address = format!("127.0.0.1:{}", self.port);
        let examples = repository().join("examples").display().to_string();
        let words = ["up", "--dir", "up", "--listen", &address, "--allow-path", &examples];
        let process = self.project.rollout(&words);
        wait::until(wait::LONG_DEADLINE, "the server listens", || {
            process.stdout().starts_with("listening on ")
        });
        self.process = Some(process);
    }

    fn end(&mut self, signals: &[Signal]) {
        let Some(mut process) = self.process.take() else { return };
        for signal in signals {
            process.signal(*signal);
        }
        let _ended = process.wait(wait::LONG_DEADLINE);
    }

    /// The variables of its clients.
    fn variables(&self) -> BTreeMap<String, String> {
        let path = self.project.path().join("up/client.env");
        let text = std::fs::read_to_string(path).expect("a file for clients");
        let lines = text.lines().filter_map(|line| line.strip_prefix("export "));
        let pairs = lines.filter_map(|line| line.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// A command of an interpreter that has the client.
    fn python(&self, interpreter: &Path, sources: Option<&Path>) -> Command {
        let mut command = self.project.command_of(interpreter, &[]);
        command.envs(self.variables()).env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(sources) = sources {
            command.env("PYTHONPATH", sources);
        }
        command
    }
}

fn sources() -> PathBuf {
    repository().join("clients/python/src")
}

/// Progress of the training.
fn state(project: &Project) -> Value {
    let text = std::fs::read_to_string(project.path().join("facts/state.json"));
    text.map_or(Value::Null, |text| serde_json::from_str(&text).expect("JSON"))
}

#[test]
fn example_learns_although_server_and_trainer_are_killed() {
    let Some(interpreter) = python::with_client_tools() else { return };
    let project = project();
    let mut server = LocalServer::start(&project);
    let port = free_port().to_string();
    let train = |server: &LocalServer<'_>| {
        let mut command = server.python(&interpreter, Some(&sources()));
        command.arg(repository().join("examples/farm/train.py"));
        command.args(["--steps", &STEPS.to_string(), "--rate", "8", "--port", &port]);
        project.start(command)
    };
    let reaches = |step: usize| {
        wait::until(TRAINING, "a step of the training", || {
            state(&project)["step"].as_u64().is_some_and(|done| done >= step as u64)
        });
    };
    let mut trainer = train(&server);
    reaches(2);
    server.end(&[Signal::KILL]);
    server.start_again();
    reaches(4);
    trainer.signal(Signal::KILL);
    let _killed = trainer.wait(wait::LONG_DEADLINE);
    let trainer = train(&server);
    let _learnt = trainer.wait(TRAINING).expect_code(ExitCode::Success);

    let rewards = state(&project)["rewards"].clone();
    let rewards: Vec<f64> = serde_json::from_value(rewards).expect("rewards");
    assert_eq!(rewards.len(), STEPS, "each step is learnt from once: {rewards:?}");
    let end = (rewards[STEPS - 2] + rewards[STEPS - 1]) / 2.0;
    assert!(rewards[0] < 0.5 && end > 0.65, "the reward does not rise: {rewards:?}");
    let picture = std::fs::read_to_string(project.path().join("facts/curve.svg"));
    assert!(picture.expect("a picture").contains("<polyline"));
    server.end(&[Signal::TERM, Signal::TERM]);
    assert_no_leaks(&project);
}

/// The Python lines of the README with this import.
fn readme_lines() -> String {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("the README");
    let blocks = readme.split("```python\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| rest.split("```").next());
    let found = blocks.find(|block| block.contains("from rollout_client import"));
    found.expect("lines with the client").to_owned()
}

/// Runs the lines of the README, and expects the rewards of all samples.
fn run_readme_lines(server: &LocalServer<'_>, mut command: Command) {
    command.args(["-c", &readme_lines()]).current_dir(repository());
    let ended = server.project.start(command).wait(TRAINING).expect_code(ExitCode::Success);
    assert!(ended.stdout.contains("(1.0, 1.0, 1.0, 1.0)"), "{}", ended.stdout);
}

#[test]
fn readme_lines_work_with_the_client() {
    let Some(interpreter) = python::with_client_tools() else { return };
    let project = project();
    let mut server = LocalServer::start(&project);
    run_readme_lines(&server, server.python(&interpreter, Some(&sources())));
    server.end(&[Signal::TERM, Signal::TERM]);
}

/// A command with the whole environment of this user: cargo and pip have their settings there.
fn inheriting(project: &Project, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(project.path());
    command
}

#[test]
fn readme_lines_work_with_the_wheel() {
    let Some(maturin) = python::with_maturin() else { return };
    let project = project();
    let run = |command: Command| {
        let _done = project.start(command).wait(TRAINING).expect_code(ExitCode::Success);
    };
    let mut build = inheriting(&project, &repository().join(".ci/wheel"));
    build.arg("dist");
    let programs = maturin.parent().expect("a directory").to_owned();
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let inherited: Vec<_> = std::env::split_paths(&inherited).collect();
    let path = std::env::join_paths(std::iter::once(programs).chain(inherited));
    build.env("PATH", path.expect("no colon"));
    let program = Path::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let target = program.parent().and_then(Path::parent).expect("a target directory");
    build.env("CARGO_TARGET_DIR", target).env("ROLLOUT_WHEEL_PROFILE", "dev");
    run(build);
    let made = std::fs::read_dir(project.path().join("dist")).expect("a directory");
    let wheels: Vec<PathBuf> = made.map(|entry| entry.expect("an entry").path()).collect();
    let [wheel] = &wheels[..] else { panic!("one wheel: {wheels:?}") };

    run(project.command_of(Path::new("python3"), &["-m", "venv", "clean"]));
    let programs = project.path().join("clean/bin");
    let mut install = inheriting(&project, &programs.join("python"));
    install.args(["-m", "pip", "install", "-q"]).arg(wheel);
    run(install);
    let mut version = project.command_of(&programs.join("rollout"), &[]);
    version.arg("--version");
    run(version);
    let mut up = project.command_of(&programs.join("rollout"), &[]);
    let port = free_port();
    up.args(["up", "--dir", "up", "--listen", &format!("127.0.0.1:{port}")]);
    let process = project.start(up);
    wait::until(wait::LONG_DEADLINE, "the server listens", || {
        process.stdout().starts_with("listening on ")
    });
    let mut server = LocalServer { project: &project, port, process: Some(process) };
    run_readme_lines(&server, server.python(&programs.join("python"), None));
    server.end(&[Signal::TERM, Signal::TERM]);
}
