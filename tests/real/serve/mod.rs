//! The real daemon: `rollout serve` on a free port, over HTTP.

mod abuse;
mod addresses;
mod cache_mounts;
mod cluster;
mod datasets;
mod disk_faults;
mod document_rules;
pub(crate) mod events;
mod executor;
mod export;
mod farm_cancel;
mod farm_deletion;
mod farm_fleet;
mod farm_fleet_kills;
pub(crate) mod farm_kills;
mod farm_workers;
pub(crate) mod farms;
mod fetching;
mod fetching_faults;
mod fetching_fixture;
mod fetching_public;
mod host_paths;
mod hostile_uploads;
mod images;
mod items;
mod jobs;
mod large_runs;
mod links;
mod live_output;
mod model_outages;
mod openapi;
mod remote;
mod resume;
mod schemathesis;
mod scores;
pub(crate) mod search;
mod share;
mod shares;
mod soak;
mod stops;
mod task_formats;
mod tls;
mod tokens;
mod trainer_log;
mod up;
mod variables;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rollout_tests::http::HttpClient;
use rollout_tests::program::RunningProgram;
use rollout_tests::project::Project;
use rollout_tests::wait;
use serde_json::{Value, json};

/// Longest duration of a run on a busy machine with two processors.
const DEADLINE: Duration = Duration::from_secs(240);

/// An empty project for the program under test.
fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}

/// A daemon of a project.
pub(crate) struct DaemonProcess {
    pub(crate) process: RunningProgram,
    pub(crate) client: HttpClient,
}

impl DaemonProcess {
    /// Starts a daemon that lets documents use the project's tasks in process sandboxes.
    fn start(project: &Project, options: &[&str]) -> Self {
        Self::start_on(project, 0, options)
    }

    /// Starts such a daemon on a port.
    pub(crate) fn start_on(project: &Project, port: u16, options: &[&str]) -> Self {
        Self::start_with(project, port, options, |words| project.rollout(words))
    }

    /// Starts such a daemon as the program that `start` starts with its arguments.
    fn start_with(
        project: &Project,
        port: u16,
        options: &[&str],
        start: impl FnOnce(&[&str]) -> RunningProgram,
    ) -> Self {
        let address = format!("127.0.0.1:{port}");
        let tasks = project.path().join("tasks").display().to_string();
        let mut words = vec![
            "serve",
            "--dir",
            "state",
            "--listen",
            &address,
            "--allow-path",
            &tasks,
            "--allow-provider",
            "process",
        ];
        words.extend(options);
        Self::started(project, start(&words))
    }

    /// Waits until a daemon of a project listens. Its client, and later commands of the project, have
    /// the token that it made, if it made one.
    fn started(project: &Project, process: RunningProgram) -> Self {
        let mut port = None;
        wait::until(wait::LONG_DEADLINE, "the daemon listens", || {
            let text = process.stdout();
            let line = text.lines().find(|line| line.starts_with("listening on "));
            port = line.and_then(|line| line.rsplit(':').next()?.parse().ok());
            port.is_some() && text.ends_with('\n')
        });
        let mut client = HttpClient::new(port.expect("a port"));
        if let Some(variables) = client_variables(project, &process.stdout()) {
            let token = &variables["ROLLOUT_API_TOKEN"];
            project.set_variable("ROLLOUT_API_TOKEN", token);
            client = client.with_token(token);
        }
        Self { process, client }
    }

    /// The port that it listens on.
    fn port(&self) -> u16 {
        self.client.connect().peer_addr().expect("an address").port()
    }

    /// Its URL.
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Ends the daemon with the trials that run, whose sandboxes it removes.
    pub(crate) fn stop(mut self) {
        self.process.interrupt(DEADLINE);
        let _ended = self.process.wait(DEADLINE);
    }

    /// Waits until a run is in one of these states, and returns it.
    #[track_caller]
    fn wait_for(&self, id: &str, states: &[&str]) -> Value {
        let mut run = Value::Null;
        let reached = wait::holds_within(DEADLINE, || {
            run = self.client.get(&format!("/v1/runs/{id}")).expect(200).json();
            states.iter().any(|state| run["state"] == *state)
        });
        assert!(reached, "not {states:?}: {run:#}\n{}", self.process.stderr());
        run
    }
}

/// The variables that a shell gets from the file for clients that the output of a server names.
fn client_variables(project: &Project, output: &str) -> Option<BTreeMap<String, String>> {
    let file = output.lines().find_map(|line| line.split_once(" with: . "))?.1;
    let script = format!(". {file} && env");
    let mut command = project.command_of(Path::new("/bin/sh"), &["-c", &script]);
    let output = command.output().expect("a shell");
    let text = String::from_utf8(output.stdout).expect("text");
    let variables = text.lines().filter_map(|line| line.split_once('='));
    Some(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// A submission of a job that runs every task of the project.
pub(crate) fn submission(project: &Project, attempts: u32) -> Value {
    json!({ "document": {
        "name": "slow",
        "n_attempts": attempts,
        "n_concurrent_trials": 2,
        "environment": { "type": "process" },
        "agents": [{ "name": "oracle" }],
        "datasets": [{ "path": project.path().join("tasks") }],
    } })
}

/// Submits a job and returns the id of its run.
#[track_caller]
pub(crate) fn submitted(client: &HttpClient, submission: &Value) -> String {
    let run = client.post("/v1/runs", &[], submission).expect(201).json();
    run["id"].as_str().expect("an id").to_owned()
}
