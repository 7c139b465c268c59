//! Manifests and simulated evals for tests.

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;

use super::super::manifest::{
    ArtifactPolicy, ComparisonSummary, ContextStrategy, CopiedFile, DedupeScope, DuplicateIdeas,
    EvalStatus, MANIFEST_VERSION, NodeStatus, SearchEval, SearchManifest, SearchNode, SearchRoot,
    SearchRunConfig, SearchState,
};
use super::super::score::{Grade, Recommendation, SweepCompleteness};
use crate::config::ScoringProfile;
use rollout_protocol::search::{EvalId, NodeId};

fn provenance(path: &str) -> CopiedFile {
    CopiedFile {
        source_path: "somewhere".to_owned(),
        copied_to_path: path.to_owned(),
        sha256: Digest::sha256(path.as_bytes()).hex(),
    }
}

/// A search that has only its root.
pub(crate) fn new_search(change: impl FnOnce(&mut SearchRunConfig)) -> SearchManifest {
    let (at, baseline) = (Timestamp::UNIX_EPOCH, "artifacts/root_baseline.csv".to_owned());
    let profile = ScoringProfile::built_in("returns").expect("built in");
    let mut run_config = SearchRunConfig {
        ideas_per_node: 4,
        max_depth: 3,
        beam_width: 2,
        max_parallel_evals: 1,
        eval_retries: 0,
        eval_timeout_seconds: None,
        sweep_config_limit: Some(10),
        max_total_idea_evals: None,
        min_candidate_rows: 100,
        min_ok_rate: 1.0,
        primary_tolerance: 0.0,
        stop_on_empty_frontier: true,
        dedupe_scope: DedupeScope::NodePlusAncestors,
        dry_run: true,
        artifact_policy: ArtifactPolicy::CopyToRunRoot,
        ideas_context_strategy: ContextStrategy::NodePlusAncestors,
        node_ideas_root_dir: "node_ideas".to_owned(),
        context_ideas_dirs: Vec::new(),
        results_file: "results.csv".to_owned(),
        budget_seconds: None,
        budget_cost: None,
        budget_depth_cost: None,
        max_attempt_cost: None,
        keep_rejected_worktrees: false,
        keep_failed_artifacts: false,
        settings: serde_json::Value::Null,
        scoring_profile_digest: profile.digest().expect("plain"),
        scoring_profile: profile,
    };
    change(&mut run_config);
    let root = root(&baseline);
    SearchManifest {
        manifest_version: MANIFEST_VERSION,
        tree_run_id: "run".to_owned(),
        created_at: at,
        updated_at: at,
        run_config,
        root: SearchRoot {
            root_commit: "c0".to_owned(),
            root_ref_name: "tree/run/n0000".to_owned(),
            root_baseline_provenance: provenance(&baseline),
            root_baseline_csv_path: baseline,
        },
        state: SearchState {
            frontier_node_ids: vec![NodeId(0)],
            next_node_id: 1,
            ..SearchState::default()
        },
        events: Vec::new(),
        nodes: [(NodeId(0), root)].into(),
        evaluations: std::collections::BTreeMap::new(),
    }
}

/// The root.
fn root(baseline: &str) -> SearchNode {
    SearchNode {
        node_id: NodeId(0),
        parent_node_id: None,
        depth: 0,
        commit: "c0".to_owned(),
        ref_name: "tree/run/n0000".to_owned(),
        worktree_path: Some("wt/0000".to_owned()),
        baseline_results_csv_path: baseline.to_owned(),
        baseline_provenance: provenance(baseline),
        idea_chain: Vec::new(),
        promoted_from_eval_id: None,
        created_at: Timestamp::UNIX_EPOCH,
        status: NodeStatus::Frontier,
        node_ideas_dir: "node_ideas/0000".to_owned(),
        context_ideas_dirs: Vec::new(),
        context_idea_files: Vec::new(),
        context_pack_files: Vec::new(),
        ideas_cost: None,
        ideas_calls: Vec::new(),
        generated_idea_files: None,
        dedupe: DuplicateIdeas::default(),
    }
}

/// The result of an eval, by its number.
pub(crate) fn simulated_eval(manifest: &SearchManifest, id: EvalId) -> SearchEval {
    let eval = manifest.evaluations[&id].clone();
    let (explore, grade, delta, score, complete) = match id.0 % 7 {
        0 => (true, Grade::Promising, Some(0.02), 1.0, true),
        1 => (false, Grade::Mixed, Some(0.0), 0.8, true),
        2 => (false, Grade::Weak, Some(0.01), 0.4, true),
        3 => (true, Grade::Promising, Some(-0.0001), 0.9, true),
        4 => (true, Grade::Promising, Some(0.01), f64::NAN, true),
        5 => (true, Grade::Promising, Some(0.01), 0.7, false),
        _ => (true, Grade::Promising, Some(0.005), 0.6, true),
    };
    let view = |score: f64| ComparisonSummary {
        recommendation_summary: score.is_finite().then(|| Recommendation {
            should_explore: explore,
            grade,
            score,
            reasons: Vec::new(),
        }),
        primary_delta: delta,
        baseline_rows_used: 10,
        candidate_rows_used: 10,
        summary_json_path: format!("eval/{id}/score.json"),
    };
    let path = format!("artifacts/candidate_eval_{id}.csv");
    SearchEval {
        status: EvalStatus::Completed,
        attempt: 1,
        candidate_commit: Some(format!("c{id}")),
        candidate_ref_name: Some(format!("tree/run/e{id}")),
        candidate_results_provenance: Some(provenance(&path)),
        candidate_results_csv_path: Some(path),
        strict_completeness: Some(SweepCompleteness {
            expected_count: Some(10),
            observed_unique_config_ids: 10,
            ok_count: if complete { 10 } else { 9 },
            error_count: u64::from(!complete),
        }),
        parent_relative: Some(view(if score.is_nan() { 0.5 } else { score })),
        root_relative: Some(view(score)),
        ..eval
    }
}

/// An eval on the root that may be promoted.
pub(crate) fn promotable_eval(manifest: &mut SearchManifest, id: EvalId) -> SearchEval {
    let file = super::super::idea::idea_file(format!("node_ideas/0000/{id}.md"), b"idea");
    manifest.state.next_eval_id = id.0;
    super::plan::add_eval(manifest, NodeId(0), 0, file, Timestamp::UNIX_EPOCH);
    let good = EvalId(0);
    let queued = manifest.evaluations[&id].clone();
    let mut model = manifest.clone();
    model.evaluations.insert(good, queued);
    SearchEval { eval_id: id, ..simulated_eval(&model, good) }
}

/// A search that has ended.
pub(crate) fn finished_search() -> SearchManifest {
    super::tests::plain(new_search(|_| {}))
}
