//! Tasks of a registry that are not selected, tasks that their repository lacks, and
//! repositories that do not answer.

use std::collections::BTreeMap;

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

#[test]
fn abbreviated_commit_id_is_resolved_by_one_fetch_and_a_branch_of_that_name_wins() {
    let fixture = RegistryFixture::empty();
    let (mut entries, mut expected) = (Vec::new(), BTreeMap::new());
    // The server of the second repository sends the files, too.
    for repository in ["alpha", "beta"] {
        let [first, second, third] = ["first", "second", "third"].map(|text| {
            let tasks = ["t".to_owned()];
            match text {
                "first" => fixture.repository(repository, &tasks, text),
                _ => fixture.commit(repository, &tasks, text),
            }
        });
        let _created = fixture.git(repository, &["branch", &first[..8], &third]);
        let upper = second[..9].to_ascii_uppercase();
        for (end, written, commit) in [
            ("first", &first[..9], &first),
            ("second", upper.as_str(), &second),
            ("branch", &first[..8], &third),
        ] {
            let (name, url) = (format!("{repository}-{end}"), fixture.url(repository));
            entries.push(
                json!({"name": name, "git_url": url, "git_commit_id": written, "path": "tasks/t"}),
            );
            expected.insert(name, commit.clone());
        }
    }
    fixture.registry(&json!([{"name": "mixed", "tasks": entries}]));
    fixture.job(&dataset(""));
    // The second run has the commits in its cache.
    for _ in 0..2 {
        assert_eq!(fixture.tasks(), expected);
        assert_eq!(fixture.calls("fetch", "--filter=tree:0"), 2, "one for each repository");
    }
}

#[test]
fn abbreviated_commit_id_of_several_commits_or_none_fails_its_trial() {
    let fixture = RegistryFixture::empty();
    fixture.repository("here", &["alpha".to_owned()], "first");
    let url = fixture.url("here");
    let (ambiguous, unknown) = (common_beginning_of_two_commits(&fixture), "0".repeat(20));
    let entry = |name: &str, id: &str| json!({"name": name, "git_url": url, "git_commit_id": id, "path": "tasks/alpha"});
    let tasks = [entry("alpha", "main"), entry("several", &ambiguous), entry("none", &unknown)];
    fixture.registry(&json!([{"name": "mixed", "tasks": tasks}]));
    fixture.job(&dataset(""));
    let ended = fixture.start(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let results = fixture.project.results("j");
    assert_eq!(results.trial("nop", "alpha").reward(), Some(1.0), "{}", ended.stderr);
    for (name, text) in [
        ("several", format!("the commit {ambiguous}, which is ambiguous")),
        ("none", format!("`{unknown}`, which is not a branch or tag")),
    ] {
        let trial = results.trial("nop", name);
        assert_eq!((trial.error(), trial.reward()), (Some("task_not_found"), None), "{name}");
        assert!(trial.message().contains(&text), "{}", trial.message());
    }
}

#[test]
fn outage_of_a_lookup_of_commits_refuses_the_run_and_names_the_reference() {
    let fixture = RegistryFixture::empty();
    fixture.repository("here", &["alpha".to_owned()], "first");
    let url = fixture.url("here");
    let entry = |name: &str, id: &str| json!({"name": name, "git_url": url, "git_commit_id": id, "path": "tasks/alpha"});
    let tasks = [entry("alpha", "main"), entry("hex", "deadbeef")];
    fixture.registry(&json!([{"name": "mixed", "tasks": tasks}]));
    fixture.job(&dataset(""));
    fixture.write("lookup-error", "fatal: early EOF\n");
    let run = || fixture.start(&["run", "job.yaml"]).wait(DEADLINE);
    let refused = run().expect_code(ExitCode::Config);
    let _said = refused.expect_stderr(
        "in which `deadbeef` is not a branch or tag and may be the id of a commit: early EOF",
    );
    assert!(!fixture.path("jobs/j").exists(), "an outage decided about trials");
    // Commits are asked for again, and files are not.
    for word in ["--filter=tree:0", "+refs/heads/*:refs/fetched/heads/*"] {
        assert_eq!(fixture.calls("fetch", word), 2, "{word}");
    }
    std::fs::remove_file(fixture.path("lookup-error")).expect("removed");
    let ended = run().expect_code(ExitCode::Success);
    let results = fixture.project.results("j");
    assert_eq!(results.trial("nop", "alpha").reward(), Some(1.0), "{}", ended.stderr);
    assert_eq!(results.trial("nop", "hex").error(), Some("task_not_found"));
}

#[test]
fn server_that_refuses_commits_without_files_is_asked_for_all() {
    for said in [
        "error: RPC failed; HTTP 500 curl 22 The requested URL returned error: 500\nfatal: early EOF\n",
        "fatal: the remote end hung up unexpectedly\n",
    ] {
        let fixture = RegistryFixture::empty();
        let commit = fixture.repository("here", &["alpha".to_owned()], "first");
        let (url, id) = (fixture.url("here"), &commit[..9]);
        let entry =
            json!({"name": "hex", "git_url": url, "git_commit_id": id, "path": "tasks/alpha"});
        fixture.registry(&json!([{"name": "mixed", "tasks": [entry]}]));
        fixture.job(&dataset(""));
        fixture.write("lookup-error", said);
        assert_eq!(fixture.tasks(), BTreeMap::from([("hex".to_owned(), commit)]), "{said}");
        for (word, fetches) in [("--filter=tree:0", 1), ("+refs/heads/*:refs/fetched/heads/*", 2)] {
            assert_eq!(fixture.calls("fetch", word), fetches, "{word}");
        }
    }
}

/// Adds two commits whose ids have the same first four digits, a letter among them, with a branch each, and
/// returns these.
fn common_beginning_of_two_commits(fixture: &RegistryFixture) -> String {
    let mut known = BTreeMap::new();
    for number in 0..5_000 {
        let message = number.to_string();
        let id = fixture.git("here", &["commit-tree", "-m", &message, "HEAD^{tree}"]);
        let beginning = id[..4].to_owned();
        if beginning.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        if let Some(other) = known.insert(beginning.clone(), id.clone()) {
            let _created = fixture.git("here", &["branch", "one", &other]);
            let _created = fixture.git("here", &["branch", "two", &id]);
            return beginning;
        }
    }
    panic!("5000 commits have ids with different first four digits");
}
