//! Overview of a search, for terminals and programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::super::manifest::{
    ContextStrategy, EvalStatus, SearchEval, SearchEvalError, SearchManifest, SpendingSummary,
    StepCalls, StopReason,
};
use super::best::{best_path, promoted_from, root_comparison};
use super::outcome::outcome;
use super::relative::RelativeResults;
use super::{decision_reason, idea_name};
use rollout_protocol::search::{EvalId, NodeId};

/// Overview of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchOverview {
    /// Name of the search.
    pub tree_run_id: String,
    /// Whether the search is simulated.
    pub dry_run: bool,
    /// Why it ended; `None` while it has not.
    pub stop_reason: Option<StopReason>,
    /// The depth that is being expanded.
    pub current_depth: u32,
    /// Number of nodes, the root included.
    pub nodes: usize,
    /// Number of evals.
    pub evals: usize,
    /// Number of settled evals.
    pub settled: usize,
    /// Their outcomes.
    pub counts: OutcomeCounts,
    /// Number of failed removals to retry.
    pub deferred_cleanup: usize,
    /// The ideas shown to a generator.
    pub ideas_context_strategy: ContextStrategy,
    /// Column of the primary metric.
    pub primary_metric: String,
    /// The path from the root to the best node.
    pub best_path: Vec<BestStep>,
    /// The tried ideas.
    pub ideas: Vec<TriedIdea>,
    /// Cost of the whole search, discarded results included.
    pub spending: SpendingSummary,
    /// Cost of each depth, from 0: of the ideas of its nodes and of the evals on them.
    pub spending_by_depth: Vec<SpendingSummary>,
    /// Cost of each node, by its number: of its ideas and of the evals on it.
    pub spending_by_node: BTreeMap<NodeId, SpendingSummary>,
}

/// Outcomes of the evals of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OutcomeCounts {
    /// With results that could be scored.
    pub scored: usize,
    /// With results that could not be scored.
    pub not_scored: usize,
    /// With an idea that changed nothing.
    pub no_changes: usize,
    /// Failed, also by the infrastructure's fault.
    pub failed: usize,
    /// Failed by the infrastructure's fault.
    pub failed_by_infrastructure: usize,
    /// Not settled yet.
    pub open: usize,
}

/// A node of the best path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BestStep {
    /// The node.
    pub node_id: NodeId,
    /// The idea that led to it; `None` for the root.
    pub idea: Option<String>,
    /// Its score against the root, by which it ranks.
    pub rank_score: Option<f64>,
    /// Its results against the root's; `None` for the root.
    pub root_relative: Option<RelativeResults>,
    /// Its results against its parent's; `None` for the root.
    pub parent_relative: Option<RelativeResults>,
    /// Its commit.
    pub commit: String,
    /// Its own results: the baseline of the ideas that are tried on it.
    pub baseline_csv_path: String,
}

/// An idea that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TriedIdea {
    /// The eval.
    pub eval_id: EvalId,
    /// The depth of the node it was tried on.
    pub depth: u32,
    /// That node.
    pub parent_node_id: NodeId,
    /// File name of the idea.
    pub idea: String,
    /// Status of the eval.
    pub status: EvalStatus,
    /// Its score against the root, by which it ranks.
    pub rank_score: Option<f64>,
    /// Its results against the root's.
    pub root_relative: RelativeResults,
    /// Its results against its parent's.
    pub parent_relative: RelativeResults,
    /// The decision in words.
    pub outcome: String,
    /// Detailed reason, if more is known than the outcome.
    pub why: Option<String>,
    /// The error, if it failed or its results cannot be used.
    pub error: Option<SearchEvalError>,
    /// The node that it became.
    pub promoted_to_node_id: Option<NodeId>,
    /// The commit that it became.
    pub commit: Option<String>,
    /// Its results, below the directory of the search.
    pub candidate_csv_path: Option<String>,
    /// Cost that its commands reported, and of the model calls of its agents.
    pub cost: Option<f64>,
    /// Model calls of its agents, by step.
    pub calls: Vec<StepCalls>,
    /// Variables of values in its results, output and commit that look like secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub possible_secrets: Vec<String>,
}

