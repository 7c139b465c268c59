use super::super::manifest::{EvalStatus, SearchManifest};
use super::super::policy::testing::finished_search;
use super::*;
use rollout_protocol::search::{EvalId, NodeId};

#[test]
fn report_of_equal_manifests_is_equal() {
    let (one, mut other) = (finished_search(), finished_search());
    other.updated_at =
        other.updated_at.saturating_add(jiff::SignedDuration::from_secs(5)).expect("a time");
    for (name, make) in REPORTS {
        assert_eq!(make(&one), make(&other), "{name}");
    }
}

#[test]
fn summary_lists_outcome_of_every_idea() {
    let manifest = finished_search();
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
fn summary_links_only_existing_refs_and_files() {
    let mut manifest = finished_search();
    manifest.run_config.budget_cost = Some(2.5);
    let (first, last) = (EvalId(0), *manifest.evaluations.keys().last().expect("evals"));
    let eval = manifest.evaluations.get_mut(&last).expect("there");
    (eval.status, eval.experiment_dir) = (EvalStatus::Failed, Some("eval/a b)|/x".to_owned()));
    let row = |manifest: &SearchManifest, id: EvalId| {
        let text = summary(manifest);
        let row = text.lines().find(|line| line.starts_with(&format!("| {id} | `")));
        row.expect("a row").to_owned()
    };
    let promoted = row(&manifest, first);
    let begin = "| 0000 | `c0000` | tree/run/n0001 | \
                 [artifacts/root\\_baseline.csv](artifacts/root_baseline.csv) | \
                 [artifacts/candidate\\_eval\\_0000.csv](artifacts/candidate_eval_0000.csv) | ";
    assert!(promoted.starts_with(begin), "{promoted}");
    assert!(promoted.ends_with("| [eval/0000/experiment](eval/0000/experiment) |"), "{promoted}");
    assert!(row(&manifest, last).ends_with("| - |"), "it was removed");
    manifest.run_config.keep_failed_artifacts = true;
    manifest.run_config.keep_rejected_worktrees = true;
    let eval = manifest.evaluations.get_mut(&last).expect("there");
    eval.candidate_ref_name = Some(format!("tree/run/e{last}"));
    let kept = row(&manifest, last);
    assert!(kept.contains(&format!("| tree/run/e{last} |")), "{kept}");
    assert!(kept.ends_with("| [eval/a b)\\|/x](eval/a%20b%29%7C/x) |"), "{kept}");
    let text = summary(&manifest);
    for line in
        ["maximum cost: 2.5", "maximum seconds of evals: none", "retries of failed evals: 0"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let shown = "ideas shown to a generator: node_plus_ancestors";
    for line in ["ideas must not repeat others of: node\\_plus\\_ancestors", shown] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn best_path_starts_at_root_node() {
    let path = best_path(&finished_search());
    assert_eq!(path.first(), Some(&NodeId(0)));
    assert!(path.len() > 1);
}

#[test]
fn report_with_hostile_names_is_escaped() {
    let mut manifest = finished_search();
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

#[test]
fn report_numbers_name_their_baseline() {
    let mut manifest = finished_search();
    // Much better than the root, and worse than its parent.
    let id = EvalId(4);
    let eval = manifest.evaluations.get_mut(&id).expect("there");
    let root = eval.root_relative.as_mut().expect("scored");
    root.primary_delta = Some(2.5);
    let summary_of_root = root.recommendation_summary.get_or_insert_with(|| {
        crate::workloads::search::score::Recommendation {
            should_explore: true,
            grade: crate::workloads::search::score::Grade::Strong,
            score: 3.5,
            reasons: vec!["net_improvement".to_owned()],
        }
    });
    summary_of_root.grade = crate::workloads::search::score::Grade::Strong;
    let parent = eval.parent_relative.as_mut().expect("scored");
    parent.primary_delta = Some(-0.25);
    let parent = parent.recommendation_summary.as_mut().expect("scored");
    (parent.should_explore, parent.grade) = (false, crate::workloads::search::score::Grade::Weak);
    let text = summary(&manifest);
    let header = "rank (root) | grade (root) | explore (root) | primary (root) | grade (parent) | \
                  explore (parent) | primary (parent)";
    assert!(text.contains(header), "{text}");
    let row = text.lines().find(|line| line.starts_with("| 0004 | 0001 |")).expect("a row");
    assert!(row.contains("| strong | true | +2.500000 | weak | false | -0.250000 |"), "{row}");
    let page = html(&manifest);
    let numbers = "<td>strong</td><td>true</td><td class=\"number\">+2.500000</td>\
                   <td><code>artifacts/candidate_eval_0000.csv</code></td><td>weak</td>\
                   <td>false</td><td class=\"number\">-0.250000</td>";
    assert!(page.contains(numbers), "{page}");
    assert!(page.contains("against the root: score") && page.contains("against the parent: score"));
    assert!(graph(&manifest).contains("scores against the results of the root"));
    let overview = SearchOverview::from_manifest(&manifest);
    let idea = overview.ideas.iter().find(|idea| idea.eval_id == id).expect("there");
    let grades = [&idea.root_relative, &idea.parent_relative].map(|r| (r.grade, r.primary_delta));
    use crate::workloads::search::score::Grade::{Strong, Weak};
    assert_eq!(grades, [(Some(Strong), Some(2.5)), (Some(Weak), Some(-0.25))]);
    assert_eq!(idea.root_relative.baseline_csv_path, "artifacts/root_baseline.csv");
    assert_eq!(idea.parent_relative.baseline_csv_path, "artifacts/candidate_eval_0000.csv");
}

#[test]
fn report_in_every_format_shows_eval_errors() {
    let mut manifest = finished_search();
    let id = EvalId(4);
    let eval = manifest.evaluations.get_mut(&id).expect("there");
    eval.status = EvalStatus::Failed;
    eval.error = Some(super::super::manifest::SearchEvalError {
        error_type: "tests_failed".to_owned(),
        message: "tests: the command ended with code 1: 2 failed".to_owned(),
        timed_out: false,
        infrastructure: false,
    });
    let decision = eval.decision.as_mut().expect("decided");
    decision.promotion_reason = Some(super::super::manifest::Reason::NotCompleted);
    decision.promoted_to_node_id = None;
    let message = "the command ended with code 1: 2 failed";
    let text = summary(&manifest);
    assert!(text.contains("| eval_not_completed: tests_failed |"), "{text}");
    let page = html(&manifest);
    for report in [&text, &page] {
        assert!(report.contains(message), "{report}");
    }
    assert!(page.contains("eval_not_completed: tests_failed"));
    let overview = SearchOverview::from_manifest(&manifest);
    let idea = overview.ideas.iter().find(|idea| idea.eval_id == id).expect("there");
    assert!(idea.why.as_ref().is_some_and(|why| why.contains(message)), "{idea:?}");
    assert_eq!(overview.counts.failed, 1);
}
