//! Outcomes of the search example: those that its README lists, equal in every run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rollout_coordinator::config::{Diagnostics, TreeFile, TreeOptions, read_tree, tree_document};
use rollout_protocol::exit::ExitCode;
use rollout_tests::leak_check::assert_no_leaks as assert_nothing_left;
use rollout_tests::project::{Project, repository};
use rollout_tests::search::ExampleSearch;
use serde_json::Value;

use crate::tree::project;

/// Longest duration of a search of 20 evals, of which one ends by its time limit.
const DEADLINE: Duration = rollout_tests::wait::RUN_DEADLINE;

const REPORTS: [&str; 3] = ["TREE_SUMMARY.md", "TREE_GRAPH.md", "tree.html"];

/// Outcome of every eval: its node, its idea, and the node that it became or the reason against it.
const OUTCOMES: &[(&str, &str, &str)] = &[
    ("0000", "1-trapezoid.md", "0002"),
    ("0000", "2-midpoint.md", "0001"),
    ("0000", "3-fewer-steps.md", "primary_regressed"),
    ("0000", "4-tidy.md", "no_changes"),
    ("0001", "1-growing-steps.md", "primary_regressed"),
    ("0001", "2-gauss-2.md", "0003"),
    ("0001", "3-until-the-end.md", "eval_not_completed"),
    ("0001", "4-three-eighths.md", "beyond_beam_width"),
    ("0002", "1-simpson.md", "0004"),
    ("0002", "2-extrapolate.md", "beyond_beam_width"),
    ("0002", "3-twice-the-steps.md", "incomplete_or_failed_rows"),
    ("0002", "4-gentle-ends.md", "primary_regressed"),
    ("0003", "1-gauss-3.md", "0005"),
    ("0003", "2-extrapolate-further.md", "0006"),
    ("0003", "3-five-points.md", "beyond_beam_width"),
    ("0003", "4-gentle-ends.md", "primary_regressed"),
    ("0004", "1-five-points.md", "beyond_beam_width"),
    ("0004", "2-gauss-2.md", "beyond_beam_width"),
    ("0004", "3-growing-steps.md", "primary_regressed"),
    ("0004", "4-extrapolate-further.md", "beyond_beam_width"),
];

fn example() -> PathBuf {
    repository().join("examples/tree")
}

/// Runs the example to its end, at the same time below each of these roots: one of its evals hangs until
/// its time limit. Returns its directories.
fn run<const N: usize>(project: &Project, roots: [&str; N]) -> [PathBuf; N] {
    let start = |root| {
        let words = ["tree", "run", "examples/tree/tree.yaml", "--runs-root", root];
        (root, project.rollout(&words))
    };
    roots.map(start).map(|(root, started)| {
        let ended = started.wait(DEADLINE).expect_code(ExitCode::Success);
        assert!(ended.stdout.contains("max_depth_reached"), "{}", ended.stdout);
        project.path().join(root).join("integrate")
    })
}

fn manifest(search: &Path) -> Value {
    let text = fs::read_to_string(search.join("manifest.json")).expect("a manifest");
    serde_json::from_str(&text).expect("JSON")
}

fn outcomes(manifest: &Value) -> Vec<(String, String, String)> {
    let evals = manifest["evaluations"].as_object().expect("evals").values();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |eval: &Value| {
        let decision = &eval["decision"];
        let became = &decision["promoted_to_node_id"];
        let why = if became.is_null() { &decision["promotion_reason"] } else { became };
        let idea = text(&eval["idea_path"]);
        let idea = idea.rsplit('/').next().unwrap_or_default().to_owned();
        (text(&eval["parent_node_id"]), idea, text(why))
    };
    evals.map(one).collect()
}

