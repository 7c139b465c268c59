//! Repositories as datasets, single tasks, filters, Git LFS, and the errors for missing names.

use std::os::unix::fs::symlink;

use rollout_protocol::exit::ExitCode;
use serde_json::json;

use crate::fixture::{DEADLINE, RegistryFixture};

fn task_names(lab: &RegistryFixture) -> Vec<String> {
    lab.tasks().into_keys().collect()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn repository_as_dataset_has_its_tasks() {
    let lab = RegistryFixture::empty();
    lab.repository("more", &owned(&["one", "two", "three"]), "first");
    lab.git("more", &["tag", "-am", "v1", "v1"]);
    let tagged = lab.git("more", &["rev-parse", "HEAD"]);
    lab.commit("more", &owned(&["four"]), "second");
    let url = lab.url("more");

    lab.job(&format!("{{repo: '{url}'}}"));
    assert_eq!(task_names(&lab), ["four", "one", "three", "two"]);
    lab.job(&format!("{{repo: '{url}@v1', task_names: ['t*'], exclude_task_names: [two]}}"));
    assert_eq!(lab.tasks().into_iter().collect::<Vec<_>>(), [("three".to_owned(), tagged)]);
    lab.job("{repo: repos/more, ref: main, path: tasks, n_tasks: 2}");
    assert_eq!(task_names(&lab), ["four", "one"]);

    let refusals = [
        (format!("{{repo: '{url}', ref: mian}}"), "did you mean `main`?"),
        (format!("{{repo: '{url}', task_names: [fuor]}}"), "did you mean `four`?"),
        (format!("{{repo: '{url}', path: nowhere}}"), "no task"),
        (format!("{{repo: '{url}-gone'}}"), "cannot be reached"),
        (
            format!("{{repo: '{url}', ref: 0123456789abcdef0123456789abcdef01234567}}"),
            "the commit 0123456789abcdef0123456789abcdef01234567, which is not in",
        ),
    ];
    for (dataset, expected) in refusals {
        lab.job(&dataset);
        let said = lab.refusal();
        assert!(said.contains(expected), "{dataset}: {said}");
    }
}

#[test]
fn task_names_that_clash_are_refused() {
    let lab = RegistryFixture::empty();
    lab.repository("one", &owned(&["a", "b"]), "first");
    lab.repository("two", &owned(&["b", "c"]), "first");
    let (one, two) = (lab.url("one"), lab.url("two"));
    let tasks = format!(
        "name: j\nagents: [{{name: nop}}]\nenvironment: {{type: process}}\n\
         tasks: [{{path: repos/one/tasks/a}}, {{git_url: '{two}', path: ./tasks/c/}}]\n"
    );
    lab.write("job.yaml", &tasks);
    assert_eq!(task_names(&lab), ["a", "c"]);

    lab.registry(&json!({"datasets": [{"name": "both", "tasks": [
        {"git_url": one, "path": "tasks/b"}, {"git_url": two, "path": "tasks/b"},
    ]}]}));
    lab.job("{registry: {path: registry.json}, name: both}");
    let said = lab.refusal();
    assert!(said.contains("the name `b`") && said.contains("one `tasks/b`"), "{said}");
    lab.job("{registry: {path: registry.json}, name: bhot}");
    assert!(lab.refusal().contains("did you mean `both`?"));
    lab.job("{registry: {path: registry.json}, name: both, version: '3'}");
    assert!(lab.refusal().contains("version 3 of `both`"));
    lab.registry(&json!([{"name": "both", "tasks": [{"git_url": one, "path": "tasks/bb"}]}]));
    lab.job("{registry: {path: registry.json}, name: both}");
    let said = lab.refusal();
    assert!(said.contains("`tasks/bb`, which is not in") && said.contains("`tasks/b`"), "{said}");
}

#[test]
fn dataset_versions_run_side_by_side() {
    let lab = RegistryFixture::new();
    let version = |version: &str| {
        format!(
            "{{registry: {{path: registry.json}}, name: bench, version: '{version}', n_tasks: 2}}"
        )
    };
    lab.job(&format!("{}, {}", version("1.0"), version("2.0")));
    let ended = lab.start(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let said = ended.expect_stderr("dataset bench@1.0: 2 tasks, format harbor (2 guessed; ");
    let _said = said.expect_stderr("dataset bench@2.0: 2 tasks, format harbor (2 guessed; ");
    let result = lab.project.results("j").job();
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
    lab.job(&format!("{}, {}", version("1.0"), version("1.0")));
    assert!(lab.refusal().contains("the dataset name `bench`"));
}

#[test]
fn symlink_and_hooks_of_repository_are_harmless() {
    let lab = RegistryFixture::empty();
    let root = lab.path("").display().to_string();
    lab.repository("evil", &owned(&["good"]), "first");
    lab.write("repos/evil/.gitattributes", "* filter=run\n");
    lab.write("repos/evil/.lfsconfig", "[filter \"run\"]\nsmudge = touch ran\n");
    lab.program("repos/evil/.git/hooks/post-checkout", &format!("#!/bin/sh\ntouch {root}/ran\n"));
    lab.write("outside/task.toml", "version = \"1.0\"\n");
    symlink(lab.path("outside"), lab.path("repos/evil/linked")).expect("a link");
    lab.git("evil", &["add", "-A"]);
    lab.git("evil", &["commit", "-qm", "second"]);
    let url = lab.url("evil");
    lab.job(&format!("{{repo: '{url}'}}"));
    assert_eq!(task_names(&lab), ["good"]);
    assert!(!lab.path("ran").exists());
    lab.registry(&json!([{"name": "x", "tasks": [{"git_url": url, "path": "linked"}]}]));
    lab.job("{registry: {path: registry.json}, name: x}");
    assert!(lab.refusal().contains("`linked`, which is not in"));
    for (task, expected) in [
        (json!({"git_url": "ext::sh -c date", "path": "a"}), "git_url"),
        (json!({"git_url": "--upload-pack=touch", "path": "a"}), "git_url"),
        (json!({"git_url": url, "path": "../x"}), "task path"),
        (json!({"git_url": url, "path": ".git/hooks"}), "task path"),
    ] {
        lab.registry(&json!([{"name": "x", "tasks": [task]}]));
        let said = lab.refusal();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn lfs_pointers_without_git_lfs_fail_task() {
    let lab = RegistryFixture::empty();
    lab.repository("large", &owned(&["big", "small"]), "first");
    let script = "grep -qx large /tests/data.txt && echo 1 > /logs/verifier/reward.txt\n";
    lab.write("repos/large/tasks/big/tests/test.sh", script);
    lab.keep_in_lfs("large", "tasks/big/tests/data.txt", "large\n");
    lab.job(&format!("{{repo: '{}', name: d}}", lab.url("large")));
    let results = lab.project.results("j");
    let run = |arguments: &[&str]| {
        let all: Vec<&str> = ["run", "job.yaml"].iter().chain(arguments).copied().collect();
        lab.start(&all).wait(DEADLINE)
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

    if !lab.install_lfs() {
        return;
    }
    // The cache has the pointers; git-lfs replaces them.
    let ended = run(&["--name", "again"]).expect_code(ExitCode::Success);
    assert!(!ended.stderr.contains("git-lfs"), "{}", ended.stderr);
    let results = lab.project.results("again");
    assert_eq!(results.trial("nop", "big").reward(), Some(1.0));
    assert_eq!(results.trial("nop", "small").reward(), Some(1.0));
    // Cached files need no repository.
    lab.remove_repositories();
    let _ended = run(&["--name", "offline"]).expect_code(ExitCode::Success);
    assert_eq!(lab.project.results("offline").trial("nop", "big").reward(), Some(1.0));
}
