//! The modes of `--materialize`, on this host and on workers that share a store in S3 only.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::{copy, repository};
use rollout_tests::results::json;
use rollout_tests::s3_server::S3Server;
use serde_json::Value;

use crate::cluster::s3::with_store;
use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

const MODES: [&str; 4] = ["none", "metadata_only", "outputs_only", "full"];

/// Columns of tables that differ between two runs of a job: identities, places and times.
const RUN_SPECIFIC_COLUMNS: &[&str] = &[
    "run_id",
    "worker",
    "exec_id",
    "record",
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

/// Sources of metrics that differ between two runs of a job.
const RUN_SPECIFIC_METRICS: &[&str] = &["duration", "cost"];

/// All tables of a job with a harness and guardrails.
const TABLES: &[&str] = &[
    "trials",
    "tries",
    "metrics_long",
    "event_counts_by_trial",
    "event_counts_by_agent",
    "agent_summary",
    "comparisons",
    "guardrails",
];

/// Two agents on the tasks of the quickstart. The second writes a log and solves nothing.
const SANDBOX_JOB: &str = "name: quickstart\nn_concurrent_trials: 2\nenvironment:\n  \
                           type: process\nagents:\n  - name: oracle\n  - name: idle\n    \
                           execute: |\n      echo said; echo noted >/logs/agent/note.txt\n\
                           datasets:\n  - path: tasks\n";

/// A harness that does one step, and a file that it leaves.
const STEPS: &str = r#"
ids=$(sed 's/.*"ids":\({[^}]*}\).*/\1/' "$ROLLOUT_TRIAL_INPUT")
version="sha256:$(sha256sum <"$ROLLOUT_CONTROL_PATH" | cut -d' ' -f1)"
emit() {
  printf '{"event_type":"%s","ts":"2026-01-02T03:04:05Z","seq":%d,"ids":%s,"step_index":0%s}\n' \
    "$1" "$2" "$ids" "$3" >>"$ROLLOUT_EVENTS_PATH"
}
emit agent_step_start 0
emit agent_step_end 1
emit control_ack 2 ",\"control_version\":\"$version\",\"action_observed\":\"continue\""
echo thought
printf '{"schema_version":"trial_output_v1","ids":%s,"outcome":"success","metrics":{"turns":1}}' \
  "$ids" >"$ROLLOUT_TRIAL_OUTPUT"
"#;

/// The files of a trial that `docs/results.md` lists, with the first mode that has them according to
/// `docs/formats.md`, and the agents that leave them.
const TRIAL_FILES: &[(&str, &str, &[&str])] = &[
    ("result.json", "metadata_only", &["oracle", "hasty", "idle", "steps"]),
    ("command/stdout.txt", "outputs_only", &["oracle", "hasty", "idle", "steps"]),
    ("command/stderr.txt", "outputs_only", &["oracle", "hasty", "idle", "steps"]),
    ("setup/stdout.txt", "outputs_only", &["hasty"]),
    ("setup/stderr.txt", "outputs_only", &["hasty"]),
    ("harness/trial_input.json", "outputs_only", &["steps"]),
    ("harness/trial_output.json", "outputs_only", &["steps"]),
    ("harness/hook_events.jsonl", "outputs_only", &["steps"]),
    ("logs/verifier/stdout.txt", "outputs_only", &["oracle", "hasty", "idle", "steps"]),
    ("logs/verifier/stderr.txt", "outputs_only", &["oracle", "hasty", "idle", "steps"]),
    ("logs/verifier/reward.txt", "full", &["oracle", "hasty", "idle", "steps"]),
    ("logs/agent/thoughts.txt", "full", &["hasty"]),
    ("logs/agent/note.txt", "full", &["idle"]),
    ("logs/agent/events.jsonl", "full", &["steps"]),
];

/// Fails unless `docs/results.md` lists every file of [`TRIAL_FILES`], or its directory.
fn assert_documented() {
    let page = fs::read_to_string(repository().join("docs/results.md")).expect("the page");
    let list = page.split("```").nth(1).expect("a list of files");
    let entries = list.lines().filter_map(|line| line.strip_prefix("    "));
    let entries: Vec<_> = entries.filter_map(|line| line.split_whitespace().next()).collect();
    for (file, ..) in TRIAL_FILES {
        let is_listed = entries.iter().any(|entry| {
            let [out, error] = ["stdout", "stderr"].map(|s| entry.replace("{stdout,stderr}", s));
            [out, error].iter().any(|e| e == file || (e.ends_with('/') && file.starts_with(e)))
        });
        assert!(is_listed, "docs/results.md does not list {file}: {entries:?}");
    }
}

/// Adds the agent of [`STEPS`] and guardrails to a job file.
fn extend(job: &str) -> String {
    let steps = serde_json::to_string(STEPS).expect("text");
    let more = format!(
        "  - name: steps\n    harness:\n      command: {steps}\n      \
         integration_level: cli_events\n      events_path: /logs/agent/events.jsonl\n\
         guardrails:\n  - {{metric_id: turns, max: 3}}\n  - {{metric_id: cost_usd}}\ndatasets:"
    );
    let extended = job.replacen("datasets:", &more, 1);
    assert_ne!(extended, job, "a job has datasets");
    extended
}

/// The files of trials of these tasks in a mode.
fn documented_files(
    dataset: &str,
    tasks: &[&str],
    agents: &[&str],
    mode: &str,
) -> BTreeSet<String> {
    let rank = |mode: &str| MODES.iter().position(|known| *known == mode).expect("a mode");
    let written = TRIAL_FILES.iter().filter(|(_, first, _)| rank(first) <= rank(mode));
    let mut found = BTreeSet::new();
    for (file, _, writers) in written {
        for agent in agents.iter().filter(|agent| writers.contains(agent)) {
            let paths = tasks.iter().map(|task| format!("{agent}/{dataset}/{task}__1/{file}"));
            found.extend(paths);
        }
    }
    found
}

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
        for agent in ["oracle", "hasty", "idle", "steps"] {
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
            let source = columns.get("metric_source").and_then(Value::as_str);
            let is_specific = source.is_some_and(|of| RUN_SPECIFIC_METRICS.contains(&of));
            columns.retain(|name, _| {
                let is_value = is_specific && name == "metric_value";
                !is_value && !RUN_SPECIFIC_COLUMNS.contains(&name.as_str())
            });
            row
        };
        text.lines().map(row).collect()
    }

    /// Streams that scripts wrote nothing to, by the results of the trials.
    fn empty_streams(
        &self,
        cluster: &Cluster,
        tasks: &[&str],
        agents: &[&str],
    ) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for trial in agents
            .iter()
            .flat_map(|agent| tasks.iter().map(move |task| format!("{agent}/tasks/{task}__1")))
        {
            let result = self.directory(cluster).join(&trial).join("result.json");
            let result = json(&result).expect("a result");
            let outputs = result["outputs"].as_array().expect("outputs").iter();
            let empty = outputs.filter(|output| output["blob"]["size_bytes"] == 0);
            let paths = empty.map(|output| output["path"].as_str().expect("a path"));
            found.extend(paths.map(|path| format!("{trial}/{path}")));
        }
        found
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

