//! Reports of a search, from its manifest alone: equal manifests give equal bytes, and no clock is
//! in them.
//!
//! Every number says what it is relative to: *root* are the results that the search began with,
//! *parent* those of the node that the idea was tried on.

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

/// Makes a report.
pub type ReportRenderer = fn(&super::manifest::SearchManifest) -> String;

/// Names of the reports below the run's directory, and what makes them.
pub const REPORTS: &[(&str, ReportRenderer)] =
    &[("TREE_SUMMARY.md", summary), ("TREE_GRAPH.md", graph), ("tree.html", html)];

/// A number as people read it; what is not there is a dash.
fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "-".to_owned(), |v| format!("{v:.6}"))
}

/// The last part of an idea's path.
fn idea_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The word that a value has in the manifest.
fn serialized_name<T: serde::Serialize>(value: T) -> String {
    let value = serde_json::to_value(value).ok();
    value.as_ref().and_then(|value| value.as_str()).unwrap_or_default().to_owned()
}

/// The meaning of the numbers, in a sentence or two.
fn legend(manifest: &SearchManifest) -> String {
    let profile = &manifest.run_config.scoring_profile;
    format!(
        "\"Root\" is the comparison with the root's results, which ranks; \"parent\" the one with the \
         results of the node that the idea was tried on, which decides whether it may be promoted. \
         \"Primary\" is how much better {} is: positive is better.",
        profile.primary.column
    )
}
