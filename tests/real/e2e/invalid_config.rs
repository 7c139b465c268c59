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
fn task_file_invalid_starts_nothing_alone_or_in_strict_run() {
    for (name, texts) in ExpectedTrials::read().invalid_tasks {
        let invalid = format!("bad-toml/{name}");
        let alone = project().tasks([invalid.as_str()], &[]);
        let beside = project().tasks(["faults/passes", &invalid], &[]);
        for (project, options) in [(alone, &[][..]), (beside, &["--strict"])] {
            let project = project.job("faults.yaml", &[("PROVIDER", "process")]);
            let arguments = [&["run", "job.yaml"], options].concat();
            let ended = project.rollout(&arguments).wait(DEADLINE);
            assert_refused(&project, ended, &texts);
        }
    }
}

#[test]
fn task_file_invalid_fails_its_trial_and_others_run() {
    for (name, texts) in ExpectedTrials::read().invalid_tasks {
        let project = project()
            .tasks(["faults/passes", &format!("bad-toml/{name}")], &[])
            .job("faults.yaml", &[("PROVIDER", "process")]);
        let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
        let ended = ended.expect_code(ExitCode::Success);
        let results = project.results("faults");
        assert_eq!(results.trial("note", "passes").reward(), Some(1.0));
        let invalid = results.trial("note", &name);
        assert_eq!((invalid.error(), invalid.reward()), (Some("task_invalid"), None));
        for text in texts {
            assert!(invalid.message().contains(&text), "{}", invalid.message());
            assert!(ended.stderr.contains(&text), "no {text:?} in:\n{}", ended.stderr);
        }
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
