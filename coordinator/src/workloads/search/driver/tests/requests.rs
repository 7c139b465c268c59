//! Tests of user requests to an existing search.

use super::*;
use crate::workloads::search::manifest::{EvalStatus, ManifestEventKind, NodeStatus};
use rollout_protocol::search::{EvalId, NodeId};

#[tokio::test]
async fn search_resume_with_changed_config_is_refused() {
    let mut lab = SearchFixture::new();
    assert!(!lab.run_session(5).await);
    lab.more = "min_ok_rate: 0.5";
    let changed = lab.open(lab.opening(), lab.backend()).await.err();
    match changed {
        Some(SearchError::Changed { differences, .. }) => {
            assert_eq!(differences, ["min_ok_rate: 1.0 is now 0.5"]);
        }
        other => panic!("{other:?}"),
    }
    lab.more = "limits: {llm_max_inflight: 3}";
    assert!(lab.run_session(u32::MAX).await);
    lab.more = "";
    let refused =
        lab.open(SearchOpenOptions { resume: false, ..lab.opening() }, lab.backend()).await.err();
    assert!(matches!(refused, Some(SearchError::Exists { .. })), "{refused:?}");
    let real =
        lab.open(SearchOpenOptions { dry_run: false, ..lab.opening() }, lab.backend()).await.err();
    assert!(matches!(real, Some(SearchError::Changed { .. })), "{real:?}");
}

#[tokio::test]
async fn search_of_other_version_is_refused_without_new_session() {
    let lab = SearchFixture::new();
    assert!(!lab.run_session(5).await);
    let sessions = || std::fs::read_dir(lab.root().join("journal")).expect("listed").count();
    let before = sessions();
    let path = lab.root().join("manifest.json");
    let text = std::fs::read(&path).expect("readable");
    let mut manifest: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    manifest["manifest_version"] = 4.into();
    std::fs::write(&path, manifest.to_string()).expect("writable");
    let refused = lab.open(lab.opening(), lab.backend()).await.err();
    assert!(matches!(refused, Some(SearchError::Damaged { .. })), "{refused:?}");
    assert_eq!(sessions(), before);
}

#[tokio::test]
async fn rerun_evals_repeats_results_of_current_depth() {
    let whole = SearchFixture::new();
    whole.run().await;
    let lab = SearchFixture::new();
    // The ideas, the plan, and one eval that ran and is settled.
    assert!(!lab.run_session(4).await);
    let again = SearchOpenOptions { rerun_evals: true, ..lab.opening() };
    let (mut session, _lock) = lab.open(again, lab.backend()).await.expect("opened");
    let evals = &session.manifest().evaluations;
    assert_eq!(evals.len(), 4);
    assert!(evals.values().all(|eval| eval.status == EvalStatus::Queued));
    session.run().expect("to its end");
    let done = session.manifest();
    let evals = (0..4).map(EvalId).collect();
    let asked = ManifestEventKind::EvalsRequeued { evals, withdrawn: Vec::new() };
    assert!(done.events.iter().any(|event| event.kind == asked));
    let decisions = |manifest: &SearchManifest| -> Vec<_> {
        let evals = manifest.evaluations.values();
        evals.map(|e| e.decision.as_ref().map(|d| (d.promotion_reason, d.rank_score))).collect()
    };
    let before = SearchDirectory::new(whole.root()).manifest().expect("there");
    assert_eq!(decisions(done), decisions(&before));
}

#[tokio::test]
async fn regenerate_ideas_replaces_ideas_without_results() {
    let lab = SearchFixture::new();
    // The ideas and the plan.
    assert!(!lab.run_session(2).await);
    let mark = lab.root().join("node_ideas/0000/idea-009.md");
    std::fs::write(&mark, "- Of the first generation").expect("written");
    let again = SearchOpenOptions { force_regenerate_ideas: true, ..lab.opening() };
    let (mut session, _lock) = lab.open(again, lab.backend()).await.expect("opened");
    assert!(!mark.exists() && session.manifest().evaluations.is_empty());
    session.run().expect("to its end");
    let done = session.manifest();
    let first = *done.evaluations.keys().next().expect("evals");
    assert_eq!(first, EvalId(4), "numbers are never reused");
    let asked = ManifestEventKind::IdeasDiscarded { nodes: vec![NodeId(0)] };
    assert!(done.events.iter().any(|event| event.kind == asked));
}

#[tokio::test]
async fn regenerate_ideas_keeps_ideas_with_results() {
    let lab = SearchFixture::new();
    assert!(!lab.run_session(4).await);
    let again = SearchOpenOptions { force_regenerate_ideas: true, ..lab.opening() };
    let (session, _lock) = lab.open(again, lab.backend()).await.expect("opened");
    assert_eq!(session.manifest().evaluations.len(), 4);
    assert!(lab.root().join("node_ideas/0000").is_dir());
}

