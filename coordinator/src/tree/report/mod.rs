//! Reports of a search, from its manifest alone: equal manifests give equal bytes, and no clock is
//! in them.

mod best;
mod graph;
mod html;
mod overview;
mod summary;
mod svg;
#[cfg(test)]
mod tests;

use super::manifest::{Eval, Reason};

pub use best::best_path;
pub use graph::graph;
pub use html::html;
pub use overview::{BestStep, Overview, TriedIdea};
pub(crate) use summary::cell;
pub use summary::summary;

/// Makes a report.
pub type Render = fn(&super::manifest::Manifest) -> String;

/// Names of the reports below the run's directory, and what makes them.
pub const REPORTS: &[(&str, Render)] =
    &[("TREE_SUMMARY.md", summary), ("TREE_GRAPH.md", graph), ("tree.html", html)];

/// What was decided about an eval, in a few words.
fn verdict(eval: &Eval) -> String {
    let Some(decision) = &eval.decision else { return "not decided".to_owned() };
    match (decision.promoted_to_node_id, decision.promotion_reason) {
        (Some(node), _) => format!("promoted to {node}"),
        (None, Some(reason)) => reason.to_string(),
        (None, None) => Reason::BeyondBeam.to_string(),
    }
}

/// A number as people read it; what is not there is a dash.
fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "-".to_owned(), |v| format!("{v:.6}"))
}

/// The last part of an idea's path.
fn idea_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
