//! Many trials at once.

use std::fs;
use std::process::Command;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::{Project, repository};

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

#[test]
fn sixty_containers_at_once_succeed() {
    let Some(engine) = DockerEngine::available() else { return };
    let project = assert_many_trials("docker", 60);
    // No network per trial: an engine has addresses for about thirty.
    let path = project.path().to_string_lossy().into_owned();
    assert_eq!(engine.networks(&path), Vec::<String>::new());
}

#[test]
fn many_sandboxes_at_once_succeed() {
    let _project = assert_many_trials("process", 60);
}

fn assert_many_trials(provider: &str, count: u64) -> Project {
    let project = project();
    let directory = project.path().join("many");
    let made = Command::new(repository().join("examples/many/generate"))
        .args([&count.to_string(), directory.to_str().expect("a plain path"), provider])
        .output()
        .expect("the generator");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let job = fs::read_to_string(directory.join("job.yaml")).expect("the job");
    let at_once = format!("n_concurrent_trials: {count}");
    let job = job.replace("n_concurrent_trials: 8", &at_once);
    assert!(job.contains(&at_once));
    let project = project.write("many/job.yaml", &job);
    let run = project.rollout(&["run", "many/job.yaml"]);
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let results = rollout_tests::results::Results::new(directory.join("jobs/many"));
    assert_adds_up(&results, count);
    assert_eq!(results.job()["mean_reward"], 1.0, "{:#}", results.job());
    assert_nothing_left(&project);
    project
}
