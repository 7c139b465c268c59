//! Tasks of a registry that are not selected, tasks that their repository lacks, and
//! repositories that do not answer.

use rollout_protocol::exit::ExitCode;
use serde_json::json;

use crate::registry::fixture::{DEADLINE, RegistryFixture, tasks};

/// A registry of a repository that answers and one that does not. Its dataset has a task of an
/// organization, one without a name, one whose directory is missing, and one that is out of reach.
fn fixture() -> RegistryFixture {
    let fixture = RegistryFixture::empty();
    fixture.repository("here", &["alpha", "solo"].map(str::to_owned), "first");
    let (here, away) = (fixture.url("here"), fixture.url("away"));
    fixture.registry(&json!([{"name": "mixed", "tasks": [
        {"name": "org/alpha", "git_url": here, "path": "tasks/alpha"},
        {"git_url": here, "path": "./tasks/solo/"},
        {"name": "gone", "git_url": here, "path": "tasks/gone"},
        {"name": "offline", "git_url": away, "path": "t"},
    ]}]));
    fixture
}

fn dataset(filters: &str) -> String {
    format!("{{registry: {{path: registry.json}}, name: mixed{filters}}}")
}

#[test]
fn task_not_selected_needs_no_answer_of_its_repository() {
    let fixture = fixture();
    for (filters, expected) in [
        (", task_names: [org/alpha]", &["alpha"][..]),
        (", task_names: [alpha]", &["alpha"]),
        (", exclude_task_names: [gone, offline, 'org/*']", &["solo"]),
        (", exclude_task_names: [gone], n_tasks: 1", &["alpha"]),
    ] {
        fixture.job(&dataset(filters));
        let ended = fixture.dry_run().wait(DEADLINE).expect_code(ExitCode::Success);
        let names: Vec<_> = tasks(&ended).into_keys().collect();
        assert_eq!(names, expected, "{filters}");
        assert!(!ended.stderr.contains("away"), "{}", ended.stderr);
    }
}

#[test]
fn task_that_its_repository_lacks_fails_its_trial_and_others_run() {
    let fixture = fixture();
    fixture.job(&dataset(", exclude_task_names: [offline]"));
    let ended = fixture.start(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let results = fixture.project.results("j");
    for name in ["alpha", "solo"] {
        assert_eq!(results.trial("nop", name).reward(), Some(1.0), "{}", ended.stderr);
    }
    let text = "`tasks/gone`, which is not in";
    let trial = results.trial("nop", "gone");
    assert_eq!((trial.error(), trial.reward()), (Some("task_not_found"), None));
    assert!(trial.message().contains(text), "{}", trial.message());
    assert!(ended.stderr.contains(text), "no {text:?} in:\n{}", ended.stderr);
    let strict = ["run", "job.yaml", "--strict", "--name", "strict"];
    let refused = fixture.start(&strict).wait(DEADLINE).expect_code(ExitCode::Config);
    let _said = refused.expect_stderr(text);
    let alone = ["run", "job.yaml", "-t", "gone", "--name", "alone"];
    let alone = fixture.start(&alone).wait(DEADLINE).expect_code(ExitCode::Config);
    let _said = alone.expect_stderr(text);
}

#[test]
fn task_with_unusable_address_fails_its_trial_and_others_run() {
    let fixture = RegistryFixture::empty();
    fixture.repository("here", &["alpha".to_owned()], "first");
    fixture.registry(&json!([{"name": "mixed", "tasks": [
        {"name": "alpha", "git_url": fixture.url("here"), "path": "tasks/alpha"},
        {"name": "blank", "git_url": "nothing://x y", "path": "tasks/alpha"},
        {"name": "scheme", "git_url": "nothing://x/y", "path": "tasks/alpha"},
    ]}]));
    fixture.job(&dataset(""));
    let ended = fixture.start(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let results = fixture.project.results("j");
    assert_eq!(results.trial("nop", "alpha").reward(), Some(1.0), "{}", ended.stderr);
    for (name, text) in [
        ("blank", "the `git_url` \"nothing://x y\" in the registry, which is not an address"),
        ("scheme", "cannot fetch the repository nothing://x/y: transport 'nothing' not allowed"),
    ] {
        let trial = results.trial("nop", name);
        assert_eq!((trial.error(), trial.reward()), (Some("task_not_found"), None), "{name}");
        assert!(trial.message().contains(text), "{}", trial.message());
        let alone = ["run", "job.yaml", "-t", name, "--name", name];
        let alone = fixture.start(&alone).wait(DEADLINE).expect_code(ExitCode::Config);
        let _said = alone.expect_stderr(text);
    }
    let strict = ["run", "job.yaml", "--strict", "--name", "strict"];
    let refused = fixture.start(&strict).wait(DEADLINE).expect_code(ExitCode::Config);
    let _said = refused.expect_stderr("the `git_url` \"nothing://x y\" in the registry");
}

#[test]
fn repository_that_does_not_answer_refuses_the_run() {
    let fixture = fixture();
    fixture.job(&dataset(""));
    let refused = fixture.start(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Config);
    let _said = refused.expect_stderr("cannot fetch the repository");
    let run = fixture.path("jobs/j");
    assert!(!run.exists(), "an outage decided about trials in {}", run.display());
}
