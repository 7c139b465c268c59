use super::super::ids::{EvalId, NodeId};
use super::super::manifest::{EvalStatus, Manifest};
use super::super::search::testing::finished;
use super::*;

#[test]
fn equal_manifests_give_equal_reports() {
    let (one, mut other) = (finished(), finished());
    other.updated_at =
        other.updated_at.saturating_add(jiff::SignedDuration::from_secs(5)).expect("a time");
    for (name, make) in REPORTS {
        assert_eq!(make(&one), make(&other), "{name}");
    }
}

#[test]
fn the_summary_says_what_came_of_every_idea() {
    let manifest = finished();
    let text = summary(&manifest);
    for eval in manifest.evaluations.values() {
        assert!(text.contains(&format!("| {} |", eval.eval_id)), "{text}");
    }
    for words in ["promoted to 0001", "primary\\_regressed", "repeats", "max_depth_reached"] {
        let plain = words.replace('\\', "");
        assert!(text.contains(words) || text.contains(&plain), "{words}: {text}");
    }
}

#[test]
fn the_summary_leads_to_references_and_files_that_are_there() {
    let mut manifest = finished();
    manifest.run_config.budget_cost = Some(2.5);
    let (first, last) = (EvalId(0), *manifest.evaluations.keys().last().expect("evals"));
    let eval = manifest.evaluations.get_mut(&last).expect("there");
    (eval.status, eval.experiment_dir) = (EvalStatus::Failed, "eval/a b)|/x".to_owned());
    let row = |manifest: &Manifest, id: EvalId| {
        let text = summary(manifest);
        let row = text.lines().find(|line| line.starts_with(&format!("| {id} | 000")));
        row.expect("a row").to_owned()
    };
    let promoted = row(&manifest, first);
    let end = "| tree/run/n0001 | [logs and outputs](eval/0000/experiment) |";
    assert!(promoted.ends_with(end), "{promoted}");
    assert!(row(&manifest, last).ends_with("| - | - |"), "it was removed");
    manifest.run_config.keep_failed_artifacts = true;
    manifest.run_config.keep_rejected_worktrees = true;
    let kept = row(&manifest, last);
    let end = format!("| tree/run/e{last} | [logs and outputs](eval/a%20b%29%7C/x) |");
    assert!(kept.ends_with(&end), "{kept}");
    let text = summary(&manifest);
    for line in
        ["most cost: 2.5", "most seconds of evals: none", "further tries of failed evals: 0"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("ideas may not repeat others of: node\\_plus\\_ancestors"), "{text}");
}

#[test]
fn the_best_path_begins_at_the_root() {
    let path = best_path(&finished());
    assert_eq!(path.first(), Some(&NodeId(0)));
    assert!(path.len() > 1);
}

#[test]
fn hostile_names_are_text() {
    let mut manifest = finished();
    let evil = "x|</title><script>alert(1)</script>\"]\n`#.md";
    for eval in manifest.evaluations.values_mut() {
        eval.idea_path = format!("node_ideas/0000/{}", evil.replace('/', ""));
    }
    let page = html(&manifest);
    assert!(!page.contains("<script"), "{page}");
    assert!(!graph(&manifest).contains("\"]\n`"));
    let table = summary(&manifest);
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| 0000 | 0000")).collect();
    assert_eq!(rows.len(), 1, "{table}");
}