impl SearchOverview {
    /// The overview of a manifest.
    pub fn from_manifest(manifest: &SearchManifest) -> Self {
        let state = &manifest.state;
        let settled = manifest.evaluations.values().filter(|eval| eval.status.is_settled());
        Self {
            tree_run_id: manifest.tree_run_id.clone(),
            dry_run: manifest.run_config.dry_run,
            stop_reason: state.stop_reason.filter(|_| state.stopped),
            current_depth: state.current_depth,
            nodes: manifest.nodes.len(),
            evals: manifest.evaluations.len(),
            settled: settled.count(),
            counts: OutcomeCounts::from_manifest(manifest),
            deferred_cleanup: state.deferred_cleanup.len(),
            ideas_context_strategy: manifest.run_config.ideas_context_strategy,
            primary_metric: manifest.run_config.scoring_profile.primary.column.clone(),
            best_path: best_path(manifest).into_iter().map(|id| step(manifest, id)).collect(),
            ideas: manifest.evaluations.values().map(|eval| tried(manifest, eval)).collect(),
            spending: manifest.spending(),
            spending_by_depth: manifest.depths().map(|depth| manifest.spending_at(depth)).collect(),
            spending_by_node: manifest
                .nodes
                .keys()
                .map(|id| (*id, manifest.spending_of(*id)))
                .filter(|(_, spending)| !spending.is_nothing())
                .collect(),
        }
    }
}

impl OutcomeCounts {
    /// The counts of a manifest.
    pub fn from_manifest(manifest: &SearchManifest) -> Self {
        let mut counts = Self::default();
        for eval in manifest.evaluations.values() {
            let count = match eval.status {
                EvalStatus::Completed if eval.parent_relative.is_some() => &mut counts.scored,
                EvalStatus::Completed => &mut counts.not_scored,
                EvalStatus::NoChanges => &mut counts.no_changes,
                EvalStatus::Failed => &mut counts.failed,
                EvalStatus::Queued | EvalStatus::Running => &mut counts.open,
            };
            *count += 1;
            let ours = eval.error.as_ref().is_some_and(|error| error.infrastructure);
            counts.failed_by_infrastructure += usize::from(ours);
        }
        counts
    }

    /// Number of all evals.
    pub fn total(&self) -> usize {
        self.scored + self.not_scored + self.no_changes + self.failed + self.open
    }

    /// Whether there were evals, and every one of them failed or has results that cannot be
    /// scored.
    pub fn has_only_failures(&self) -> bool {
        self.failed + self.not_scored > 0 && self.scored + self.no_changes + self.open == 0
    }
}

impl fmt::Display for OutcomeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.total())?;
        let parts = [
            (self.scored, "scored"),
            (self.not_scored, "with results that cannot be scored"),
            (self.no_changes, "without changes"),
            (self.failed, "failed"),
            (self.open, "open"),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        for (at, (count, what)) in parts.enumerate() {
            write!(f, "{}{count} {what}", if at == 0 { " (" } else { ", " })?;
            if what == "failed" && self.failed_by_infrastructure > 0 {
                write!(f, " of which {} by the infrastructure", self.failed_by_infrastructure)?;
            }
        }
        if self.total() > 0 { f.write_str(")") } else { Ok(()) }
    }
}

fn step(manifest: &SearchManifest, id: NodeId) -> BestStep {
    let node = manifest.node(id);
    let eval = promoted_from(manifest, id);
    BestStep {
        node_id: id,
        idea: node.idea_chain.last().map(|path| idea_name(path).to_owned()),
        rank_score: root_comparison(manifest, id).map(|(score, _)| score),
        root_relative: eval.map(|eval| RelativeResults::to_root(manifest, eval)),
        parent_relative: eval.map(|eval| RelativeResults::to_parent(manifest, eval)),
        commit: node.commit.clone(),
        baseline_csv_path: node.baseline_results_csv_path.clone(),
    }
}

fn tried(manifest: &SearchManifest, eval: &SearchEval) -> TriedIdea {
    TriedIdea {
        eval_id: eval.eval_id,
        depth: eval.depth,
        parent_node_id: eval.parent_node_id,
        idea: idea_name(&eval.idea_path).to_owned(),
        status: eval.status,
        rank_score: eval.decision.as_ref().and_then(|decision| decision.rank_score),
        root_relative: RelativeResults::to_root(manifest, eval),
        parent_relative: RelativeResults::to_parent(manifest, eval),
        outcome: outcome(eval),
        why: decision_reason(manifest, eval),
        error: eval.error.clone(),
        promoted_to_node_id: eval.decision.as_ref().and_then(|d| d.promoted_to_node_id),
        commit: eval.candidate_commit.clone(),
        candidate_csv_path: eval.candidate_results_csv_path.clone(),
        cost: eval.cost,
        calls: eval.calls.clone(),
        possible_secrets: eval.possible_secrets.clone(),
    }
}
