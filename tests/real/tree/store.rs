//! The blob store of a search: later commands find it, and it is kept while the search exists.

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check;

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

/// Collection of the blobs that no search needs, however young.
const GC: [&str; 5] = ["gc", "--store", "blobs", "--grace", "0"];

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
fn gc_of_store_keeps_what_search_needs_and_removes_store_of_removed_search() {
    let project = SmallSearch::default().write();
    let run = SmallSearch::run(&["--store", "blobs"]);
    let _ended = project.rollout(&run).wait(DEADLINE).expect_code(ExitCode::Success);
    let verify = ["blob", "verify", "--run", "runs/small", "--json"];
    let before = project.rollout(&verify).wait(DEADLINE).expect_code(ExitCode::Success);
    let kept = project.rollout(&GC).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(kept.stdout.contains("removed 0 blobs"), "{}", kept.stdout);
    assert!(kept.stdout.contains(" 1 runs need"), "{}", kept.stdout);
    let after = project.rollout(&verify).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(after.stdout, before.stdout, "a blob of the search was removed");
    let again = SmallSearch::run(&["--rerun-evals"]);
    let _ended = project.rollout(&again).wait(DEADLINE).expect_code(ExitCode::Success);

    std::fs::remove_dir_all(SmallSearch::directory(&project)).expect("removable");
    let refused = project.rollout(&GC).wait(DEADLINE).expect_code(ExitCode::Config);
    let _named = refused.expect_stderr("runs/small");
    let forced = [&GC[..], &["--force", "--remove-store"]].concat();
    let _ended = project.rollout(&forced).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(!project.path().join("blobs").exists());
}

#[test]
fn quiet_search_prints_no_progress() {
    let project = SmallSearch::default().write();
    let run = SmallSearch::run(&["-q"]);
    let ended = project.rollout(&run).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(ended.stderr, "");
}
