//! Searches whose process is killed repeatedly, and the lock of a search.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::chaos::{self, ChaosPlan};
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::results::json;
use rollout_tests::search::{self, ExampleSearch};
use rollout_tests::{print_notice, wait};
use rustix::process::Signal;

use crate::tree::{DEADLINE, project};

#[test]
fn search_under_repeated_kills_is_unchanged() {
    let plan = ChaosPlan {
        seed: 4,
        disturbed: Duration::from_secs(25),
        items: 24,
        workers: 0,
        slots: 0,
        seconds: (1.0, 5.0),
        providers: Vec::new(),
        pause: (0.2, 5.0),
        lease: Duration::ZERO,
        no_return: false,
        only_kills: true,
        s3_program: None,
    };
    let report = chaos::run_local_search(&plan, project(), &print_notice);
    print_notice(&report.to_string());
    assert_eq!(report.problems, Vec::<String>::new(), "{plan:?}\n{report}");
}

#[test]
fn lock_takeover_of_search_stops_resumed_owner() {
    let counter = LiveCounter::start();
    let search =
        ExampleSearch::with_live_counter(&counter).with_replacement("max_depth: 3", "max_depth: 1");
    let project = search.write(project());
    let words = ["tree", "run", &search.file, "--runs-root", "runs"];
    let mut first = project.rollout(&words);
    wait::until(DEADLINE, "an eval", || !counter.observed().is_empty());
    let second = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::LockHeld);
    let second = second.expect_stderr(&format!("process {} on ", first.pid()));
    let _hinted = second.expect_stderr("--force");

    first.signal(Signal::STOP);
    let third = project.rollout(&[&words[..], &["--force"]].concat());
    let directory = search.directory(&project, "runs");
    let _ended = third.wait(DEADLINE).expect_code(ExitCode::Success);
    let finished = search::comparable_manifest(&directory);
    first.signal(Signal::CONT);
    let _woken = first.wait(DEADLINE).expect_code(ExitCode::LockLost);
    assert_eq!(search::comparable_manifest(&directory), finished, "resumed owner changes nothing");
    assert_eq!(search::leaked_files(&directory), Vec::<String>::new());
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    let events = manifest["events"].as_array().expect("events");
    assert!(events.iter().any(|event| event["type"] == "lock_takeover"), "{events:?}");
}
