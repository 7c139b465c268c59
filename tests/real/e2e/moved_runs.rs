//! Run directories and stores that were moved or are no longer used.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use rollout_tests::wait;

use crate::e2e::{DEADLINE, assert_adds_up, project};

fn finished_project() -> Project {
    let project =
        project().tasks(["faults/passes"], &[]).job("faults.yaml", &[("PROVIDER", "process")]);
    let _ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    project
}

fn export(project: &Project, run_dir: &str) -> String {
    let arguments = ["export", run_dir, "--format", "jsonl"];
    project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success).stdout
}

#[test]
fn moved_run_results_are_found() {
    let project = finished_project();
    let path = |name: &str| project.path().join(name);
    let exported = export(&project, "jobs/faults");
    assert!(exported.contains("passes"), "{exported}");
    // The run directory alone is moved.
    fs::create_dir(path("archive")).expect("creatable");
    fs::rename(path("jobs/faults"), path("archive/faults")).expect("movable");
    assert_eq!(export(&project, "archive/faults"), exported);
    // Everything is moved.
    fs::rename(path("archive/faults"), path("jobs/faults")).expect("movable");
    fs::rename(path("jobs"), path("other")).expect("movable");
    assert_eq!(export(&project, "other/faults"), exported);
    // Without the store, the error names it.
    fs::rename(path("other/.rollout/blobs"), path("blobs")).expect("movable");
    let arguments = ["export", "other/faults", "--format", "jsonl"];
    let refused = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Failure);
    let was = path("jobs/.rollout/blobs").canonicalize().unwrap_or(path("jobs/.rollout/blobs"));
    for text in ["--store URL", was.to_str().expect("text"), "identity"] {
        assert!(refused.stderr.contains(text), "no {text:?} in {}", refused.stderr);
    }
    let arguments = [&arguments[..], &["--store", "blobs"]].concat();
    let named = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(named.stdout, exported);
}

#[test]
fn moved_run_resumes_with_its_store() {
    let project = finished_project();
    let results = project.results("faults");
    fs::remove_dir_all(results.path().join("note")).expect("removable");
    fs::rename(project.path().join("jobs"), project.path().join("away")).expect("movable");
    fs::create_dir(project.path().join("jobs")).expect("creatable");
    fs::rename(project.path().join("away/faults"), results.path()).expect("movable");
    // Both recorded paths to the store are wrong now.
    let refused =
        project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Failure);
    assert!(refused.stderr.contains("with `--store URL`"), "{}", refused.stderr);
    // Another store has no blobs of the trial.
    let arguments = ["run", "job.yaml", "--store", "jobs/.rollout/blobs"];
    let failed = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Failure);
    assert!(failed.stderr.contains("their results are kept"), "{}", failed.stderr);
    let arguments = ["run", "job.yaml", "--store", "away/.rollout/blobs"];
    let _ended = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(&results, 1);
    assert!(results.trial("note", "passes").text("logs/agent/note.txt").is_some());
}

#[test]
fn store_unused_by_any_run_is_removed() {
    let project = finished_project();
    let store = project.path().join("jobs/.rollout/blobs");
    let arguments = ["gc", "--store", "jobs/.rollout/blobs", "--grace", "0"];
    let kept = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(kept.stdout.contains("removed 0 blobs"), "{}", kept.stdout);
    fs::remove_dir_all(project.results("faults").path()).expect("removable");
    let refused = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Config);
    for text in ["removed or moved", "jobs/faults (run ", "--force"] {
        assert!(refused.stderr.contains(text), "no {text:?} in {}", refused.stderr);
    }
    let arguments = [&arguments[..], &["--force", "--remove-store"]].concat();
    let dry = [&arguments[..], &["--dry-run"]].concat();
    let removed = project.rollout(&dry).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(removed.stdout.contains("would remove the blob store"), "{}", removed.stdout);
    assert!(store.join("store.json").is_file());
    let told = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(told.stdout.contains("removed the blob store"), "{}", told.stdout);
    assert!(!store.exists());
}

#[test]
fn run_whose_directory_is_moved_ends_and_goes_on_when_it_is_back() {
    let job = "name: moving\nn_attempts: 40\nn_concurrent_trials: 2\nenvironment: {type: process}\n\
               agents: [{name: oracle}]\ndatasets: [{path: tasks}]\n";
    let project = project().tasks(["slow/second"], &[]).write("job.yaml", job);
    let run = project.rollout(&["run", "job.yaml"]);
    let results = project.results("moving");
    wait::until(DEADLINE, "a result", || results.trial_count() >= 1);
    let (directory, away) = (results.path().to_owned(), project.path().join("away"));
    fs::rename(&directory, &away).expect("movable");
    fs::create_dir(&directory).expect("another one of the same name");
    let ended = run.wait(DEADLINE).expect_code(ExitCode::Failure);
    assert!(ended.stderr.contains("was moved, removed or replaced"), "{}", ended.stderr);
    let written = fs::read_dir(&directory).expect("readable").next();
    assert!(written.is_none(), "{written:?} was written to another directory");
    fs::remove_dir_all(&directory).expect("removable");
    fs::rename(&away, &directory).expect("movable");
    let resumed = project.rollout(&["resume", "jobs/moving"]).wait(DEADLINE);
    let _ended = resumed.expect_code(ExitCode::Success);
    assert_adds_up(&results, 40);
}