#[tokio::test]
async fn keep_options_preserve_failed_and_rejected_files() {
    let lab = SearchFixture::with("keep_failed_artifacts: true\nkeep_rejected_worktrees: true");
    let done = lab.run().await;
    let failed = done.evaluations.values().find(|eval| eval.status == EvalStatus::Failed);
    let failed = failed.expect("one takes too long");
    let kept = failed.experiment_dir.as_ref().expect("it was kept");
    assert!(lab.root().join(kept).is_dir());
    let promoted = |eval: &crate::workloads::search::manifest::SearchEval| {
        eval.decision.as_ref().is_some_and(|d| d.promoted_to_node_id.is_some())
    };
    for (id, eval) in &done.evaluations {
        let there = lab.root().join(format!("cand/{id}")).exists();
        let waits = done.state.deferred_cleanup.iter().any(|c| c.path == format!("cand/{id}"));
        let kept = !promoted(eval) && eval.candidate_commit.is_some();
        assert_eq!(there, waits || kept, "{id}");
    }
    let lab = SearchFixture::new();
    let done = lab.run().await;
    let failed = done.evaluations.values().find(|eval| eval.status == EvalStatus::Failed);
    let failed = failed.expect("one");
    assert_eq!(failed.experiment_dir, None, "no path to removed files");
    assert!(!lab.root().join(&failed.eval_output_root).join("experiment").exists());
}

#[tokio::test]
async fn budget_of_cost_or_seconds_ends_search_between_depths() {
    for (more, expected) in [
        ("budgets: {cost: 0.1}", 4),
        ("budgets: {seconds: 41}", 12),
        // An eval with two attempts took twice as long.
        ("budgets: {seconds: 140}", 12),
        ("budgets: {cost: 1000, seconds: 100000}", 20),
    ] {
        let done = SearchFixture::with(more).run().await;
        assert_eq!(done.evaluations.len(), expected, "{more}");
        let spent = done.state.stop_reason == Some(StopReason::BudgetSpent);
        assert_eq!(spent, expected < 20, "{more}");
        assert!(done.evaluations.values().all(|eval| eval.decision.is_some()));
    }
}

#[tokio::test]
async fn crash_while_discarding_ideas_leaves_all_or_none() {
    let lab = SearchFixture::new();
    assert!(!lab.run_session(2).await);
    let (ideas, old) =
        (lab.root().join("node_ideas/0000"), lab.root().join("node_ideas/.old-0000"));
    let count = || std::fs::read_dir(&ideas).expect("there").count();
    let all = count();
    // Before the manifest records the discard: the ideas come back.
    std::fs::rename(&ideas, &old).expect("renamed");
    let (session, lock) = lab.open(lab.opening(), lab.backend()).await.expect("opened");
    assert_eq!((session.manifest().evaluations.len(), count()), (4, all));
    drop((session, lock));
    // After it, with an obstacle to the removal: old ideas must not be taken for new ones.
    let mark = ideas.join("idea-009.md");
    std::fs::write(&mark, "- Of the first generation").expect("written");
    let in_the_way = lab.root().join("eval/0001");
    std::fs::write(&in_the_way, "").expect("written");
    let again = SearchOpenOptions { force_regenerate_ideas: true, ..lab.opening() };
    let failed = lab.open(again, lab.backend()).await.err();
    assert!(matches!(failed, Some(SearchError::File { .. })), "{failed:?}");
    std::fs::remove_file(&in_the_way).expect("removed");
    assert!(!ideas.exists() && old.exists());
    std::fs::remove_file(old.join("idea-000.md")).expect("one was removed already");
    std::fs::create_dir_all(&in_the_way).expect("a directory of an eval");
    assert!(lab.run_session(u32::MAX).await);
    assert_eq!(count(), all);
    assert!(!mark.exists() && !old.exists() && !in_the_way.exists());
}

#[tokio::test]
async fn crash_while_discarding_results_leaves_none_without_file() {
    let lab = SearchFixture::new();
    assert!(!lab.run_session(4).await);
    let file = |id: u32| lab.root().join(format!("eval/000{id}/eval_result.json"));
    let first = std::fs::read(file(0)).expect("it is settled");
    std::fs::create_dir_all(file(1)).expect("in the way");
    let again = SearchOpenOptions { rerun_evals: true, ..lab.opening() };
    let failed = lab.open(again, lab.backend()).await.err();
    assert!(matches!(failed, Some(SearchError::File { .. })), "{failed:?}");
    let manifest = SearchDirectory::new(lab.root()).manifest().expect("there");
    for (id, eval) in &manifest.evaluations {
        assert!(!eval.status.is_settled() || file(id.0).exists(), "{id}");
    }
    // A discarded result is ignored, even if its file still exists.
    std::fs::remove_dir(file(1)).expect("removed");
    std::fs::write(file(0), &first).expect("written");
    let (mut session, _lock) = lab.open(lab.opening(), lab.backend()).await.expect("opened");
    assert!(session.unmerged.is_empty());
    session.run().expect("to its end");
    assert_ne!(std::fs::read(file(0)).expect("made again"), first);
}

