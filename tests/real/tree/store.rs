//! The blob store of a search: later commands find it, and it is kept while the search exists.

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check;

use crate::DEADLINE;
use crate::small_search::SmallSearch;

/// A command that the store of an unfinished search is passed to.
const GC: [&str; 4] = ["gc", "--store", "blobs", "--dry-run"];

#[test]
fn search_resumed_without_store_option_uses_its_store() {
    let project = SmallSearch::default().write();
    let first = SmallSearch::run(&["--store", "blobs"]);
    let _ended = project.rollout(&first).wait(DEADLINE).expect_code(ExitCode::Success);
    let again = SmallSearch::run(&["--rerun-evals"]);
    let _ended = project.rollout(&again).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(!project.path().join("runs/.rollout/blobs").exists(), "a second store was created");
    let gc = project.rollout(&["tree", "gc", "runs/small"]).wait(DEADLINE);
    let _ended = gc.expect_code(ExitCode::Success);
    leak_check::assert_no_leaks(&project);
}

#[test]
fn gc_of_store_used_by_search_is_refused() {
    let project = SmallSearch::default().write();
    let run = SmallSearch::run(&["--store", "blobs"]);
    let _ended = project.rollout(&run).wait(DEADLINE).expect_code(ExitCode::Success);
    let refused = project.rollout(&GC).wait(DEADLINE).expect_code(ExitCode::Config);
    let _named = refused.expect_stderr("runs/small");
    std::fs::remove_dir_all(SmallSearch::directory(&project)).expect("removable");
    let forced = [&GC[..], &["--force"]].concat();
    let _ended = project.rollout(&forced).wait(DEADLINE).expect_code(ExitCode::Success);
}

#[test]
fn quiet_search_prints_no_progress() {
    let project = SmallSearch::default().write();
    let run = SmallSearch::run(&["-q"]);
    let ended = project.rollout(&run).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(ended.stderr, "");
}
