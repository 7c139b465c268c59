//! Searches on a server.

use std::path::Path;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check::assert_no_leaks;
use rollout_tests::project::Project;
use rollout_tests::search::ExampleSearch;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, project, submitted};

/// Longer than an eval takes.
const QUIET: Duration = Duration::from_secs(4);

/// The example with evals of about a second.
pub(crate) fn example() -> ExampleSearch {
    ExampleSearch::example("tree.yaml")
        .with_replacement("max_depth: 3", "max_depth: 2")
        .with_replacement("eval_timeout_seconds: 8", "eval_timeout_seconds: 5")
        .with_replacement("k < 2000", "k < 300")
        .with_replacement("run: bash search/implement", "run: sleep 0.5; bash search/implement")
}

fn searching() -> Project {
    example().write(project())
}

fn start(project: &Project) -> DaemonProcess {
    let examples = project.path().join("examples").display().to_string();
    DaemonProcess::start(project, &["--allow-path", &examples])
}

/// The search as another host submits it.
pub(crate) fn submission(project: &Project) -> Value {
    let directory = project.path().join("examples/tree");
    let text = std::fs::read_to_string(directory.join("tree.yaml")).expect("a search");
    let absolute = |text: String, key: &str, name: &str| {
        let (before, path) = (format!("{key}: {name}\n"), directory.join(name));
        assert!(text.contains(&before), "{text}");
        text.replace(&before, &format!("{key}: {}\n", path.display()))
    };
    let text = absolute(text, "repository", "program");
    let text = absolute(text, "root_baseline_csv", "baseline.csv");
    json!({ "kind": "tree", "document": text })
}

/// The parts of an overview that do not depend on the name of the search.
pub(crate) fn results(overview: &Value) -> Value {
    let ideas = overview["ideas"]
        .as_array()
        .expect("ideas")
        .iter()
        .map(|idea| json!([idea["depth"], idea["idea"], idea["outcome"], idea["status"]]));
    json!({
        "stop_reason": overview["stop_reason"], "nodes": overview["nodes"],
        "evals": overview["evals"], "settled": overview["settled"],
        "counts": overview["counts"], "ideas": ideas.collect::<Vec<_>>(),
    })
}

/// The results of the same search on this host.
fn undisturbed(project: &Project) -> Value {
    let run = ["tree", "run", "examples/tree/tree.yaml", "--runs-root", "undisturbed"];
    let _ended = project.rollout(&run).wait(DEADLINE).expect_code(ExitCode::Success);
    let show = ["tree", "show", "undisturbed/integrate", "--json"];
    let shown = project.rollout(&show).wait(DEADLINE).expect_code(ExitCode::Success);
    results(&serde_json::from_str(&shown.stdout).expect("JSON"))
}

fn evals_settled(daemon: &DaemonProcess, id: &str) -> u64 {
    let overview = daemon.client.get(&format!("/v1/runs/{id}/search"));
    match overview.status {
        200 => overview.json()["settled"].as_u64().expect("a number"),
        _ => 0,
    }
}

#[test]
fn killed_daemon_goes_on_with_a_search_and_its_results_are_the_same() {
    let project = searching();
    let expected = undisturbed(&project);
    let mut daemon = start(&project);
    let id = submitted(&daemon.client, &submission(&project));
    for least in [1, 4] {
        wait::until(DEADLINE, "evals have ended", || evals_settled(&daemon, &id) >= least);
        daemon.process.signal(Signal::KILL);
        let _killed = daemon.process.wait(DEADLINE);
        daemon = start(&project);
    }
    let run = daemon.wait_for(&id, &["completed", "failed"]);
    assert_eq!((&run["state"], &run["code"]), (&json!("completed"), &json!(0)), "{run:#}");
    assert_eq!(run["kind"], json!("tree"));
    let overview = daemon.client.get(&format!("/v1/runs/{id}/search")).expect(200).json();
    assert_eq!(results(&overview), expected);

    let listed = daemon.client.get("/v1/runs?state=completed").expect(200).json();
    assert_eq!(listed["runs"][0]["id"], json!(id));
    let lines: Vec<_> = daemon.client.follow(&format!("/v1/runs/{id}/events"), &[]).collect();
    let numbers = lines.iter().filter_map(|line| line.strip_prefix("id: ")?.parse::<u64>().ok());
    let numbers: Vec<_> = numbers.collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let of_kind =
        |kind: &str| lines.iter().filter(|line| **line == format!("event: {kind}")).count();
    assert!(of_kind("search_started") >= 3, "a session each: {lines:#?}");
    assert!(of_kind("eval_ended") > 0 && of_kind("end") == 1, "{lines:#?}");
    for path in ["items", "items/x", "trials", "export?format=csv"] {
        let _refused = daemon.client.get(&format!("/v1/runs/{id}/{path}")).expect(409);
    }
    let deleted = daemon.client.send("DELETE", &format!("/v1/runs/{id}"), &[], b"");
    let _deleted = deleted.expect("an answer").expect(204);
    assert_eq!(files_of(&project.path().join("state"), &id), 0);
    daemon.process.signal(Signal::TERM);
    let _ended = daemon.process.wait(DEADLINE);
    assert_no_leaks(&project);
}

/// Files and directories of a run in a state directory.
fn files_of(state: &Path, id: &str) -> usize {
    let entries = ["runs", "jobs"].into_iter().flat_map(|name| {
        std::fs::read_dir(state.join(name))
            .expect("a directory")
            .map(|entry| entry.expect("an entry"))
    });
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(id)).count()
}

#[test]
fn search_is_paused_continued_and_cancelled() {
    let project = searching();
    let daemon = start(&project);
    let id = submitted(&daemon.client, &submission(&project));
    let request = |verb: &str| {
        let path = format!("/v1/runs/{id}/{verb}");
        let _accepted = daemon.client.post(&path, &[], &json!(null)).expect(202);
    };
    wait::until(DEADLINE, "an eval has ended", || evals_settled(&daemon, &id) >= 1);
    request("pause");
    let run = daemon.wait_for(&id, &["paused"]);
    assert_eq!(run["is_final"], json!(false));
    // Running commands end, and no eval begins: evals take less than two seconds.
    let mut settled = 0;
    wait::until(DEADLINE, "no eval ends any more", || {
        settled = evals_settled(&daemon, &id);
        !wait::holds_within(QUIET, || evals_settled(&daemon, &id) != settled)
    });
    request("continue");
    wait::until(DEADLINE, "another eval has ended", || evals_settled(&daemon, &id) > settled);
    request("cancel");
    let run = daemon.wait_for(&id, &["cancelled"]);
    assert_eq!(run["is_final"], json!(true), "{run:#}");
    daemon.stop();
    assert_no_leaks(&project);
}

#[test]
fn search_that_the_rules_forbid_or_that_is_invalid_is_refused() {
    let project = searching();
    let daemon = DaemonProcess::start(&project, &[]);
    let refused = daemon.client.post("/v1/runs", &[], &submission(&project)).expect(422).json();
    let details = refused["details"].to_string();
    assert!(details.contains("examples/tree/program"), "{refused:#}");
    let headers = [("content-type", "application/yaml")];
    let invalid = b"ideas_per_node: none\n";
    let refused = daemon.client.send("POST", "/v1/runs?kind=tree", &headers, invalid);
    let refused = refused.expect("an answer").expect(422).json();
    assert!(!refused["details"].as_array().expect("details").is_empty(), "{refused:#}");
}
