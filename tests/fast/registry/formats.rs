//! Formats of tasks: the same for a directory, a repository and a registry.

use rollout_protocol::exit::ExitCode;
use serde_json::{Value, json};

use crate::registry::fixture::{DEADLINE, RegistryFixture};

/// Tests that end with code 1 and leave a reward.
const FAILING: &str = "echo 1 > /logs/verifier/reward.txt\nexit 1\n";

/// Names of tasks with `task.toml`, tests, and the outcome of a trial.
const TASKS: [(&str, &str, &str, &str); 5] = [
    ("plain", "version = '1.0'\n", "", "failed"),
    ("comment", "version = '1.0'\n", "# reward.json is not read\n", "failed"),
    ("stated", "format = 'rollout'\n", "cat /logs/artifacts/x || true\n", "failed"),
    ("harbor", "format = 'harbor'\n", "", "completed"),
    // The form of the tasks of Terminal-Bench 2.
    (
        "bench",
        "version = '1.0'\n[metadata]\ndifficulty = 'hard'\n[environment]\nmemory = '2G'\n",
        "true pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA\n",
        "completed",
    ),
];

fn write_tasks(fixture: &RegistryFixture) {
    fixture.repository("formats", &[], "first");
    for (name, toml, tests, _) in TASKS {
        let dir = format!("repos/formats/tasks/{name}");
        fixture.write(&format!("{dir}/task.toml"), toml);
        fixture.write(&format!("{dir}/instruction.md"), "Do it.\n");
        fixture.write(&format!("{dir}/tests/expected.json"), "{\"file\": \"reward.json\"}\n");
        fixture.write(&format!("{dir}/tests/test.sh"), &format!("{tests}{FAILING}"));
    }
    fixture.git("formats", &["add", "-A"]);
    fixture.git("formats", &["commit", "-qm", "tasks"]);
    fixture.registry(&json!([{"name": "formats", "tasks": entries(fixture)}]));
}

/// The tasks as entries of a registry.
fn entries(fixture: &RegistryFixture) -> Vec<Value> {
    let url = fixture.url("formats");
    let entry = |name: &str| json!({"git_url": url, "path": format!("tasks/{name}")});
    TASKS.iter().map(|(name, ..)| entry(name)).collect()
}

#[test]
fn task_has_one_verdict_whatever_its_source() {
    let fixture = RegistryFixture::empty();
    write_tasks(&fixture);
    let url = fixture.url("formats");
    for (source, words) in [
        ("path", vec!["-p", "repos/formats/tasks"]),
        ("repo", vec!["--repo", &url]),
        ("registry", vec!["-d", "formats", "--registry", "registry.json"]),
    ] {
        let common = ["run", "-a", "nop", "-e", "process", "--name", source];
        let words = [&common[..], &words[..]].concat();
        let ended = fixture.start(&words).wait(DEADLINE).expect_code(ExitCode::Success);
        let results = fixture.project.results(source);
        for (task, _, _, outcome) in TASKS {
            let trial = results.trial("nop", task);
            assert_eq!(trial.result["outcome"], outcome, "{source} {task}: {}", ended.stderr);
            let doubt = match task {
                "plain" | "comment" | "bench" => json!("test_exit"),
                _ => json!(null),
            };
            assert_eq!(trial.result["format_doubt"], doubt, "{source} {task}");
        }
        assert_eq!(results.job()["format_doubt_trials"], 3, "{source}");
        let said = "3 trials could have another verdict in the other format of their task";
        assert!(ended.stdout.contains(said), "{}", ended.stdout);
    }
    let checked = fixture.start(&["check", "repos/formats/tasks"]).wait(DEADLINE);
    for line in [
        "plain: format rollout, guessed: no key, file or command is specific to Harbor",
        "bench: format harbor, guessed: a command of `tests/test.sh` uses `ctrf.json`",
    ] {
        assert!(checked.stdout.contains(line), "{}", checked.stdout);
    }
    assert!(!checked.stdout.contains("stated: format rollout, guessed"), "{}", checked.stdout);
}

#[test]
fn registry_states_the_format_of_the_tasks_of_a_dataset() {
    let fixture = RegistryFixture::empty();
    write_tasks(&fixture);
    let tasks = entries(&fixture);
    let dataset =
        |name: &str, format: &str| json!({"name": name, "format": format, "tasks": tasks});
    let known = [dataset("as-rollout", "rollout"), dataset("as-harbor", "harbor")];
    fixture.registry(&json!(known));
    let run = |dataset: &str, name: &str, more: &[&str]| {
        let words = ["run", "-a", "nop", "-e", "process", "--name", name, "-d", dataset];
        let words = [&words[..], &["--registry", "registry.json"], more].concat();
        fixture.start(&words).wait(DEADLINE)
    };
    // The entry is stronger than the key of a task; the job is stronger than the entry.
    for (dataset, more, format, outcome) in [
        ("as-rollout", &[][..], "rollout", "failed"),
        ("as-harbor", &[][..], "harbor", "completed"),
        ("as-rollout", &["--format", "harbor"][..], "harbor", "completed"),
    ] {
        let name = format!("{dataset}-{format}");
        let ended = run(dataset, &name, more).expect_code(ExitCode::Success);
        let line = format!("dataset {dataset}: {} tasks, format {format}", TASKS.len());
        let is_said = ended.stderr.contains(&line) && !ended.stderr.contains("guessed");
        assert!(is_said, "{name}: {}", ended.stderr);
        let results = fixture.project.results(&name);
        for (task, ..) in TASKS {
            let trial = results.trial("nop", task);
            assert_eq!(trial.result["task"]["format"], format, "{name} {task}");
            assert_eq!(trial.result["outcome"], outcome, "{name} {task}: {}", trial.message());
            assert_eq!(trial.result["format_doubt"], json!(null), "{name} {task}");
        }
    }
    // `check` has no registry, and takes the format of its entry as an option. An image is what
    // the task lacks for a container.
    for format in ["rollout", "harbor"] {
        let words =
            ["check", "repos/formats/tasks/bench", "--format", format, "--environment", "process"];
        let checked = fixture.start(&words).wait(DEADLINE).expect_code(ExitCode::Success);
        let line = format!(": format {format}, as requested\n");
        assert!(checked.stdout.contains(&line), "{}", checked.stdout);
    }
    fixture.registry(&json!([dataset("other", "other")]));
    let refused = run("other", "other", &[]).expect_code(ExitCode::Config);
    assert!(refused.stderr.contains("cannot read the registry"), "{}", refused.stderr);
}
