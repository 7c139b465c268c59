//! Jobs on a machine whose Docker engine does not answer.

use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;

use crate::e2e::{DEADLINE, project};

const JOB: &str = "\
name: engine
environment: {type: docker}
agents:
  - name: a
    execute: echo a
datasets:
  - path: tasks
";

/// An address at which nothing listens.
const UNREACHABLE_ENGINE: &str = "unix:///no/such/engine.sock";

fn run_without_engine(project: &Project, arguments: &[&str]) -> ProgramExit {
    let mut command = project.command(arguments);
    let _set = command.env("DOCKER_HOST", UNREACHABLE_ENGINE);
    project.start(command).wait(DEADLINE)
}

#[test]
fn docker_job_without_engine_starts_nothing() {
    let project = project().tasks(["faults/passes"], &[]).write("job.yaml", JOB);
    let began = Instant::now();
    let refused = run_without_engine(&project, &["run", "job.yaml"]).expect_code(ExitCode::Config);
    assert!(began.elapsed() < Duration::from_secs(60), "it waited {:?}", began.elapsed());
    for text in ["nothing was started", "cannot use the environment `docker`", "-e process"] {
        assert!(refused.stderr.contains(text), "no {text:?} in {}", refused.stderr);
    }
    let address = "/no/such/engine.sock";
    assert_eq!(refused.stderr.matches(address).count(), 1, "named twice in {}", refused.stderr);
    assert!(!project.path().join("jobs/engine/journal").exists(), "a run was started");
    // The same job runs with a provider that needs no engine.
    let run = ["run", "job.yaml", "-e", "process"];
    let _ran = run_without_engine(&project, &run).expect_code(ExitCode::Success);
}
