//! Regression tests for known defects of such searches.

use super::*;
use crate::workloads::search::manifest::{EvalStatus, ManifestEventKind, NodeStatus, Reason};
use rollout_protocol::search::NodeId;

#[tokio::test]
async fn node_is_expanded_only_after_its_evals_settle() {
    let lab = SearchFixture::new();
    // Planned, but nothing begun: a crash here used to lose the whole first depth.
    assert!(!lab.run_session(2).await);
    let planned = SearchDirectory::new(lab.root()).manifest().expect("there");
    assert_eq!(planned.evaluations.len(), 4);
    assert_eq!(planned.node(NodeId(0)).status, NodeStatus::Frontier);
    assert!(planned.state.expanded_node_ids_by_depth.is_empty());
    assert!(lab.run_session(u32::MAX).await);
    let done = SearchDirectory::new(lab.root()).manifest().expect("there");
    assert!(done.evaluations.values().all(|eval| eval.status.is_settled()));
    assert_eq!(done.evals_at(0).count(), 4);
}

#[tokio::test]
async fn eval_retry_does_not_add_to_results_of_first_attempt() {
    let done = SearchFixture::new();
    let manifest = done.run().await;
    let twice = manifest.evaluations.values().find(|eval| eval.attempt == 2).expect("one");
    let kept = twice.candidate_results_provenance.as_ref().expect("it has results");
    assert!(kept.source_path.ends_with("attempt-2/meta_config_sweep_results.csv"), "{kept:?}");
    let text = std::fs::read_to_string(done.root().join(&kept.copied_to_path)).expect("there");
    assert_eq!(text.lines().count(), 1 + 5, "a header and five configurations");
}

#[tokio::test]
async fn cleanup_that_failed_is_retried_later() {
    let lab = SearchFixture::new();
    let done = lab.run().await;
    let gone: Vec<_> = done
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            ManifestEventKind::CleanedUp { path, attempts } => Some((path.clone(), *attempts)),
            _ => None,
        })
        .collect();
    assert!(gone.contains(&("cand/0002".to_owned(), 2)), "{gone:?}");
    assert!(gone.iter().all(|(path, _)| !lab.root().join(path).exists()));
}

#[tokio::test]
async fn budget_spent_within_depth_still_promotes_best() {
    let done = SearchFixture::with("max_total_idea_evals: 6").run().await;
    assert_eq!(done.state.stop_reason, Some(StopReason::MaxTotalIdeaEvalsReached));
    assert_eq!(done.evaluations.len(), 6);
    assert!(done.nodes.values().any(|node| node.depth == 2), "of depth 1, too");
}

#[tokio::test]
async fn duplicate_ideas_do_not_reduce_number_tried() {
    let done = SearchFixture::new().run().await;
    for node in done.nodes.values().filter(|node| node.status == NodeStatus::Expanded) {
        let tried = done.evaluations.values().filter(|e| e.parent_node_id == node.node_id);
        assert_eq!(tried.count(), 4, "node {}", node.node_id);
        assert!(!node.dedupe.skipped.is_empty(), "node {}", node.node_id);
    }
}

#[tokio::test]
async fn eval_without_changes_or_failed_is_decided_with_reason() {
    let done = SearchFixture::new().run().await;
    let by = |status| done.evaluations.values().find(move |eval| eval.status == status);
    let reason = |eval: &crate::workloads::search::manifest::SearchEval| {
        eval.decision.as_ref().and_then(|decision| decision.promotion_reason)
    };
    let nothing = by(EvalStatus::NoChanges).expect("one");
    assert_eq!((reason(nothing), &nothing.candidate_commit), (Some(Reason::NoChanges), &None));
    let failed = by(EvalStatus::Failed).expect("one");
    assert_eq!(reason(failed), Some(Reason::NotCompleted));
    assert!(failed.error.as_ref().is_some_and(|error| error.timed_out));
}

#[tokio::test]
async fn sweep_without_config_limit_is_judged_by_rows_and_ok_rate() {
    // Without the fixture's limit of configurations.
    let lab = SearchFixture::with("min_candidate_rows: 7");
    let mut opening = lab.opening();
    opening.tree.search.sweep_config_limit = None;
    let player = SimulatedBackend::new(lab.root(), &opening.tree);
    let (mut session, _lock) = lab.open(opening, player).await.expect("opened");
    session.run().expect("to its end");
    let evals = session.manifest().evaluations.values();
    let reasons: Vec<_> =
        evals.filter_map(|e| e.decision.as_ref().and_then(|d| d.promotion_reason)).collect();
    assert!(reasons.contains(&Reason::OkRateTooLow), "{reasons:?}");
    assert!(!reasons.contains(&Reason::TooFewRows), "{reasons:?}");
}

#[tokio::test]
async fn reports_contain_no_timestamps() {
    let lab = SearchFixture::new();
    lab.run().await;
    for text in &lab.files()[1..] {
        assert!(!text.contains("1970-01-01") && !text.contains("Generated"), "{text}");
    }
}

#[tokio::test]
async fn eval_result_names_its_worker() {
    let done = SearchFixture::new().run().await;
    assert!(done.evaluations.values().all(|eval| eval.worker.as_deref() == Some("player")));
}