fn assert_modes(job: &str, provider: &'static str, tasks: &[&str], agents: &[&str]) {
    assert_documented();
    let (Some(cluster), server) = (cluster(), S3Server::start()) else { return };
    let examples = cluster.project.path().join("examples");
    copy(&repository().join("examples"), &examples, &[]);
    fs::write(examples.join("quickstart/job.yaml"), SANDBOX_JOB).expect("written");
    let job_file = cluster.project.path().join(job);
    let extended = extend(&fs::read_to_string(&job_file).expect("the example"));
    fs::write(&job_file, extended).expect("written");
    let runs = run_all(&cluster, &server.store_url("runs"), job, provider);
    let full = runs.last().expect("runs");
    let trial = format!("{}/tasks/{}__1", agents[0], tasks[0]);
    let logs = full.read(&cluster, &["logs", &trial]);
    let empty = full.empty_streams(&cluster, tasks, agents);
    assert!(empty.len() < 4 * tasks.len() * agents.len(), "scripts print something: {empty:#?}");
    for run in &runs {
        let mut expected = documented_files("tasks", tasks, agents, run.mode);
        // They have no files.
        expected.retain(|file| !empty.contains(file));
        assert_eq!(run.trial_files(&cluster), expected, "{} {}", run.jobs_dir, run.mode);
        for table in TABLES {
            let (found, expected) = (run.table(&cluster, table), full.table(&cluster, table));
            assert!(!found.is_empty(), "{} {table}", run.jobs_dir);
            assert_eq!(found, expected, "{} {table}", run.jobs_dir);
        }
        let status: Value =
            serde_json::from_str(&run.read(&cluster, &["status", "--json"])).expect("JSON");
        assert_eq!(status["counts"]["settled"], tasks.len() * agents.len(), "{status}");
        let shown = run.read(&cluster, &["show"]);
        assert!(shown.contains(&trial), "{shown}");
        assert_eq!(run.read(&cluster, &["logs", &trial]), logs, "{}", run.jobs_dir);
    }
}

#[test]
fn materialize_modes_in_sandbox_write_documented_files_and_equal_tables() {
    let tasks = ["count-errors", "fix-slugify", "merge-config", "tidy-names"];
    let agents = ["oracle", "idle", "steps"];
    assert_modes("examples/quickstart/job.yaml", "process", &tasks, &agents);
}

#[test]
fn materialize_modes_on_docker_write_documented_files_and_equal_tables() {
    let Some(_engine) = DockerEngine::available() else { return };
    let (tasks, agents) = (["greeting", "prime-sum"], ["oracle", "hasty", "steps"]);
    assert_modes("examples/docker/job.yaml", "docker", &tasks, &agents);
}
