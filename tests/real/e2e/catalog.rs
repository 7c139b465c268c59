//! Runs in the catalog of a store in a directory, without a server.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::e2e::{DEADLINE, assert_adds_up, project};

/// A project with a finished run `faults` in the catalog of `store`, and the address of the catalog.
fn finished_run() -> (Project, String) {
    let project =
        project().tasks(["faults/passes"], &[]).job("faults.yaml", &[("PROVIDER", "process")]);
    let url = format!("file://{}", project.path().join("store").display());
    let arguments = ["run", "job.yaml", "--sink", "catalog", "--store", &url];
    let ended = run(&project, &arguments);
    assert!(ended.status.success(), "{}", ended.stderr);
    (project, url)
}

fn run(project: &Project, arguments: &[&str]) -> ProgramExit {
    project.rollout(arguments).wait(DEADLINE)
}

fn read(project: &Project, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    let ended = run(project, &arguments).expect_code(ExitCode::Success);
    serde_json::from_str(&ended.stdout).expect("JSON")
}

#[test]
fn run_in_catalog_is_read_after_its_directory_is_gone() {
    let (project, url) = finished_run();
    let results = project.results("faults");
    assert_adds_up(&results, 1);
    let trial = &results.trials()[0];
    let mut names: Vec<_> = fs::read_dir(&trial.directory).expect("a directory").collect();
    assert_eq!(names.len(), 1, "only `result.json`: {names:?}");
    names.clear();
    let before = read(&project, &["status", "jobs/faults"]);
    let name = trial.name.clone();
    let shown = run(&project, &["logs", "jobs/faults", &name]).stdout;
    let export = ["--format", "jsonl"];
    let exported = run(&project, &[&["export", "jobs/faults"], &export[..]].concat()).stdout;
    fs::remove_dir_all(results.path()).expect("removable");

    let after = read(&project, &["status", &url]);
    for key in ["job", "state", "counts", "total_cost", "headline"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    assert_eq!(run(&project, &["logs", &url, &name]).stdout, shown);
    assert_eq!(run(&project, &[&["export", &url], &export[..]].concat()).stdout, exported);
    let detail = read(&project, &["show", &url, "passes"]);
    assert_eq!(detail["executions"].as_array().map(Vec::len), Some(1), "{detail}");
    let events = run(&project, &["events", &url]).expect_code(ExitCode::Success);
    assert!(events.stdout.contains("run_ended"), "{}", events.stdout);
    let runs = read(&project, &["list", &url]);
    let run_of = &runs["runs"][0];
    assert_eq!((&run_of["name"], &run_of["state"]), (&"faults".into(), &"completed".into()));
    let absent = run(&project, &["status", &format!("{url}#other")]).expect_code(ExitCode::Config);
    assert!(absent.stderr.contains("no run other"), "{}", absent.stderr);
    for command in [&["resume", &url][..], &["retry", &url, "--failed"]] {
        let refused = run(&project, command).expect_code(ExitCode::Config);
        assert!(refused.stderr.contains("--nats"), "{}", refused.stderr);
    }
}

#[test]
fn run_in_catalog_stays_there_until_it_is_forgotten() {
    let (project, url) = finished_run();
    let again = run(&project, &["run", "job.yaml"]).expect_code(ExitCode::Success);
    assert!(again.stderr.is_empty() || !again.stderr.contains("warn"), "{}", again.stderr);
    let local = run(&project, &["run", "job.yaml", "--sink", "local"]);
    assert!(local.expect_code(ExitCode::Config).stderr.contains("catalog"));
    let id = read(&project, &["status", &url])["run"].as_str().expect("an id").to_owned();
    let verified = read(&project, &["blob", "verify", "--store", &url]);
    assert_eq!(verified["problems"].as_array().map(Vec::len), Some(0), "{verified}");

    fs::remove_dir_all(project.results("faults").path()).expect("removable");
    let gc = |more: &[&str]| {
        let arguments = [&["gc", "--store", &url, "--grace", "0s"], more].concat();
        read(&project, &arguments)
    };
    let exported = run(&project, &["export", &url, "--format", "jsonl"]).stdout;
    assert!(exported.contains("passes"), "{exported}");
    // Files that a later session replaced are not needed.
    let kept = gc(&[]);
    assert_eq!(kept["kept_runs"], 1, "{kept}");
    assert_eq!(gc(&[])["removed"]["blobs"], 0);
    assert_eq!(run(&project, &["export", &url, "--format", "jsonl"]).stdout, exported);
    let removed = gc(&["--forget", &id, "--remove-store"]);
    assert_eq!(removed["store_removed"], true, "{removed}");
}
