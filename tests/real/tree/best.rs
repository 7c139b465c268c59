//! `rollout tree best` and `rollout tree apply`: the best program of a search, and its way into the
//! repository that the search began from.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check::assert_no_leaks as assert_nothing_left;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;

use crate::tree::DEADLINE;
use crate::tree::small_search::{SmallSearch, results_script};

const SEARCH: &str = "runs/small";

fn ended(project: &Project, arguments: &[&str], code: ExitCode) -> ProgramExit {
    project.rollout(arguments).wait(DEADLINE).expect_code(code)
}

/// A project with a search of the default form that has ended, and what it printed.
fn searched() -> (Project, ProgramExit) {
    let project = SmallSearch::default().write();
    let run = ended(&project, &SmallSearch::run(&[]), ExitCode::Success);
    (project, run)
}

#[test]
fn best_program_is_shown_and_applied_by_the_printed_commands() {
    let (project, run) = searched();
    for hint in [
        "`rollout tree best runs/small` shows the best program",
        "`rollout tree apply runs/small` puts the best program into ",
    ] {
        assert!(run.stderr.contains(hint), "{}", run.stderr);
    }
    let shown = ended(&project, &["tree", "best", SEARCH], ExitCode::Success).stdout;
    assert!(shown.contains("node     0001 of depth 1"), "{shown}");
    assert!(shown.contains("x.txt"), "{shown}");
    let patch = ended(&project, &["tree", "best", SEARCH, "--patch"], ExitCode::Success).stdout;
    assert!(patch.starts_with("diff --git a/x.txt b/x.txt\n"), "{patch}");
    let best = ended(&project, &["tree", "best", SEARCH, "--json"], ExitCode::Success).stdout;
    let best: serde_json::Value = serde_json::from_str(&best).expect("JSON");
    assert_eq!(best["node"], "0001");

    let file = project.path().join("program/x.txt");
    let before = fs::read_to_string(&file).ok();
    let applied = ended(&project, &["tree", "apply", SEARCH], ExitCode::Success);
    assert!(applied.stderr.contains("nothing is committed"), "{}", applied.stderr);
    let after = fs::read_to_string(&file).expect("written");
    assert_ne!(before.as_ref(), Some(&after));
    assert!(after.starts_with("- idea 1 of node 0000"), "{after}");
    // The files are no longer those that the patch was made from.
    let again = ended(&project, &["tree", "apply", SEARCH], ExitCode::Config);
    assert!(again.stderr.contains("no file was changed"), "{}", again.stderr);
    assert_eq!(fs::read_to_string(&file).expect("kept"), after);
    assert_nothing_left(&project);
}

#[test]
fn other_node_is_applied_to_another_directory_by_name() {
    let (project, _run) = searched();
    let command = "git clone --quiet . other";
    let mut clone = project.command_of(std::path::Path::new("bash"), &["-c", command]);
    assert!(clone.status().expect("bash runs").success());
    let unknown = ["tree", "apply", SEARCH, "--node", "9"];
    let unknown = ended(&project, &unknown, ExitCode::Usage);
    assert!(unknown.stderr.contains("the search has no such node"), "{}", unknown.stderr);
    let root = ended(&project, &["tree", "apply", SEARCH, "--node", "0"], ExitCode::Config);
    assert!(root.stderr.contains("cannot apply the root"), "{}", root.stderr);
    let there = ["tree", "apply", SEARCH, "--node", "1", "--to", "other/program"];
    let _applied = ended(&project, &there, ExitCode::Success);
    let text = fs::read_to_string(project.path().join("other/program/x.txt")).expect("written");
    assert!(text.starts_with("- idea"), "{text}");
    assert_nothing_left(&project);
}

#[test]
fn search_without_a_better_program_has_nothing_to_apply() {
    let worse = "config_id,status,v,w\n0,ok,0,0\n1,ok,0,0\n2,ok,0,0\n";
    let search = SmallSearch { sweep: results_script(worse), ..SmallSearch::default() };
    let project = search.write();
    let run = ended(&project, &SmallSearch::run(&[]), ExitCode::Success);
    assert!(!run.stderr.contains("tree apply"), "{}", run.stderr);
    let shown = ended(&project, &["tree", "best", SEARCH], ExitCode::Success);
    assert!(shown.stderr.contains("nothing is better than the root"), "{}", shown.stderr);
    assert!(shown.stdout.contains("node     0000 of depth 0"), "{}", shown.stdout);
    let refused = ended(&project, &["tree", "apply", SEARCH], ExitCode::Config);
    assert!(refused.stderr.contains("cannot apply the root"), "{}", refused.stderr);
    assert_nothing_left(&project);
}