#[track_caller]
fn assert_outcomes(manifest: &Value) {
    let expected: Vec<_> =
        OUTCOMES.iter().map(|(a, b, c)| ((*a).into(), (*b).into(), (*c).into())).collect();
    assert_eq!(outcomes(manifest), expected);
    let hung = &manifest["evaluations"]["0006"];
    assert_eq!(hung["error"]["timed_out"], true, "{hung:#}");
    assert_eq!(manifest["evaluations"]["0003"]["status"], "no_changes");
    let skipped = manifest["nodes"]["0000"]["dedupe"]["skipped"].as_array().expect("a list");
    assert_eq!(skipped.len(), 1, "{skipped:#?}");
    assert_eq!(skipped[0]["path"], "node_ideas/0000/3-midpoint-again.md");
    assert_eq!(skipped[0]["repeats"], "node_ideas/0000/2-midpoint.md");
    // Digits gained over the root on the path to the best node.
    let gained = ["0001", "0005", "0012"].map(|eval| {
        let delta = &manifest["evaluations"][eval]["root_relative"]["primary_delta"];
        delta.as_f64().expect("a number")
    });
    assert!(2.0 < gained[0] && gained[0] + 1.0 < gained[1], "{gained:?}");
    assert!(gained[1] + 1.0 < gained[2] && 7.0 < gained[2], "{gained:?}");
}

#[test]
fn example_repeated_has_readme_outcomes_and_same_bytes() {
    let project = ExampleSearch::example("tree.yaml").write(project());
    let [one, two] = run(&project, ["one", "two"]);
    assert_outcomes(&manifest(&one));
    let path = one.to_string_lossy().into_owned();
    let validated = project.rollout(&["tree", "validate", &path]).wait(DEADLINE);
    let _all_is_well = validated.expect_code(ExitCode::Success);
    let read = |root: &Path, name: &str| fs::read_to_string(root.join(name)).expect(name);
    for name in REPORTS {
        assert_eq!(read(&one, name), read(&two, name), "{name}");
    }
    let commits = |search: &Path| {
        let nodes = manifest(search)["nodes"].clone();
        let nodes = nodes.as_object().expect("nodes").values().map(|node| node["commit"].clone());
        nodes.collect::<Vec<_>>()
    };
    assert_eq!(commits(&one), commits(&two), "equal ideas on equal commits are equal commits");
    assert_nothing_left(&project);
}

fn search(name: &str) -> TreeFile {
    let mut problems = Diagnostics::default();
    let is_set = |_: &str| true;
    let tree =
        read_tree(&example().join(name), &TreeOptions::for_command_line(&is_set), &mut problems);
    let (tree, warnings) = problems.finish(tree).expect("no faults");
    assert!(warnings.is_empty(), "{warnings:?}");
    tree.expect("a search")
}

#[test]
fn example_files_describe_same_search() {
    let [here, docker] = ["tree.yaml", "docker.yaml"].map(|name| {
        let mut document = tree_document(&search(name));
        let fields = document.as_object_mut().expect("a mapping");
        for differs in ["tree_run_id", "environment", "eval_timeout_seconds"] {
            fields.remove(differs);
        }
        for command in fields["commands"].as_object_mut().expect("commands").values_mut() {
            command.as_object_mut().expect("a command").remove("environment");
        }
        document
    });
    assert_eq!(here, docker);
}

#[test]
fn model_template_has_same_sweep_as_example() {
    let [handbook, model] = ["tree.yaml", "model.yaml"].map(search);
    assert_eq!(handbook.commands.sweep, model.commands.sweep);
    assert_eq!(handbook.profile, model.profile);
    assert_eq!(handbook.search.sweep_config_limit, model.search.sweep_config_limit);
}

#[test]
fn example_baseline_equals_sweep_of_root() {
    let (tree, project) = (search("tree.yaml"), project());
    let results = project.path().join("results.csv");
    let mut sweep = Command::new("bash");
    sweep.args(["-c", &tree.commands.sweep.run]).current_dir(example().join("program"));
    sweep.env("ROLLOUT_RESULTS_CSV", &results).env("TMPDIR", project.path().join("tmp"));
    let limit = tree.search.sweep_config_limit.expect("a limit");
    sweep.env("ROLLOUT_SWEEP_CONFIG_LIMIT", limit.to_string());
    assert!(sweep.status().expect("bash runs").success());
    let read = |path: &Path| fs::read_to_string(path).expect("results");
    assert_eq!(read(&results), read(&tree.resolve_path(&tree.root_baseline_csv)));
}
