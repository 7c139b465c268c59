//! `rollout tree validate` on a finished search, and the paths in its manifest.

use std::fs;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use rollout_tests::results::json;

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

/// A finished search of two evals, one of which failed.
fn finished_project(keys: &str) -> Project {
    let implement = "cp \"$ROLLOUT_IDEA_FILE\" x.txt; echo made; ! grep -q 2 x.txt".to_owned();
    let keys = format!("sweep_config_limit: 3\nmax_depth: 1\n{keys}");
    let project = SmallSearch { implement, keys, ..SmallSearch::default() }.write();
    let _ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    project
}

#[track_caller]
fn assert_validates(project: &Project, code: ExitCode, says: &str) {
    let ended =
        project.rollout(&["tree", "validate", "runs/small"]).wait(DEADLINE).expect_code(code);
    assert!(ended.stdout.contains(says), "{says} not in {}", ended.stdout);
}

#[test]
fn validate_of_changed_or_unreadable_file_fails() {
    let project = finished_project("keep_failed_artifacts: true");
    assert_validates(&project, ExitCode::Success, "files of evals, read completely");
    let root = SmallSearch::directory(&project);
    let (bytes, form) = ("changed file: eval 000", "unreadable file: eval 000");
    for (name, content, says) in [
        ("eval/0000/experiment/attempt-1/implement/stdout.txt", "other\n", bytes),
        ("eval/0001/experiment/attempt-1/implement/stdout.txt", "other\n", bytes),
        ("eval/0000/experiment/attempt-1/record.json", "{", form),
        ("eval/0000/eval_result.json", "[]", form),
        ("eval/0000/score.json", "{}", bytes),
    ] {
        let path = root.join(name);
        let before = fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        fs::write(&path, content).expect("written");
        assert_validates(&project, ExitCode::RunDamaged, says);
        fs::write(&path, before).expect("written");
    }
    assert_validates(&project, ExitCode::Success, "sound");
    fs::remove_file(root.join("eval/0000/experiment/attempt-1/sweep/stderr.txt")).expect("removed");
    assert_validates(&project, ExitCode::RunDamaged, "missing file: eval 0000");
}

/// Collects the paths in a manifest that do not exist below the directory of the search.
fn missing_paths(value: &serde_json::Value, root: &Path, missing: &mut Vec<String>) {
    const PLACES: [&str; 6] = ["eval/", "wt/", "cand/", "artifacts/", "node_ideas/", "context/"];
    match value {
        serde_json::Value::String(text) => {
            let is_path = PLACES.iter().any(|place| text.starts_with(place));
            if is_path && !root.join(text).exists() {
                missing.push(text.clone());
            }
        }
        serde_json::Value::Array(values) => {
            values.iter().for_each(|v| missing_paths(v, root, missing));
        }
        serde_json::Value::Object(fields) => {
            fields.values().for_each(|v| missing_paths(v, root, missing));
        }
        _ => {}
    }
}

#[test]
fn manifest_after_cleanup_has_no_missing_paths() {
    for (keys, references) in [("", 0), ("keep_rejected_worktrees: true", 0)] {
        let project = finished_project(keys);
        let root = SmallSearch::directory(&project);
        let mut manifest = json(&root.join("manifest.json")).expect("a manifest");
        for node in manifest["nodes"].as_object_mut().expect("nodes").values_mut() {
            // No ideas were written, so their directory does not exist.
            if node["generated_idea_files"].is_null() {
                node["node_ideas_dir"].take();
            }
        }
        let mut missing = Vec::new();
        missing_paths(&manifest, &root, &mut missing);
        assert_eq!(missing, Vec::<String>::new(), "{keys}");
        let evals = manifest["evaluations"].as_object().expect("evals").values();
        let named = evals.clone().filter(|eval| eval["candidate_ref_name"].is_string());
        assert_eq!(named.count(), references, "{keys}: one was promoted, one has no commit");
        for eval in evals {
            assert!(eval["decision"]["promotion_reason"].is_string(), "{eval:#}");
        }
    }
}
