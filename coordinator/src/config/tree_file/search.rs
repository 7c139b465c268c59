//! How wide and deep a search goes, and what is promoted.

use serde::{Deserialize, Serialize};

use super::super::reader::Fields;
use super::{MAX_COUNT, count};

keys! {
    /// How wide and deep a search goes, and what is promoted.
    pub(crate) table SearchKeys {
        ideas_per_node: "integer", "7", "Ideas tried on a node, repeated ones not counted.";
        max_depth: "integer", "3", "Depth at which the search ends.";
        beam_width: "integer", "1", "Nodes promoted at a depth.";
        max_total_idea_evals: "integer", "", "Evals of the whole search.";
        max_parallel_evals: "integer", "1", "Evals at once.";
        eval_timeout_seconds: "number", "", "Time limit of an eval.";
        eval_retries: "integer", "0", "Further tries of an eval whose commands failed.";
        sweep_config_limit: "integer", "", "Configurations that every sweep runs, all of them.";
        min_candidate_rows: "integer", "100", "Rows that a sweep must have without that.";
        min_ok_rate: "number", "1.0", "Share of rows that must have succeeded then.";
        primary_tolerance: "number", "0.0", "How far the primary metric may fall.";
        stop_on_empty_frontier: "true|false", "true",
            "Whether the search ends when nothing was promoted.";
        artifact_policy: "copy_to_run_root|external_paths", "copy_to_run_root",
            "Whether results are copied below the directory of the search.";
        dedupe_scope: "none|node|node_plus_ancestors|global", "node_plus_ancestors",
            "Among which ideas one may not be repeated.";
        ideas_context_strategy: "global_prior_ideas|node_only|node_plus_ancestors", "node_plus_ancestors",
            "Which ideas the generator is shown.";
    }
}

/// Where artifacts are kept.
pub(super) const ARTIFACT_POLICIES: &[(&str, ArtifactPolicy)] = &[
    ("copy_to_run_root", ArtifactPolicy::CopyToRunRoot),
    ("external_paths", ArtifactPolicy::ExternalPaths),
];

/// Among which ideas one may not be repeated.
pub(super) const DEDUPE_SCOPES: &[(&str, DedupeScope)] = &[
    ("none", DedupeScope::None),
    ("node", DedupeScope::Node),
    ("node_plus_ancestors", DedupeScope::NodePlusAncestors),
    ("global", DedupeScope::Global),
];

/// Words of the strategies.
pub(super) const CONTEXT_STRATEGIES: &[(&str, ContextStrategy)] = &[
    ("global_prior_ideas", ContextStrategy::GlobalPriorIdeas),
    ("node_only", ContextStrategy::NodeOnly),
    ("node_plus_ancestors", ContextStrategy::NodePlusAncestors),
];

/// Further tries of an eval.
const MAX_RETRIES: u64 = 19;

/// How wide and deep a search goes, and what is promoted. The keys have the names of the fields.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchSettings {
    /// Ideas tried on a node.
    pub ideas_per_node: u32,
    /// Depth at which it ends.
    pub max_depth: u32,
    /// Nodes promoted at a depth.
    pub beam_width: u32,
    /// Configurations that every sweep runs.
    pub sweep_config_limit: Option<u64>,
    /// Evals at once.
    pub max_parallel_evals: u32,
    /// Time limit of an eval, seconds.
    pub eval_timeout_seconds: Option<f64>,
    /// Further tries of an eval whose commands failed.
    pub eval_retries: u32,
    /// Rows that a sweep must have without `sweep_config_limit`.
    pub min_candidate_rows: u64,
    /// Share of rows that must have succeeded then.
    pub min_ok_rate: f64,
    /// How far the primary metric may fall.
    pub primary_tolerance: f64,
    /// Whether it ends when nothing was promoted.
    pub stop_on_empty_frontier: bool,
    /// Where artifacts are kept.
    pub artifact_policy: ArtifactPolicy,
    /// Among which ideas one may not be repeated.
    pub dedupe_scope: DedupeScope,
    /// Earlier ideas that the command for ideas is shown.
    pub ideas_context_strategy: ContextStrategy,
}

/// Among which ideas one may not be repeated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DedupeScope {
    /// Any idea may be repeated.
    None,
    /// Those of the same node.
    Node,
    /// And those that were tried on its ancestors.
    #[default]
    NodePlusAncestors,
    /// And those of every other node.
    Global,
}

/// Where artifacts are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactPolicy {
    /// Copied below the run's directory.
    #[default]
    CopyToRunRoot,
    /// Where they were made.
    ExternalPaths,
}

/// Earlier ideas that the command for ideas is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextStrategy {
    /// Nothing but the directories that the user names.
    GlobalPriorIdeas,
    /// The node's own ideas.
    NodeOnly,
    /// And those of its ancestors, from the root on.
    #[default]
    NodePlusAncestors,
}

/// The settings; absent ones have their defaults.
pub(super) fn read(fields: &mut Fields<'_>) -> SearchSettings {
    let mut number = |key, default| count(&fields.take(key), 1).unwrap_or(default);
    let [ideas_per_node, max_depth, beam_width, max_parallel_evals] = [
        number(SearchKeys::ideas_per_node, 7),
        number(SearchKeys::max_depth, 3),
        number(SearchKeys::beam_width, 1),
        number(SearchKeys::max_parallel_evals, 1),
    ];
    let retries = fields.take(SearchKeys::eval_retries).integer(&(0..=MAX_RETRIES));
    let share = |v: f64| (0.0..=1.0).contains(&v);
    SearchSettings {
        ideas_per_node,
        max_depth,
        beam_width,
        max_parallel_evals,
        sweep_config_limit: fields
            .take(SearchKeys::sweep_config_limit)
            .integer(&(1..=u64::from(u32::MAX))),
        eval_timeout_seconds: fields
            .take(SearchKeys::eval_timeout_seconds)
            .number("a number of seconds above 0, at most 1e9", |v| v > 0.0 && v <= 1e9),
        eval_retries: retries.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        min_candidate_rows: fields
            .take(SearchKeys::min_candidate_rows)
            .integer(&(0..=MAX_COUNT))
            .unwrap_or(100),
        min_ok_rate: fields
            .take(SearchKeys::min_ok_rate)
            .number("a share from 0 to 1", share)
            .unwrap_or(1.0),
        primary_tolerance: fields
            .take(SearchKeys::primary_tolerance)
            .number("a number of 0 or more", |v| v >= 0.0)
            .unwrap_or(0.0),
        stop_on_empty_frontier: fields
            .take(SearchKeys::stop_on_empty_frontier)
            .bool()
            .unwrap_or(true),
        artifact_policy: fields
            .take(SearchKeys::artifact_policy)
            .keyword(ARTIFACT_POLICIES)
            .unwrap_or_default(),
        dedupe_scope: fields
            .take(SearchKeys::dedupe_scope)
            .keyword(DEDUPE_SCOPES)
            .unwrap_or_default(),
        ideas_context_strategy: fields
            .take(SearchKeys::ideas_context_strategy)
            .keyword(CONTEXT_STRATEGIES)
            .unwrap_or_default(),
    }
}
