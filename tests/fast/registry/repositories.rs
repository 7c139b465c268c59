//! Repositories as datasets, single tasks, filters, Git LFS, and the errors for missing names.

use std::os::unix::fs::symlink;

use rollout_protocol::exit::ExitCode;
use serde_json::json;

use crate::registry::fixture::{DEADLINE, RegistryFixture};

fn task_names(fixture: &RegistryFixture) -> Vec<String> {
    fixture.tasks().into_keys().collect()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn repository_as_dataset_has_its_tasks() {
    let fixture = RegistryFixture::empty();
    fixture.repository("more", &owned(&["one", "two", "three"]), "first");
    fixture.git("more", &["tag", "-am", "v1", "v1"]);
    let tagged = fixture.git("more", &["rev-parse", "HEAD"]);
    fixture.commit("more", &owned(&["four"]), "second");
    let url = fixture.url("more");

    fixture.job(&format!("{{repo: '{url}'}}"));
    assert_eq!(task_names(&fixture), ["four", "one", "three", "two"]);
    fixture.job(&format!("{{repo: '{url}@v1', task_names: ['t*'], exclude_task_names: [two]}}"));
    assert_eq!(fixture.tasks().into_iter().collect::<Vec<_>>(), [("three".to_owned(), tagged)]);
    fixture.job("{repo: repos/more, ref: main, path: tasks, n_tasks: 2}");
    assert_eq!(task_names(&fixture), ["four", "one"]);

    let refusals = [
        (format!("{{repo: '{url}', ref: mian}}"), "did you mean `main`?"),
        (format!("{{repo: '{url}', task_names: [fuor]}}"), "did you mean `four`?"),
        (format!("{{repo: '{url}', path: nowhere}}"), "no task"),
        (format!("{{repo: '{url}-gone'}}"), "cannot fetch the repository"),
        (
            format!("{{repo: '{url}', ref: 0123456789abcdef0123456789abcdef01234567}}"),
            "the commit 0123456789abcdef0123456789abcdef01234567, which is not in",
        ),
    ];
    for (dataset, expected) in refusals {
        fixture.job(&dataset);
        let stderr = fixture.refusal();
        assert!(stderr.contains(expected), "{dataset}: {stderr}");
    }
}

#[test]
fn task_names_that_clash_are_refused() {
    let fixture = RegistryFixture::empty();
    fixture.repository("one", &owned(&["a", "b"]), "first");
    fixture.repository("two", &owned(&["b", "c"]), "first");
    let (one, two) = (fixture.url("one"), fixture.url("two"));
    let tasks = format!(
        "name: j\nagents: [{{name: nop}}]\nenvironment: {{type: process}}\n\
         tasks: [{{path: repos/one/tasks/a}}, {{git_url: '{two}', path: ./tasks/c/}}]\n"
    );
    fixture.write("job.yaml", &tasks);
    assert_eq!(task_names(&fixture), ["a", "c"]);

    fixture.registry(&json!({"datasets": [{"name": "both", "tasks": [
        {"git_url": one, "path": "tasks/b"}, {"git_url": two, "path": "tasks/b"},
    ]}]}));
    fixture.job("{registry: {path: registry.json}, name: both}");
    let stderr = fixture.refusal();
    assert!(stderr.contains("the name `b`") && stderr.contains("one `tasks/b`"), "{stderr}");
    fixture.job("{registry: {path: registry.json}, name: bhot}");
    assert!(fixture.refusal().contains("did you mean `both`?"));
    fixture.job("{registry: {path: registry.json}, name: both, version: '3'}");
    assert!(fixture.refusal().contains("version 3 of `both`"));
    fixture.registry(&json!([{"name": "both", "tasks": [{"git_url": one, "path": "tasks/bb"}]}]));
    fixture.job("{registry: {path: registry.json}, name: both}");
    let said = fixture.refusal();
    assert!(said.contains("`tasks/bb`, which is not in") && said.contains("`tasks/b`"), "{said}");
}

#[test]
fn dataset_versions_run_side_by_side() {
    let fixture = RegistryFixture::new();
    let version = |version: &str| {
        format!(
            "{{registry: {{path: registry.json}}, name: bench, version: '{version}', n_tasks: 2}}"
        )
    };
    fixture.job(&format!("{}, {}", version("1.0"), version("2.0")));
    let ended = fixture.start(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let ended_with_first =
        ended.expect_stderr("dataset bench@1.0: 2 tasks, format rollout (2 guessed; ");
    let _said =
        ended_with_first.expect_stderr("dataset bench@2.0: 2 tasks, format rollout (2 guessed; ");
    let result = fixture.project.results("j").job();
    let datasets = result["datasets"].as_array().expect("a list");
    let shown: Vec<_> = (datasets.iter())
        .map(|dataset| (&dataset["dataset_name"], &dataset["version"], &dataset["description"]))
        .collect();
    let null = serde_json::Value::Null;
    assert_eq!(
        shown,
        [
            (&json!("bench@1.0"), &json!("1.0"), &json!("pinned")),
            (&json!("bench@2.0"), &json!("2.0"), &null),
        ]
    );
    assert_eq!(result["completed_trials"], 4);

    // The same version twice is refused.
    fixture.job(&format!("{}, {}", version("1.0"), version("1.0")));
    assert!(fixture.refusal().contains("the dataset name `bench`"));
}

#[test]
fn symlink_and_hooks_of_repository_are_harmless() {
    let fixture = RegistryFixture::empty();
    let root = fixture.path("").display().to_string();
    fixture.repository("evil", &owned(&["good"]), "first");
    fixture.write("repos/evil/.gitattributes", "* filter=run\n");
    fixture.write("repos/evil/.lfsconfig", "[filter \"run\"]\nsmudge = touch ran\n");
    fixture
        .program("repos/evil/.git/hooks/post-checkout", &format!("#!/bin/sh\ntouch {root}/ran\n"));
    fixture.write("outside/task.toml", "version = \"1.0\"\n");
    symlink(fixture.path("outside"), fixture.path("repos/evil/linked")).expect("a link");
    fixture.git("evil", &["add", "-A"]);
    fixture.git("evil", &["commit", "-qm", "second"]);
    let url = fixture.url("evil");
    fixture.job(&format!("{{repo: '{url}'}}"));
    assert_eq!(task_names(&fixture), ["good"]);
    assert!(!fixture.path("ran").exists());
    fixture.registry(&json!([{"name": "x", "tasks": [{"git_url": url, "path": "linked"}]}]));
    fixture.job("{registry: {path: registry.json}, name: x}");
    assert!(fixture.refusal().contains("`linked`, which is not in"));
    for (task, expected) in [
        (json!({"git_url": "ext::sh -c date", "path": "a"}), "git_url"),
        (json!({"git_url": "--upload-pack=touch", "path": "a"}), "git_url"),
        (json!({"git_url": url, "path": "../x"}), "task path"),
        (json!({"git_url": url, "path": ".git/hooks"}), "task path"),
    ] {
        fixture.registry(&json!([{"name": "x", "tasks": [task]}]));
        let stderr = fixture.refusal();
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn lfs_pointers_without_git_lfs_fail_task() {
    let fixture = RegistryFixture::empty();
    fixture.repository("large", &owned(&["big", "small"]), "first");
    let script = "grep -qx large /tests/data.txt && echo 1 > /logs/verifier/reward.txt\n";
    fixture.write("repos/large/tasks/big/tests/test.sh", script);
    fixture.keep_in_lfs("large", "tasks/big/tests/data.txt", "large\n");
    fixture.job(&format!("{{repo: '{}', name: d}}", fixture.url("large")));
    let results = fixture.project.results("j");
    let run = |arguments: &[&str]| {
        let all: Vec<&str> = ["run", "job.yaml"].iter().chain(arguments).copied().collect();
        fixture.start(&all).wait(DEADLINE)
    };
    let ended = run(&[]).expect_code(ExitCode::Success);
    assert!(ended.stderr.contains("`git-lfs` is not installed"), "{}", ended.stderr);
    let big = results.trial("nop", "big");
    assert_eq!((big.error(), big.reward()), (Some("task_invalid"), None));
    assert_eq!(big.result["error"]["code"], "missing_file");
    assert!(big.message().contains("the first `tests/data.txt`"), "{}", big.message());
    assert_eq!(results.trial("nop", "small").reward(), Some(1.0));
    let refused = run(&["--strict", "--name", "strict"]).expect_code(ExitCode::Config);
    assert!(refused.stderr.contains("a pointer to Git LFS"), "{}", refused.stderr);

    if !fixture.install_lfs() {
        return;
    }
    // The cache has the pointers; git-lfs replaces them.
    let ended = run(&["--name", "again"]).expect_code(ExitCode::Success);
    assert!(!ended.stderr.contains("git-lfs"), "{}", ended.stderr);
    let results = fixture.project.results("again");
    assert_eq!(results.trial("nop", "big").reward(), Some(1.0));
    assert_eq!(results.trial("nop", "small").reward(), Some(1.0));
    // Cached files need no repository.
    fixture.remove_repositories();
    let _ended = run(&["--name", "offline"]).expect_code(ExitCode::Success);
    assert_eq!(fixture.project.results("offline").trial("nop", "big").reward(), Some(1.0));
}