#[tokio::test]
async fn discarded_results_still_count_against_budget() {
    for more in ["budgets: {cost: 2.5}", "budgets: {seconds: 60}"] {
        let whole = SearchFixture::with(more).run().await;
        assert!(whole.evaluations.len() > 4, "the first depth alone does not spend it");
        let lab = SearchFixture::with(more);
        // All four of the first depth, the last of them not merged.
        assert!(!lab.run_session(9).await);
        let again = SearchOpenOptions { rerun_evals: true, ..lab.opening() };
        let (mut session, _lock) = lab.open(again, lab.backend()).await.expect("opened");
        let thrown_away = session.manifest().state.thrown_away;
        assert!(thrown_away.cost > 1.0 && thrown_away.seconds >= 30.0, "{thrown_away:?}");
        session.run().expect("to its end");
        let done = session.manifest();
        assert_eq!(done.state.stop_reason, Some(StopReason::BudgetSpent), "{more}");
        assert_eq!(done.evaluations.len(), 4, "{more}");
    }
    let lab = SearchFixture::new();
    assert!(!lab.run_session(2).await);
    let mut manifest = SearchDirectory::new(lab.root()).manifest().expect("there");
    manifest.nodes.get_mut(&NodeId(0)).expect("the root").ideas_cost = Some(7.0);
    rollout_engine::atomic_file::write_json(&lab.root().join("manifest.json"), &manifest)
        .expect("written");
    let again = SearchOpenOptions { force_regenerate_ideas: true, ..lab.opening() };
    let (session, _lock) = lab.open(again, lab.backend()).await.expect("opened");
    assert_eq!(session.manifest().state.thrown_away.cost, 7.0);
    assert_eq!(session.manifest().node(NodeId(0)).ideas_cost, None);
}

#[tokio::test]
async fn rerun_of_ended_search_repeats_last_depth_in_new_round() {
    let lab = SearchFixture::new();
    let before = lab.run().await;
    let again = SearchOpenOptions { rerun_evals: true, ..lab.opening() };
    let (mut session, _lock) = lab.open(again, lab.backend()).await.expect("opened");
    let begun = session.manifest().clone();
    assert_eq!((begun.state.current_depth, begun.state.stopped), (2, false));
    assert_eq!(begun.nodes.len(), before.nodes.len() - 2, "its promotions are withdrawn");
    let last: Vec<EvalId> = begun.evals_at(2).map(|(id, _)| *id).collect();
    assert_eq!(last.len(), 8);
    for id in &last {
        let eval = &begun.evaluations[id];
        assert_eq!((eval.status, &eval.decision), (EvalStatus::Queued, &None), "{id}");
        assert_eq!(begun.eval_discards(*id), 1, "a new round has new keys");
    }
    assert_eq!(begun.eval_discards(EvalId(0)), 0, "other depths stay");
    session.run().expect("to its end");
    let done = session.manifest();
    let decided = |manifest: &SearchManifest| {
        let one = |eval: &crate::workloads::search::manifest::SearchEval| {
            let decision = eval.decision.as_ref().expect("decided");
            (decision.promotion_reason, decision.rank_score, decision.promoted_to_node_id)
        };
        manifest.evaluations.values().map(one).collect::<Vec<_>>()
    };
    assert_eq!(decided(done), decided(&before));
    let nodes = |manifest: &SearchManifest| {
        let nodes = manifest.nodes.iter().map(|(id, node)| (*id, node.commit.clone(), node.status));
        nodes.collect::<Vec<_>>()
    };
    assert_eq!(nodes(done), nodes(&before));
    assert_eq!(done.state.stop_reason, before.state.stop_reason);
    let withdrawn = before.state.frontier_node_ids.clone();
    let asked = ManifestEventKind::EvalsRequeued { evals: last, withdrawn };
    assert!(done.events.iter().any(|event| event.kind == asked), "{:?}", done.events);
    use crate::workloads::search::validate::{CommitSource, check};
    let validation = check(&SearchDirectory::new(lab.root()), done, CommitSource::Unknown);
    assert_eq!(validation.faults, []);
}

#[tokio::test]
async fn manifest_of_ended_search_names_only_existing_files() {
    let lab = SearchFixture::new();
    let done = lab.run().await;
    let there = |path: &str| assert!(lab.root().join(path).exists(), "{path} is missing");
    for node in done.nodes.values() {
        node.worktree_path.iter().for_each(|path| there(path));
        there(&node.baseline_results_csv_path);
        assert_eq!(node.worktree_path.is_some(), node.status == NodeStatus::Frontier);
    }
    for eval in done.evaluations.values() {
        eval.experiment_dir.iter().for_each(|path| there(path));
        eval.candidate_results_csv_path.iter().for_each(|path| there(path));
        assert_eq!(eval.candidate_ref_name, None, "nodes have their own, the others have none");
        let decision = eval.decision.as_ref().expect("decided");
        assert!(decision.promotion_reason.is_some(), "{}", eval.eval_id);
    }
    let failed = done.evaluations.values().filter(|eval| eval.experiment_dir.is_none());
    assert!(failed.count() > 0, "files of failed evals are removed");
}
