//! The blocks of the README: all of them run in order, in one clone, whatever their mark. Services stay
//! up for the blocks after them. An unknown block fails the test, and so does one that is not run, unless
//! this machine is said to have no such service.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::ignored::or_left_out_part;
use rollout_tests::nats::{self, NatsServer};
use rollout_tests::program::RunningProgram;
use rollout_tests::project::{Project, repository};
use rollout_tests::{net, python, wait};
use rustix::process::Signal;

use crate::e2e::{DEADLINE, assert_nothing_left, project};

/// The command that installs the program, for which a stand-in puts the program under test in place.
const INSTALL: &str = "install --path coordinator --locked";

/// The command that installs the Python client, for which its sources stand in.
const INSTALL_CLIENT: &str = "install ./clients/python";

/// The host that stands for a NATS server in the README.
const SERVER: &str = "nats://queue:4222";

/// The directory that stands for a shared blob store in the README.
const STORE: &str = "/shared/blobs";

/// File with the variables that a block leaves for the next one: the reader has one shell.
const VARIABLES: &str = "variables";

/// A fenced block.
#[derive(Debug)]
struct Block {
    mark: String,
    text: String,
}

/// A part of this machine that a block needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Docker,
    Nats,
    Polars,
    PythonClient,
}

impl Need {
    /// Whether it is here, and the variable that says where there is none.
    fn find(self) -> (Result<(), String>, &'static str) {
        match self {
            Self::Docker => (DockerEngine::connect().map(drop), "ROLLOUT_TEST_DOCKER"),
            Self::Nats => (nats::find_programs().map(drop), "ROLLOUT_TEST_NATS"),
            Self::Polars => (python::find_polars().map(drop), "ROLLOUT_TEST_PYTHON"),
            Self::PythonClient => {
                (python::find_client_tools().map(drop), "ROLLOUT_TEST_PYTHON_CLIENT")
            }
        }
    }
}

