//! The modes of `--materialize`, on this host and on workers that share a store in S3 only.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::{copy, repository};
use rollout_tests::s3_server::S3Server;
use serde_json::Value;

use crate::s3::with_store;
use crate::{DEADLINE, assert_no_leaks, cluster};

const MODES: [&str; 4] = ["none", "metadata_only", "outputs_only", "full"];

/// Columns of tables that differ between two runs of a job: identities, places and times.
const RUN_SPECIFIC_COLUMNS: &[&str] = &[
    "run_id",
    "worker",
    "cost",
    "total_sec",
    "environment_setup_sec",
    "agent_setup_sec",
    "agent_execution_sec",
    "verifier_sec",
    "started_at",
    "ended_at",
    "settled_at",
];

/// Two agents on the tasks of the quickstart. The second writes a log and solves nothing.
const SANDBOX_JOB: &str = "name: quickstart\nn_concurrent_trials: 2\nenvironment:\n  \
                           type: process\nagents:\n  - name: oracle\n  - name: idle\n    \
                           execute: |\n      echo said; echo noted >/logs/agent/note.txt\n\
                           datasets:\n  - path: tasks\n";

/// A run: its directory below the project, and the files of its trials.
struct MaterializedRun {
    jobs_dir: String,
    name: &'static str,
    mode: &'static str,
}

impl MaterializedRun {
    fn directory(&self, cluster: &Cluster) -> std::path::PathBuf {
        cluster.project.path().join(&self.jobs_dir).join(self.name)
    }

    /// Paths of files below the directories of the agents.
    fn trial_files(&self, cluster: &Cluster) -> BTreeSet<String> {
        let root = self.directory(cluster);
        let mut found = BTreeSet::new();
        for agent in ["oracle", "hasty", "idle"] {
            collect(&root, &root.join(agent), &mut found);
        }
        found
    }

    /// The rows of a table without what differs between runs.
    fn table(&self, cluster: &Cluster, name: &str) -> Vec<Value> {
        let path = self.directory(cluster).join(format!("tables/{name}.jsonl"));
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let row = |line: &str| {
            let mut row: Value = serde_json::from_str(line).expect("JSON");
            let columns = row.as_object_mut().expect("an object");
            columns.retain(|name, _| !RUN_SPECIFIC_COLUMNS.contains(&name.as_str()));
            row
        };
        text.lines().map(row).collect()
    }

    /// The output of a command on the run.
    fn read(&self, cluster: &Cluster, words: &[&str]) -> String {
        let directory = self.directory(cluster);
        let directory = directory.to_str().expect("UTF-8");
        let arguments = [&words[..1], &[directory], &words[1..]].concat();
        let mut command = cluster.project.command(&arguments);
        command.envs(S3Server::environment());
        let ended = cluster.project.start(command).wait(DEADLINE);
        ended.expect_code(ExitCode::Success).stdout
    }
}

fn collect(root: &Path, directory: &Path, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(root, &path, found);
        } else {
            let name = path.strip_prefix(root).expect("below");
            found.insert(name.to_string_lossy().into_owned());
        }
    }
}

/// Runs a job in every mode, here and on two workers.
fn run_all(
    cluster: &Cluster,
    url: &str,
    job: &str,
    provider: &'static str,
) -> Vec<MaterializedRun> {
    let name = if provider == "docker" { "docker" } else { "quickstart" };
    let start = |name| {
        let worker = cluster.worker(name, 1).with_option("--provider", provider);
        with_store(worker, url).started()
    };
    let workers = ["a", "b"].map(start);
    let mut runs = Vec::new();
    for mode in MODES {
        let executor = format!("local_{provider}");
        let here = format!("here-{mode}");
        let arguments =
            ["run", job, "--executor", &executor, "--materialize", mode, "--jobs-dir", &here];
        let _ended =
            cluster.project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
        runs.push(MaterializedRun { jobs_dir: here, name, mode });

        let there = format!("there-{mode}");
        let server = cluster.server.url();
        let remote = with_store(cluster.coordinator(job), url).without_option("--nats");
        let remote = remote.with_arguments(&["--executor", "remote", "--remote-endpoint", &server]);
        let remote = remote.with_arguments(&["--jobs-dir", &there]);
        // The mode of a remote executor unless another one is named.
        let mut remote = match mode {
            "metadata_only" => remote,
            mode => remote.with_arguments(&["--materialize", mode]),
        };
        remote.start();
        let _ended = remote.wait(DEADLINE).expect_code(ExitCode::Success);
        runs.push(MaterializedRun { jobs_dir: there, name, mode });
    }
    assert_no_leaks(cluster, &[], workers);
    runs
}

fn assert_modes(job: &str, provider: &'static str) {
    let (Some(cluster), server) = (cluster(), S3Server::start()) else { return };
    let examples = cluster.project.path().join("examples");
    copy(&repository().join("examples"), &examples, &[]);
    fs::write(examples.join("quickstart/job.yaml"), SANDBOX_JOB).expect("written");
    let runs = run_all(&cluster, &server.store_url("runs"), job, provider);
    let full = runs.last().expect("runs");
    let all = full.trial_files(&cluster);
    let trials: BTreeSet<_> = all.iter().filter(|path| path.ends_with("/result.json")).collect();
    let trial = trials.first().expect("trials").trim_end_matches("/result.json");
    let logs = full.read(&cluster, &["logs", trial]);
    for run in &runs {
        let expected = all.iter().filter(|path| {
            let metadata = path.ends_with("/result.json") || path.ends_with("/error.txt");
            let outputs = ["/command/", "/setup/", "/logs/verifier/std"];
            match run.mode {
                "none" => false,
                "metadata_only" => metadata,
                "outputs_only" => metadata || outputs.iter().any(|part| path.contains(part)),
                _ => true,
            }
        });
        let expected: BTreeSet<_> = expected.cloned().collect();
        assert_eq!(run.trial_files(&cluster), expected, "{} {}", run.jobs_dir, run.mode);
        for table in ["trials", "tries", "agent_summary", "comparisons"] {
            let (found, expected) = (run.table(&cluster, table), full.table(&cluster, table));
            if table == "tries" {
                assert_eq!(found.len(), expected.len());
            } else {
                assert_eq!(found, expected, "{} {table}", run.jobs_dir);
            }
        }
        let status: Value =
            serde_json::from_str(&run.read(&cluster, &["status", "--json"])).expect("JSON");
        assert_eq!(status["counts"]["settled"], trials.len(), "{status}");
        let shown = run.read(&cluster, &["show"]);
        assert!(shown.contains(trial), "{shown}");
        assert_eq!(run.read(&cluster, &["logs", trial]), logs, "{}", run.jobs_dir);
    }
}

#[test]
fn materialize_modes_in_sandbox_write_documented_files_and_equal_tables() {
    assert_modes("examples/quickstart/job.yaml", "process");
}

#[test]
fn materialize_modes_on_docker_write_documented_files_and_equal_tables() {
    let Some(_engine) = DockerEngine::available() else { return };
    assert_modes("examples/docker/job.yaml", "docker");
}
