//! What a search tells while it goes on.

use std::fmt;

use crate::workloads::search::driver::EvalResult;
use crate::workloads::search::ids::{EvalId, NodeId};
use crate::workloads::search::manifest::{Eval, Manifest, StopReason};
use crate::workloads::search::report::why;

/// One thing that happened, in words for people.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// A node's ideas are being written.
    IdeasBegin {
        /// The node.
        node: NodeId,
    },
    /// The evals of a depth were planned.
    Planned {
        /// The depth.
        depth: u32,
        /// How many.
        evals: usize,
        /// Of how many nodes.
        nodes: usize,
    },
    /// An eval was asked for.
    EvalBegins {
        /// The eval.
        eval: EvalId,
        /// Its node.
        node: NodeId,
        /// File of its idea.
        idea: String,
    },
    /// An eval has a result.
    EvalEnds(Box<EvalResult>),
    /// An eval was not promoted.
    Rejected {
        /// The eval.
        eval: EvalId,
        /// Why.
        reason: String,
    },
    /// A depth is done.
    Promoted {
        /// The depth.
        depth: u32,
        /// The nodes of the next, with their scores.
        nodes: Vec<(NodeId, EvalId, Option<f64>)>,
        /// Why the search ends now, if it does.
        stop: Option<StopReason>,
    },
}

impl Progress {
    /// What the last block of a manifest was.
    pub(super) fn of(manifest: &Manifest) -> Vec<Self> {
        let state = &manifest.state;
        if state.planned_depth == Some(state.current_depth) {
            let (depth, nodes) = (state.current_depth, state.frontier_node_ids.len());
            return vec![Self::Planned { depth, evals: manifest.evals_at(depth).count(), nodes }];
        }
        let nodes = state.frontier_node_ids.iter().filter_map(|id| {
            let eval = manifest.node(*id).promoted_from_eval_id?;
            let decision = manifest.evaluations.get(&eval)?.decision.as_ref()?;
            Some((*id, eval, decision.rank_score))
        });
        let depth = state.current_depth.saturating_sub(1);
        let stop = state.stop_reason.filter(|_| state.stopped);
        let evals = manifest.evals_at(depth).map(|(_, eval)| eval);
        let mut told: Vec<_> = evals.filter_map(|eval| rejected(manifest, eval)).collect();
        told.push(Self::Promoted { depth, nodes: nodes.collect(), stop });
        told
    }
}

/// Why an eval was not promoted; nothing when it was.
fn rejected(manifest: &Manifest, eval: &Eval) -> Option<Progress> {
    let decision = eval.decision.as_ref().filter(|d| d.promoted_to_node_id.is_none())?;
    let mut reason = decision.promotion_reason?.to_string();
    if let Some(why) = why(manifest, eval) {
        reason = format!("{reason}: {why}");
    }
    Some(Progress::Rejected { eval: eval.eval_id, reason })
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdeasBegin { node } => write!(f, "node {node}: ideas are being written"),
            Self::Planned { depth, evals, nodes } => {
                write!(f, "depth {depth}: {evals} ideas to try on {nodes} nodes")
            }
            Self::EvalBegins { eval, node, idea } => {
                write!(f, "eval {eval} of node {node}: {idea}")
            }
            Self::EvalEnds(result) => {
                let status = serde_json::to_value(result.status).unwrap_or_default();
                let status = status.as_str().unwrap_or_default().replace('_', " ");
                write!(f, "eval {}: {status}", result.eval_id)?;
                match &result.error {
                    Some(error) => write!(f, ": {}: {}", error.error_type, error.message),
                    None => Ok(()),
                }
            }
            Self::Rejected { eval, reason } => write!(f, "eval {eval} is not promoted: {reason}"),
            Self::Promoted { depth, nodes, stop } => {
                write!(f, "depth {depth}: {} promoted", nodes.len())?;
                for (node, eval, score) in nodes {
                    let score = score.map_or_else(|| "-".to_owned(), |score| format!("{score:.4}"));
                    write!(f, ", eval {eval} is node {node} (score {score} against the root)")?;
                }
                match stop {
                    Some(_) => f.write_str("; the search has ended"),
                    None => Ok(()),
                }
            }
        }
    }
}
