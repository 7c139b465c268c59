//! Hints of searches that name a command: run as printed, each does what it says.

use std::path::PathBuf;

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check::assert_no_leaks as assert_nothing_left;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use rollout_tests::results::json;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::tree::{DEADLINE, project};

const UNNAMED: &str = r#"
repository: program
root_baseline_csv: baseline.csv
ideas_per_node: 2
max_depth: 1
max_parallel_evals: 1
min_candidate_rows: 1
profile: {name: v, primary: {column: v}, metrics: [{column: v, weight: 1}]}
environment: {type: process}
commands:
  ideas: {run: "for n in 1 2; do echo better-$n > \"$ROLLOUT_IDEAS_DIR/$n.md\"; done"}
  implement: {run: "cp \"$ROLLOUT_IDEA_FILE\" outcome.txt"}
  sweep: {run: "sleep 2; printf 'config_id,status,v\\n0,ok,2\\n' > \"$ROLLOUT_RESULTS_CSV\""}
"#;

fn write_project() -> Project {
    project()
        .write("tree.yaml", UNNAMED)
        .write("program/outcome.txt", "nothing\n")
        .write("baseline.csv", "config_id,status,v\n0,ok,1\n")
        .commit()
}

/// The directory of the only search.
#[track_caller]
fn only_search(project: &Project) -> PathBuf {
    match project.runs("tree_runs").as_slice() {
        [search] => project.path().join("tree_runs").join(search),
        others => panic!("expected one search, found {others:?}"),
    }
}

/// Sends a signal to a search when it runs an eval.
fn ended_early(project: &Project, words: &[&str], signal: Signal) -> ProgramExit {
    let mut running = project.rollout(words);
    let begun = || {
        let searches = project.runs("tree_runs");
        let eval = |search: &String| {
            project.path().join("tree_runs").join(search).join("eval/0000/experiment").is_dir()
        };
        searches.iter().any(eval)
    };
    wait::until(DEADLINE, "an eval", begun);
    running.signal(signal);
    running.wait(DEADLINE)
}

#[track_caller]
fn assert_complete(project: &Project) {
    let manifest = json(&only_search(project).join("manifest.json")).expect("a manifest");
    let evals = manifest["evaluations"].as_object().expect("evals");
    assert_eq!(evals.len(), 2, "{manifest:#}");
    assert!(evals.values().all(|eval| eval["status"] == "completed"), "{manifest:#}");
    assert_nothing_left(project);
}

#[test]
fn hint_of_stopped_search_without_name_resumes_that_search() {
    let project = write_project();
    let words = ["tree", "run", "tree.yaml", "--rerun-evals"];
    let stopped = ended_early(&project, &words, Signal::INT).expect_code(ExitCode::Cancelled);
    let mut hinted = stopped.hinted_commands();
    // The name of the search is told at its start, and again at its end.
    hinted.dedup();
    assert_eq!(hinted.len(), 1, "{}", stopped.stderr);
    let _ended = project.paste(&hinted[0]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_complete(&project);
}

#[test]
fn killed_search_without_name_is_resumed_as_status_says_and_retried() {
    let project = write_project();
    let _killed = ended_early(&project, &["tree", "run", "tree.yaml"], Signal::KILL);
    let search = only_search(&project);
    let search = search.to_str().expect("text");
    let status = project.rollout(&["status", search]).wait(DEADLINE).expect_code(ExitCode::Success);
    let row = status.stdout.lines().find_map(|line| line.strip_prefix("resume "));
    let resume = row.unwrap_or_else(|| panic!("{}", status.stdout)).trim();
    let _ended = project.paste(resume).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_complete(&project);

    let refused = project.rollout(&["retry", search, "--failed"]).wait(DEADLINE);
    let hinted = refused.expect_code(ExitCode::Usage).hinted_commands();
    let [infra, all] = hinted.as_slice() else { panic!("{hinted:?}") };
    let _ended = project.paste(infra).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_complete(&project);
    let manifest = || json(&only_search(&project).join("manifest.json")).expect("a manifest");
    let before = manifest()["state"].clone();
    let _ended = project.paste(all).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_ne!(manifest()["state"], before, "the evals ran again");
    let _ended = project.rollout(&["resume", search]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(project.runs("tree_runs").len(), 1);
}
