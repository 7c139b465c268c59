//! Every outcome of an idea with real commands in sandboxes: attempts, costs, interruptions.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check::assert_no_leaks as assert_nothing_left;
use rollout_tests::project::Project;
use rollout_tests::results::json;
use rollout_tests::search::{comparable_manifest, leaked_files};
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json as value};

use crate::tree::project;

const DEADLINE: Duration = wait::RUN_DEADLINE;

const SEARCH: &str = r#"
tree_run_id: outcomes
repository: program
root_baseline_csv: baseline.csv
ideas_per_node: 6
max_depth: 1
max_parallel_evals: 3
eval_retries: 1
keep_failed_artifacts: true
min_candidate_rows: 1
profile: {name: v, primary: {column: v}, metrics: [{column: v, weight: 1}]}
environment: {type: process}
commands:
  ideas:
    run: |
      for outcome in better fails-its-tests is-rejected no-results odd-results sweep-fails; do
        echo "- $outcome" > "$ROLLOUT_IDEAS_DIR/$outcome.md"
      done
      echo 0.5 > "$ROLLOUT_COST_FILE"
  implement:
    run: |
      sed 's/- //' "$ROLLOUT_IDEA_FILE" > outcome.txt
      echo 0.25 > "$ROLLOUT_COST_FILE"
  tests: {run: "! grep fails-its-tests outcome.txt"}
  review: {run: "! grep is-rejected outcome.txt"}
  sweep:
    run: |
      echo row >> "$ROLLOUT_OUTPUT_DIR/seen.txt"
      case $(cat outcome.txt) in
        no-results) exit 0 ;;
        odd-results) echo hello > "$ROLLOUT_RESULTS_CSV" ;;
        *) printf 'config_id,status,v\n0,ok,2\n' > "$ROLLOUT_RESULTS_CSV" ;;
      esac
      ! grep sweep-fails outcome.txt
"#;

/// A project with a search, its repository of one file, and the baseline.
fn write_project(search: &str) -> Project {
    project()
        .write("tree.yaml", search)
        .write("program/outcome.txt", "nothing\n")
        .write("baseline.csv", "config_id,status,v\n0,ok,1\n")
        .commit()
}

fn evals(directory: &Path) -> Vec<Value> {
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    manifest["evaluations"].as_object().expect("evals").values().cloned().collect()
}

/// Duration of an attempt, in seconds.
fn try_duration(experiment: &Path) -> f64 {
    let record = json(&experiment.join("record.json")).expect("a record");
    record["durations"]["total_sec"].as_f64().expect("a number")
}

#[test]
fn idea_outcome_has_reason_and_try_has_directory() {
    let project = write_project(SEARCH);
    let ended = project.rollout(&["tree", "run", "tree.yaml"]).wait(DEADLINE);
    let _well = ended.expect_code(ExitCode::Success);
    let directory = project.path().join("tree_runs/outcomes");
    let evals = evals(&directory);
    let found = evals.iter().map(|eval| {
        let error = &eval["error"]["error_type"];
        let committed = eval["candidate_commit"].is_string();
        value!([eval["status"], error, eval["attempt"], eval["cost"], committed])
    });
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            value!(["completed", null, 1, 0.25, true]),
            // An idea that was not approved has no commit and is not measured.
            value!(["failed", "tests_failed", 2, 0.5, false]),
            value!(["failed", "review_failed", 2, 0.5, false]),
            value!(["failed", "results_missing", 2, 0.5, true]),
            value!(["completed", "columns_missing", 1, 0.25, true]),
            value!(["failed", "sweep_failed", 2, 0.5, true]),
        ]
    );
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    assert_eq!(manifest["nodes"]["0000"]["ideas_cost"], 0.5);
    for (eval, tries) in [("0000", 1), ("0003", 2), ("0005", 2)] {
        let mut seconds = 0.0;
        for n in 1..=tries {
            seconds += try_duration(&directory.join(format!("eval/{eval}/experiment/attempt-{n}")));
            let output = format!("eval/{eval}/experiment/attempt-{n}/output/seen.txt");
            let text = std::fs::read_to_string(directory.join(&output));
            assert_eq!(text.expect(&output), "row\n", "an attempt starts with an empty directory");
        }
        let manifest_seconds = manifest["evaluations"][eval]["seconds"].as_f64().expect("a number");
        assert!(
            (manifest_seconds - seconds).abs() < 1e-6,
            "{eval}: {manifest_seconds}, its attempts took {seconds}"
        );
    }
    let rejected = directory.join("eval/0002/experiment/attempt-2");
    assert!(rejected.join("review/stdout.txt").is_file() && !rejected.join("sweep").exists());
    assert_nothing_left(&project);
}

