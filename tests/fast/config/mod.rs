//! The files under `tests/fixtures` and `examples`, read as a run reads them: valid files give no
//! warning, and invalid files give all their errors at once.

mod agent_keys;
mod dataset_keys;
mod gateway_keys;
mod keys;
mod mcp_keys;
mod reference;

use std::path::Path;

use rollout_coordinator::config::{Diagnostics, FormatHints, JobOptions, read_job, read_task};
use rollout_tests::expected::ExpectedTrials;
use rollout_tests::project::{Project, fixtures, repository};

/// Messages about a job file.
fn job_faults(file: &Path) -> String {
    let mut problems = Diagnostics::default();
    let job = read_job(file, &JobOptions::for_command_line(&|_| true), &mut problems);
    render_problems(problems, job.is_some())
}

/// Messages about a task file.
fn task_faults(file: &Path) -> String {
    let mut problems = Diagnostics::default();
    let task = read_task(file, FormatHints::default(), &mut problems);
    render_problems(problems, task.is_some())
}

fn render_problems(problems: Diagnostics, has_structure: bool) -> String {
    match problems.finish(()) {
        Ok(((), warnings)) => {
            assert!(has_structure, "neither a value nor a fault");
            warnings.iter().map(|warning| format!("{warning}\n")).collect()
        }
        Err(errors) => errors.to_string(),
    }
}

fn assert_names_all(what: &str, messages: &str, texts: &[String]) {
    let missing: Vec<_> = texts.iter().filter(|text| !messages.contains(*text)).collect();
    assert!(missing.is_empty(), "{what}: {missing:?} not in:\n{messages}");
}

#[test]
fn job_file_with_errors_reports_all() {
    for (name, texts) in ExpectedTrials::read().invalid_jobs {
        // A missing dataset is found later, when tasks are loaded.
        let texts: Vec<_> = texts.into_iter().filter(|text| text != "no-such-directory").collect();
        let messages = job_faults(&fixtures().join("jobs").join(&name));
        assert_names_all(&name, &messages, &texts);
    }
}

#[test]
fn task_file_with_errors_reports_all() {
    for (name, texts) in ExpectedTrials::read().invalid_tasks {
        let file = fixtures().join("tasks/bad-toml").join(&name).join("task.toml");
        assert_names_all(&name, &task_faults(&file), &texts);
    }
}

#[test]
fn fixture_configs_are_valid() {
    let values = [
        ("PROVIDER", "docker"),
        ("MARK", "m"),
        ("BYTES", "1"),
        ("PROJECT", "/p"),
        ("ATTEMPTS", "1"),
        ("FIXTURES", "/fixtures"),
        ("HARBOR_EXCEPT", "[]"),
        ("ROLLOUT_EXCEPT", "[]"),
    ];
    for entry in fixtures().join("jobs").read_dir().expect("jobs") {
        let entry = entry.expect("an entry");
        if entry.path().is_file() {
            let name = entry.file_name();
            let name = name.to_str().expect("a name");
            let project = Project::new("unused").job(name, &values);
            assert_eq!(job_faults(&project.path().join("job.yaml")), "", "{name}");
        }
    }
    for dataset in ["faults", "agents", "slow"] {
        for task in fixtures().join("tasks").join(dataset).read_dir().expect("tasks") {
            let name = task.expect("an entry").file_name();
            let name = name.to_str().expect("a name");
            let values = [("REGISTRY", "registry.test")];
            let project = Project::new("unused").tasks([&*format!("{dataset}/{name}")], &values);
            let file = project.path().join("tasks").join(name).join("task.toml");
            assert_eq!(task_faults(&file), "", "{dataset}/{name}");
        }
    }
}

#[test]
fn example_configs_are_valid() {
    for example in ["quickstart", "docker"] {
        let directory = repository().join("examples").join(example);
        assert_eq!(job_faults(&directory.join("job.yaml")), "", "{example}");
        for task in directory.join("tasks").read_dir().expect("tasks") {
            let file = task.expect("an entry").path().join("task.toml");
            assert_eq!(task_faults(&file), "", "{}", file.display());
        }
    }
}
