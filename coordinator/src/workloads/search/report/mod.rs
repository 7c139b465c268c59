//! Reports of a search, from its manifest alone: equal manifests give equal bytes, and no report
//! contains the current time.
//!
//! Every number names its baseline: *root* are the results that the search began with, *parent*
//! those of the node on which the idea was tried.

mod best;
mod graph;
mod html;
mod outcome;
mod overview;
mod relative;
mod summary;
mod svg;
#[cfg(test)]
mod tests;

use super::manifest::SearchManifest;

pub use best::best_path;
pub use graph::graph;
pub use html::html;
pub use outcome::decision_reason;
pub use overview::{BestStep, OutcomeCounts, SearchOverview, TriedIdea};
pub use relative::RelativeResults;
pub(crate) use summary::cell;
pub use summary::summary;

/// Renders a report.
pub type ReportRenderer = fn(&super::manifest::SearchManifest) -> String;

/// Names of the reports in the run's directory, and their renderers.
pub const REPORTS: &[(&str, ReportRenderer)] =
    &[("TREE_SUMMARY.md", summary), ("TREE_GRAPH.md", graph), ("tree.html", html)];

/// A number for humans; a dash if there is none.
fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "-".to_owned(), |v| format!("{v:.6}"))
}

/// The last part of an idea's path.
fn idea_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The name of a value in the manifest.
fn serialized_name<T: serde::Serialize>(value: T) -> String {
    let value = serde_json::to_value(value).ok();
    value.as_ref().and_then(|value| value.as_str()).unwrap_or_default().to_owned()
}

/// The meaning of the numbers.
fn legend(manifest: &SearchManifest) -> String {
    let profile = &manifest.run_config.scoring_profile;
    format!(
        "\"Root\" is the comparison with the root's results, which ranks; \"parent\" the one with the \
         results of the node that the idea was tried on, which decides whether it may be promoted. \
         \"Primary\" is how much better {} is: positive is better.",
        profile.primary.column
    )
}
