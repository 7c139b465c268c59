//! Progress events of a search.

use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::search::{PromotedEval, SearchEvent};
use tokio::sync::mpsc;

use crate::workloads::search::driver::EvalResult;
use crate::workloads::search::manifest::{SearchEval, SearchManifest};
use crate::workloads::search::report::{best_path, decision_reason};

/// Sends events. Blocks while the outputs are full, so it must not be called from an async task.
pub(super) fn send(events: &mpsc::Sender<Vec<RunEvent>>, search_events: Vec<SearchEvent>) {
    let at = Timestamp::now();
    let told =
        search_events.into_iter().map(|event| RunEvent { at, kind: EventKind::Search(event) });
    // Closed outputs report their own error.
    let _gone = events.blocking_send(told.collect());
}

/// The events at the start of a session.
pub(super) fn started_events(manifest: &SearchManifest) -> Vec<SearchEvent> {
    let evals = &manifest.evaluations;
    let best = best_path(manifest).last().and_then(|id| {
        let eval = manifest.node(*id).promoted_from_eval_id?;
        let score = evals.get(&eval)?.decision.as_ref()?.rank_score;
        Some(PromotedEval { node: *id, eval, score })
    });
    vec![SearchEvent::SearchStarted {
        search: manifest.tree_run_id.clone(),
        depth: manifest.state.current_depth,
        max_depth: manifest.run_config.max_depth,
        settled: evals.values().filter(|eval| eval.status.is_settled()).count() as u64,
        planned: evals.len() as u64,
        best,
    }]
}

/// The events of the last block of a manifest.
pub(super) fn block_events(manifest: &SearchManifest) -> Vec<SearchEvent> {
    let state = &manifest.state;
    if state.planned_depth == Some(state.current_depth) {
        let (depth, nodes) = (state.current_depth, state.frontier_node_ids.len() as u64);
        let evals = manifest.evals_at(depth).count() as u64;
        return vec![SearchEvent::DepthPlanned { depth, evals, nodes }];
    }
    let promoted = state.frontier_node_ids.iter().filter_map(|id| {
        let eval = manifest.node(*id).promoted_from_eval_id?;
        let decision = manifest.evaluations.get(&eval)?.decision.as_ref()?;
        Some(PromotedEval { node: *id, eval, score: decision.rank_score })
    });
    let depth = state.current_depth.saturating_sub(1);
    let stop = state.stop_reason.filter(|_| state.stopped);
    let evals = manifest.evals_at(depth).map(|(_, eval)| eval);
    let mut told: Vec<_> = evals.filter_map(|eval| rejected(manifest, eval)).collect();
    told.push(SearchEvent::DepthDecided { depth, promoted: promoted.collect(), stop });
    told
}

/// The event of an eval with a result.
pub(super) fn eval_ended(result: &EvalResult) -> SearchEvent {
    let error = result.error.as_ref();
    SearchEvent::EvalEnded {
        eval: result.eval_id,
        node: result.parent_node_id,
        status: result.status,
        error: error.map(|error| format!("{}: {}", error.error_type, error.message)),
    }
}

/// The event of an eval that was not promoted; `None` if it was.
fn rejected(manifest: &SearchManifest, eval: &SearchEval) -> Option<SearchEvent> {
    let decision = eval.decision.as_ref().filter(|d| d.promoted_to_node_id.is_none())?;
    let mut reason = decision.promotion_reason?.to_string();
    if let Some(why) = decision_reason(manifest, eval) {
        reason = format!("{reason}: {why}");
    }
    Some(SearchEvent::EvalRejected { eval: eval.eval_id, reason })
}
