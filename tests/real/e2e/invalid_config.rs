//! Invalid configuration: all errors are reported at once, and nothing starts.

use rollout_protocol::exit::ExitCode;
use rollout_tests::expected::ExpectedTrials;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;

use crate::e2e::{DEADLINE, project};

fn assert_refused(project: &Project, ended: ProgramExit, texts: &[String]) {
    let ended = ended.expect_code(ExitCode::Config);
    for text in texts {
        assert!(ended.stderr.contains(text), "no {text:?} in:\n{}", ended.stderr);
    }
    assert_eq!(ended.stdout, "");
    assert!(!project.path().join("jobs").exists(), "something was started");
}

#[test]
fn job_file_invalid_starts_nothing() {
    for (name, texts) in ExpectedTrials::read().invalid_jobs {
        let project = project().tasks(["faults/passes"], &[]).job(&name, &[]);
        let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
        assert_refused(&project, ended, &texts);
    }
}

#[test]
fn task_file_invalid_starts_nothing() {
    for (name, texts) in ExpectedTrials::read().invalid_tasks {
        let project = project()
            .tasks(["faults/passes", &format!("bad-toml/{name}")], &[])
            .job("faults.yaml", &[("PROVIDER", "process")]);
        let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
        assert_refused(&project, ended, &texts);
    }
}

#[test]
fn strict_run_with_unsupported_instruction_starts_nothing() {
    let project = project()
        .tasks(["faults/build-failed"], &[])
        .job("faults.yaml", &[("PROVIDER", "process")]);
    let ended = project.rollout(&["run", "job.yaml", "--strict"]).wait(DEADLINE);
    assert_refused(&project, ended, &["build-failed".to_owned(), "RUN".to_owned()]);
}

#[test]
fn env_variable_unset_starts_nothing() {
    let project =
        project().tasks(["agents/secret"], &[]).job("secret.yaml", &[("PROVIDER", "process")]);
    let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    assert_refused(&project, ended, &["ROLLOUT_TESTS_SECRET".to_owned()]);
}