fn readme_blocks() -> Vec<Block> {
    let readme = fs::read_to_string(repository().join("README.md")).expect("the README");
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in readme.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(mark), None) => {
                open = Some(Block { mark: mark.to_owned(), text: String::new() });
            }
            (None, Some(mut block)) => {
                block.text.push_str(&format!("{line}\n"));
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

impl Block {
    /// Its commands, without comments and with continued lines joined.
    fn commands(&self) -> Vec<String> {
        let text = self.text.replace("\\\n", " ");
        let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn needs(&self) -> Vec<Need> {
        let text = &self.text;
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let needs = [
            (Need::Docker, has(&["examples/docker", "examples/harbor", "examples/agents", "nats"])),
            (Need::Nats, has(&["nats"])),
            (Need::Polars, has(&["polars"])),
            (Need::PythonClient, has(&["rollout_client"])),
        ];
        needs.into_iter().filter_map(|(need, is_there)| is_there.then_some(need)).collect()
    }

    /// Whether this machine has everything that it needs; what it is said to lack is reported.
    ///
    /// # Panics
    /// When something else is missing.
    #[track_caller]
    fn can_run(&self) -> bool {
        let part = self.text.lines().next().unwrap_or_default();
        self.needs().into_iter().all(|need| {
            let (found, variable) = need.find();
            or_left_out_part(found, part, variable).is_some()
        })
    }
}

/// The clone in which a reader runs the blocks.
struct Reader<'a> {
    project: &'a Project,
    server: Option<NatsServer>,
    services: Vec<RunningProgram>,
}

impl<'a> Reader<'a> {
    fn new(project: &'a Project) -> Self {
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(repository().join("examples")).arg(project.path());
        assert!(copy.status().expect("cp runs").success());
        let program = project.command(&[]).get_program().to_owned();
        let install = format!(
            "[ \"$*\" = '{INSTALL}' ] || {{ echo \"unexpected: cargo $*\" >&2; exit 1; }}\n\
             mkdir -p \"$HOME/.cargo/bin\" && ln -s '{}' \"$HOME/.cargo/bin/rollout\"\n",
            Path::new(&program).display()
        );
        let client = format!("[ \"$*\" = '{INSTALL_CLIENT}' ] || exit 1\n");
        for (name, script) in [("cargo", install), ("pip", client)] {
            let path = project.path().join("home/stand-ins").join(name);
            fs::create_dir_all(path.parent().expect("below")).expect("a directory");
            fs::write(&path, format!("#!/bin/sh\n{script}")).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
        }
        Self { project, server: None, services: Vec::new() }
    }

    fn run(&mut self, block: &Block) {
        match block.mark.as_str() {
            "console" | "shell" | "sh" | "bash" => self.run_shell(block),
            "python" => self.run_python(block),
            "yaml" => assert_is_example(block),
            other => panic!("a block with the mark `{other}` is executed by no test"),
        }
    }

    /// Runs the commands one by one, as a reader types them.
    fn run_shell(&mut self, block: &Block) {
        let commands = block.commands();
        assert!(!commands.is_empty(), "a block without commands: {block:?}");
        for command in commands {
            let command = self.with_stand_ins(&command);
            match command.strip_suffix('&') {
                Some(service) => self.start(service.trim()),
                None => {
                    let script = format!("{command}\nexport -p >\"$HOME/{VARIABLES}\"");
                    let started = self.project.start(self.shell(&script));
                    let _ended = started.wait(DEADLINE).expect_code(ExitCode::Success);
                }
            }
        }
    }

    /// Starts a service, and waits until a server says that it listens.
    fn start(&mut self, command: &str) {
        let service = self.project.start(self.shell(&format!("exec {command}")));
        if command.contains(" serve ") {
            wait::until(wait::LONG_DEADLINE, "the server listens", || {
                let printed = service.stdout();
                printed.starts_with("listening on ") && printed.lines().count() > 1
            });
        }
        self.services.push(service);
    }

    fn run_python(&mut self, block: &Block) {
        let interpreter = match block.needs()[..] {
            [Need::Polars] => python::find_polars(),
            [Need::PythonClient] => python::find_client_tools(),
            ref other => panic!("a block for an unknown interpreter: {other:?}"),
        };
        let interpreter = interpreter.expect("it was found before");
        let script = self.project.path().join("home/block.py");
        fs::write(&script, &block.text).expect("written");
        let sources = repository().join("clients/python/src");
        let line = format!(
            "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='{}' '{}' '{}'",
            sources.display(),
            interpreter.display(),
            script.display()
        );
        let ended = self.project.start(self.shell(&line)).wait(DEADLINE);
        let ended = ended.expect_code(ExitCode::Success);
        assert!(!ended.stdout.is_empty(), "{block:?}");
    }

    /// A command with the addresses of this test in place of those that the README invents.
    fn with_stand_ins(&mut self, command: &str) -> String {
        let mut command = command.to_owned();
        if command.contains(SERVER) {
            command = command.replace(SERVER, &self.server_url());
            command = command.replace(STORE, &self.project.path().join("shared").to_string_lossy());
        }
        if let Some(rest) = command.strip_prefix("rollout serve ") {
            let port = net::free_port();
            command = format!("rollout serve --listen 127.0.0.1:{port} {rest}");
        }
        command
    }

    fn server_url(&mut self) -> String {
        let directory = self.project.path().join("home/queue");
        let server = self.server.get_or_insert_with(|| {
            let programs = nats::find_programs().expect("it was found before");
            NatsServer::start_with(&programs[0], &directory, "")
        });
        server.url()
    }

    /// A shell with the variables that the last one left.
    fn shell(&self, script: &str) -> Command {
        let script =
            format!("set -eu\n[ ! -f \"$HOME/{VARIABLES}\" ] || . \"$HOME/{VARIABLES}\"\n{script}");
        let mut command = self.project.command_of(Path::new("bash"), &["-c", &script]);
        let home = self.project.path().join("home");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = [home.join(".cargo/bin"), home.join("stand-ins")];
        let all = own.into_iter().chain(std::env::split_paths(&path));
        // A program of this host must not stand in for one that the README has not installed.
        let all = all.filter(|dir| dir.starts_with(&home) || !dir.join("rollout").exists());
        command.env("PATH", std::env::join_paths(all).expect("paths"));
        if let Ok(servers) = nats::find_programs() {
            command.env("NATS_SERVER", &servers[0]).env("NATS_PORT", net::free_port().to_string());
        }
        command
    }

    fn end(self) {
        for mut service in self.services {
            service.signal(Signal::TERM);
            let _ended = service.wait(DEADLINE);
        }
    }
}

/// Fails unless a job in the README is that of the example, apart from the scripts of agents.
#[track_caller]
fn assert_is_example(block: &Block) {
    let read = |text: &str| -> serde_json::Value {
        let mut job: serde_json::Value = serde_saphyr::from_str(text).expect("a job");
        for agent in job["agents"].as_array_mut().expect("agents") {
            let name = agent["name"].take();
            *agent = name;
        }
        job
    };
    let example = repository().join("examples/docker/job.yaml");
    let example = fs::read_to_string(example).expect("the example");
    assert_eq!(read(&block.text), read(&example));
}

#[test]
fn readme_blocks_do_what_they_say_in_order() {
    let project = project();
    let mut reader = Reader::new(&project);
    let project = commit(&project);
    let blocks = readme_blocks();
    assert!(blocks.len() >= 12, "{blocks:#?}");
    let mut ran = Vec::new();
    for block in &blocks {
        if block.can_run() {
            reader.run(block);
            ran.push(block.text.as_str());
        }
    }
    for (block, job, trials) in [
        ("examples/quickstart/job.yaml  ", "quickstart", 4),
        ("rollout run examples/docker/job.yaml\n", "docker", 4),
        ("examples/nats/run", "nats", 4),
        ("--name hosts", "hosts", 4),
    ] {
        assert!(blocks.iter().any(|other| other.text.contains(block)), "no block has {block:?}");
        if ran.iter().any(|text| text.contains(block)) {
            assert_eq!(project.results(job).count("completed_trials"), trials, "{job}");
        }
    }
    let agents = "examples/agents/run";
    assert!(blocks.iter().any(|other| other.text.contains(agents)), "no block has {agents:?}");
    if ran.iter().any(|text| text.contains(agents)) {
        assert_model_was_called(project);
    }
    let awk = fs::read_to_string(project.path().join("examples/tree/program/integrate.awk"));
    let original = fs::read_to_string(repository().join("examples/tree/program/integrate.awk"));
    assert_ne!(awk.expect("there"), original.expect("there"), "the best program was applied");
    reader.end();
    assert_nothing_left(project);
}

/// Fails unless the agent `shell` solved its tasks with the stand-in for a model.
#[track_caller]
fn assert_model_was_called(project: &Project) {
    let results = project.results("agents");
    for task in ["sealed", "word-count"] {
        let trial = results.trial("shell", task);
        assert_eq!(trial.reward(), Some(1.0), "{task}");
        let gateway = &trial.result["gateway"];
        assert_eq!((&gateway["calls"], &gateway["usage"]["input"]), (&2.into(), &200.into()));
    }
}

/// Makes the clone a repository, as one is.
fn commit(project: &Project) -> &Project {
    let script = "git init -q -b main && mkdir -p .git/info && \
                  printf '%s\\n' home runs tmp >.git/info/exclude && git add -A && \
                  git -c user.name=user -c user.email=user@localhost commit -qm all";
    let mut shell = project.command_of(Path::new("bash"), &["-c", script]);
    assert!(shell.status().expect("bash runs").success());
    project
}

/// The tests run the program that they were built with. `cargo install` of the README and `cargo run`
/// must give the same one.
#[test]
fn cargo_installs_and_starts_rollout() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(repository())
        .output()
        .expect("cargo answers");
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata.stdout).expect("cargo writes JSON");
    let default = metadata["workspace_default_members"].as_array().expect("a list");
    let packages = metadata["packages"].as_array().expect("a list");
    let programs = |package: &serde_json::Value| -> Vec<String> {
        let targets = package["targets"].as_array().expect("a list").iter();
        let programs = targets.filter(|target| target["kind"][0] == "bin");
        programs.map(|target| target["name"].as_str().expect("a name").to_owned()).collect()
    };
    let started = packages.iter().filter(|package| default.contains(&package["id"]));
    assert_eq!(started.flat_map(programs).collect::<Vec<_>>(), ["rollout"]);
    let path = INSTALL.split_whitespace().nth(2).expect("a path");
    let manifest: PathBuf = repository().join(path).join("Cargo.toml");
    let manifest = manifest.canonicalize().expect("there");
    let installed = packages.iter().filter(|package| {
        let path = package["manifest_path"].as_str().expect("a path");
        Path::new(path).canonicalize().is_ok_and(|path| path == manifest)
    });
    assert_eq!(installed.flat_map(programs).collect::<Vec<_>>(), ["rollout"]);
}
