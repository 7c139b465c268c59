//! The processes of a measurement.

use std::io::{BufRead as _, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rollout_tests::http::HttpClient;
use rollout_tests::nats::NatsServer;
use rollout_tests::noop_worker::{NoopWorker, NoopWorkerConfig};
use rollout_tests::program::RunningProgram;
use rollout_tests::project::{Project, repository};
use rollout_tests::{processes, wait};
use serde_json::{Value, json};

use crate::{FarmBench, FarmBenchError};

/// First argument that makes the program the worker.
pub(crate) const WORKER_ARGUMENT: &str = "worker";

/// Names of the objects on the NATS server.
const NAMESPACE: &str = "bench";

/// Longest time for a server to start.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Works as the worker with a configuration, until it is killed.
pub(crate) fn work(config: Option<String>) -> Result<(), FarmBenchError> {
    let config: NoopWorkerConfig = serde_json::from_str(&config.unwrap_or_default())?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async { NoopWorker::connect(config).await?.run().await })
}

/// A server with its NATS server, and a worker.
pub(crate) struct FarmServer {
    /// A client of it.
    pub(crate) client: HttpClient,
    token: String,
    // Dropped in this order.
    worker: Option<OwnedChild>,
    process: RunningProgram,
    nats: NatsServer,
    port: u16,
    project: Project,
}

impl FarmServer {
    /// Starts the servers.
    pub(crate) fn start(bench: &FarmBench) -> Result<Self, FarmBenchError> {
        let program = std::env::current_exe()?.with_file_name("rollout-under-test");
        let project = Project::new(&program.display().to_string())
            .write("tasks/t/task.toml", "version = '1.0'\n")
            .write("tasks/t/instruction.md", "Do nothing.\n")
            .write("tasks/t/environment/Dockerfile", "FROM scratch\n")
            .write("tasks/t/tests/test.sh", "exit 0\n");
        let nats = NatsServer::start_with(&bench.nats_server, &project.path().join("nats"), "");
        let (url, tasks) = (nats.url(), project.path().join("tasks").display().to_string());
        let process = project.rollout(&[
            "serve",
            "--dir",
            "state",
            "--listen",
            "127.0.0.1:0",
            "--allow-path",
            &tasks,
            "--allow-provider",
            "process",
            "--nats",
            &url,
            "--namespace",
            NAMESPACE,
            "--store",
            "blobs",
        ]);
        let mut port = None;
        wait::until(START_DEADLINE, "the server listens", || {
            let text = process.stdout();
            let line = text.lines().find(|line| line.starts_with("listening on "));
            port = line.and_then(|line| line.rsplit(':').next()?.parse().ok());
            port.is_some()
        });
        let port = port.expect("a port");
        let token = std::fs::read_to_string(project.path().join("state/token"))?.trim().to_owned();
        let client = HttpClient::new(port).with_token(&token);
        Ok(Self { client, token, worker: None, process, nats, port, project })
    }

    /// Opens a farm whose samples do nothing, and returns its path.
    pub(crate) fn open_farm(&self, name: &str) -> Result<String, FarmBenchError> {
        let request = json!({ "name": name, "document": {
            "n_concurrent_trials": 4096,
            "environment": { "type": "process" },
            "agents": [{ "name": "nop" }],
            "verifier": { "disable": true },
            "datasets": [{ "path": self.project.path().join("tasks") }],
        } });
        let answer = self.client.post("/v1/farms", &[], &request);
        let farm: Value = answer.json();
        let id = farm["id"].as_str().ok_or_else(|| format!("no farm: {farm:#}"))?;
        let path = format!("/v1/farms/{id}");
        wait::until(START_DEADLINE, "the farm is open", || {
            self.client.get(&path).json()["state"] == "running"
        });
        Ok(path)
    }

    /// Starts the worker.
    pub(crate) fn start_worker(&mut self, slots: u32) -> Result<(), FarmBenchError> {
        let root = self.project.path();
        let config = NoopWorkerConfig {
            url: self.nats.url(),
            namespace: NAMESPACE.to_owned(),
            slots,
            store: root.join("blobs"),
            directory: root.join("workers"),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args([WORKER_ARGUMENT, &serde_json::to_string(&config)?]);
        self.worker = Some(OwnedChild(command.stdin(Stdio::null()).spawn()?));
        Ok(())
    }

    /// Ends the worker.
    pub(crate) fn stop_worker(&mut self) {
        self.worker = None;
    }

    /// Starts a trainer of a farm.
    pub(crate) fn train(
        &self,
        farm: &str,
        mode: &str,
        bench: &FarmBench,
    ) -> Result<Training, FarmBenchError> {
        let repository = repository();
        let mut command = Command::new(&bench.python);
        command.arg(repository.join("tests/bench/farm/trainer.py"));
        command.args([farm.trim_start_matches("/v1/farms/"), mode]);
        command.args([bench.groups, bench.samples, bench.slots].map(|number| number.to_string()));
        command.env("PYTHONPATH", repository.join("clients/python/src"));
        command.env("ROLLOUT_API_URL", format!("http://127.0.0.1:{}", self.port));
        command.env("ROLLOUT_API_TOKEN", &self.token);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Training { process: OwnedChild(child), output })
    }

    /// A value of the server's memory in KiB.
    pub(crate) fn memory_kib(&self, name: &str) -> u64 {
        processes::memory_kib(self.process.pid(), name)
    }
}

/// A child process, which is killed when this is dropped.
struct OwnedChild(Child);

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // It may have ended.
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// A trainer, which ends when this is dropped.
pub(crate) struct Training {
    process: OwnedChild,
    output: BufReader<ChildStdout>,
}

impl Training {
    /// Prints the figures of its next stage, and returns them.
    pub(crate) fn stage(&mut self, out: &mut impl Write) -> Result<Value, FarmBenchError> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let ended = self.process.0.wait()?;
            return Err(format!("the trainer failed: {ended}").into());
        }
        write!(out, "trainer: {line}")?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Prints the figures of its last stage, and returns the samples per second.
    pub(crate) fn finish(mut self, out: &mut impl Write) -> Result<f64, FarmBenchError> {
        let figures = self.stage(out)?;
        let number = |key: &str| figures[key].as_f64();
        let seconds = number("seconds").or_else(|| number("read_seconds"));
        number("samples").zip(seconds).map(|(n, s)| n / s).ok_or_else(|| "no figures".into())
    }
}