#[test]
fn resume_after_interrupt_ends_like_uninterrupted() {
    let slow = SEARCH.replace("echo row", "sleep 2; echo row");
    let project = write_project(&slow);
    let words = ["tree", "run", "tree.yaml", "--runs-root", "stopped"];
    let directory = project.path().join("stopped/outcomes");
    let mut running = project.rollout(&words);
    wait::until(DEADLINE, "an eval", || directory.join("eval/0000/experiment").is_dir());
    running.signal(Signal::INT);
    let stopped = running.wait(DEADLINE).expect_code(ExitCode::Cancelled);
    let resume = stopped.hinted_command();
    assert_eq!(resume, "rollout resume stopped/outcomes");
    let status = evals(&directory).iter().filter(|eval| eval["status"] == "running").count();
    assert!(status > 0, "it was stopped during its evals");
    let resumed = ["tree", "resume", "tree.yaml", "--runs-root", "stopped"];
    let _well = project.rollout(&resumed).wait(DEADLINE).expect_code(ExitCode::Success);
    let whole = ["tree", "run", "tree.yaml", "--runs-root", "whole"];
    let _well = project.rollout(&whole).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(
        comparable_manifest(&directory),
        comparable_manifest(&project.path().join("whole/outcomes"))
    );
    assert_eq!(leaked_files(&directory), Vec::<String>::new());

    // Settled evals run again only on request.
    let before = evals(&directory);
    let again = project.rollout(&resumed).wait(DEADLINE);
    let _well = again.expect_code(ExitCode::Success);
    assert_eq!(evals(&directory), before);
    let gc = ["tree", "gc", "stopped/outcomes"];
    let _well = project.rollout(&gc).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_nothing_left(&project);
}

/// A Docker engine that answers every request with an error; a run would wait for one that is
/// silent.
fn broken_engine() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer = move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = BufReader::new(&stream);
            let (mut first, mut line) = (String::new(), String::new());
            let mut more = request.read_line(&mut first).is_ok_and(|n| n > 2);
            while more {
                line.clear();
                more = request.read_line(&mut line).is_ok_and(|n| n > 2);
            }
            let (status, body) = match first.contains("/_ping") {
                true => ("200 OK", "OK"),
                false => ("500 Internal Server Error", r#"{"message":"broken"}"#),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json");
            let length = format!("Content-Length: {}\r\nConnection: close", body.len());
            // A client that has disconnected needs no answer.
            let _written = write!(stream, "{head}\r\n{length}\r\n\r\n{body}");
        }
    };
    supervise::thread("broken-engine", answer).expect("a thread");
    format!("tcp://{address}")
}

#[test]
fn infrastructure_error_is_not_counted_as_idea_failure() {
    let search = SEARCH
        .replace("  ideas:\n", "  ideas:\n    environment: {type: process}\n")
        .replace(
            "environment: {type: process}\ncommands",
            "environment: {type: docker, docker_image: none}\ncommands",
        )
        .replace("eval_retries: 1", "eval_retries: 0");
    let project = write_project(&search);
    let engine = broken_engine();
    let run = |more: &[&str]| {
        let mut command = project.command(&[&["tree", "run", "tree.yaml"][..], more].concat());
        let _broken = command.env("DOCKER_HOST", &engine);
        project.start(command).wait(DEADLINE)
    };
    let directory = project.path().join("tree_runs/outcomes");
    for _ in 0..2 {
        let failed = run(&[]).expect_code(ExitCode::Failure).expect_stderr("could not be run");
        let _hinted = failed.expect_stderr("to retry them");
        let evals = evals(&directory);
        assert!(evals.iter().all(|eval| eval["status"] == "running" || eval["status"] == "queued"));
    }
    let _given_up = run(&["--fail-unable-evals"]).expect_code(ExitCode::Infrastructure);
    let is_failed =
        |eval: &Value| eval["status"] == "failed" && eval["error"]["infrastructure"] == true;
    assert!(evals(&directory).iter().all(is_failed));
}

#[test]
fn resume_without_search_is_refused() {
    let project = write_project(SEARCH);
    let refused = project.rollout(&["tree", "resume", "tree.yaml"]).wait(DEADLINE);
    let _told = refused.expect_code(ExitCode::Config).expect_stderr("is not a search directory");
    let project = project.write("program/more.txt", "not committed\n");
    let refused = project.rollout(&["tree", "run", "tree.yaml"]).wait(DEADLINE);
    let _told = refused.expect_code(ExitCode::Failure).expect_stderr("commit or stash");
}
