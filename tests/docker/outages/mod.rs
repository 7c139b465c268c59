//! Outages of services that a run needs: no trial fails, and nothing is left behind.
//!
//! `ROLLOUT_TEST_OUTAGE_SEC` sets the length of an outage, and `ROLLOUT_TEST_OUTAGE_TRIALS` the
//! number of trials:
//!
//! ```sh
//! ROLLOUT_TEST_OUTAGE_SEC=60 ROLLOUT_TEST_OUTAGE_TRIALS=40 \
//!     cargo test -p rollout-tests --test docker outages::
//! ```

mod combined;
mod engine;
mod registry;
mod store;

use std::fs;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::program::{ProgramExit, RunningProgram};
use rollout_tests::project::Project;
use rollout_tests::results::Results;
use rollout_tests::test_engine::TestEngine;
use rollout_tests::wait;
use serde_json::Value;

/// Longest duration of a run in addition to its outages.
const DEADLINE: Duration = Duration::from_secs(600);

fn number(variable: &str, default: u32) -> u32 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

/// Length of an outage.
fn outage_duration() -> Duration {
    Duration::from_secs(number("ROLLOUT_TEST_OUTAGE_SEC", 12).into())
}

/// Number of trials of a run.
fn trials() -> u32 {
    number("ROLLOUT_TEST_OUTAGE_TRIALS", 12)
}

fn project() -> Project {
    Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
}

/// A job whose trials each have an image of their own and an agent that works for a second.
#[derive(Debug)]
struct OutageJob {
    trials: u32,
    provider: &'static str,
    /// Additional lines of a task's `task.toml`, with `@N@` for its number.
    task: String,
    /// Additional lines of the job file.
    lines: String,
}

impl OutageJob {
    fn docker() -> Self {
        Self { trials: trials(), provider: "docker", task: String::new(), lines: String::new() }
    }

    fn write(&self, project: &Project) {
        for number in 1..=self.trials {
            let task = project.path().join(format!("tasks/t{number:03}"));
            let write = |name: &str, text: &str| {
                let path = task.join(name);
                fs::create_dir_all(path.parent().expect("below the task")).expect("a directory");
                fs::write(path, text).expect("a file");
            };
            let more = self.task.replace("@N@", &number.to_string());
            write("task.toml", &format!("version = \"1.0\"\n{more}"));
            if self.task.is_empty() {
                let dockerfile = format!(
                    "FROM debian:bookworm-slim\nWORKDIR /app\nENV NUMBER={number}\n\
                     COPY word /word\n"
                );
                // A sandbox has no files of an image outside the working directory.
                let dockerfile = match self.provider {
                    "docker" => dockerfile,
                    _ => "FROM debian:bookworm-slim\nWORKDIR /app\n".to_owned(),
                };
                write("environment/Dockerfile", &dockerfile);
                write("environment/word", &format!("word {number}\n"));
            }
            write("instruction.md", "work\n");
            write("tests/test.sh", "cp /tmp/answer /logs/verifier/reward.txt\n");
        }
        let network = match self.provider {
            "docker" => "\n  provider_config: {network: none}",
            _ => "",
        };
        let text = format!(
            "name: outage\nn_concurrent_trials: 4\n{}environment:\n  type: {}{network}\nagents:\n  \
             - name: worker\n    execute: |\n      sleep 1\n      echo 1 >/tmp/answer\n\
             datasets:\n  - path: tasks\n",
            self.lines, self.provider
        );
        fs::write(project.path().join("job.yaml"), text).expect("a file");
    }
}

/// Starts a run on an engine.
fn start(project: &Project, engine: &TestEngine) -> RunningProgram {
    let mut command = project.command(&["run", "job.yaml", "--json"]);
    command.env("DOCKER_HOST", engine.host());
    project.start(command)
}

/// Waits until `count` trials are settled.
#[track_caller]
fn wait_until_settled(run: &RunningProgram, count: usize) {
    let enough = || events_of_kind(&run.stdout(), "trial_settled").len() >= count;
    wait::until(DEADLINE, &format!("{count} settled trials"), enough);
}

/// Waits for the length of an outage; fails if the run ends meanwhile.
fn wait_out_outage(run: &mut RunningProgram) {
    let ended = wait::holds_within(outage_duration(), || run.has_ended());
    assert!(!ended, "the run ended in the outage: {}\n{}", run.stdout(), run.stderr());
}

/// Events of a kind.
fn events_of_kind(stdout: &str, kind: &str) -> Vec<Value> {
    let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|event| event["event"] == kind).collect()
}

/// Fails unless every trial passed on its first attempt.
#[track_caller]
fn assert_unharmed(ended: ProgramExit, results: &Results, trials: u32) -> ProgramExit {
    let ended = ended.expect_code(ExitCode::Success);
    for trial in results.trials() {
        assert_eq!((trial.reward(), trial.error()), (Some(1.0), None), "{}", trial.result);
    }
    assert_eq!(results.count("completed_trials"), u64::from(trials));
    assert_eq!(
        events_of_kind(&ended.stdout, "trial_retry"),
        Vec::<Value>::new(),
        "no trial is retried"
    );
    assert_eq!(
        events_of_kind(&ended.stdout, "trial_lost"),
        Vec::<Value>::new(),
        "no execution is lost"
    );
    ended
}
