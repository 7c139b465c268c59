//! Extent and promotion rules of a search.

use serde::{Deserialize, Serialize};

use super::super::reader::Fields;
use super::{MAX_COUNT, count};

keys! {
    /// Extent and promotion rules of a search.
    pub(crate) table SearchKeys {
        ideas_per_node: Value("integer"), "7", "Ideas to try per node; repeated ones do not count.";
        max_depth: Value("integer"), "3", "Depth at which the search ends.";
        beam_width: Value("integer"), "1", "Nodes promoted per depth.";
        max_total_idea_evals: Value("integer"), "", "Maximum number of evals of the search.";
        max_parallel_evals: Value("integer"), "1", "Concurrent evals.";
        eval_timeout_seconds: Value("number"), "", "Time limit of an eval, s.";
        eval_retries: Value("integer"), "0", "Retries of an eval whose commands failed.";
        sweep_config_limit: Value("integer"), "", "Number of configurations that every sweep must run.";
        min_candidate_rows: Value("integer"), "100",
            "Minimum rows of a sweep without `sweep_config_limit`.";
        min_ok_rate: Value("number"), "1.0",
            "Minimum share of successful rows without `sweep_config_limit`.";
        primary_tolerance: Value("number"), "0.0", "Allowed fall of the primary metric.";
        stop_on_empty_frontier: Value("true|false"), "true",
            "End the search when no node was promoted.";
        artifact_policy: Value("copy_to_run_root|external_paths"), "copy_to_run_root",
            "Copy results below the search directory, or leave them in place.";
        dedupe_scope: Value("none|node|node_plus_ancestors|global"), "node_plus_ancestors",
            "Scope in which ideas may not repeat.";
        ideas_context_strategy: Value("global_prior_ideas|node_only|node_plus_ancestors"), "node_plus_ancestors",
            "Earlier ideas to show to the idea generator.";
    }
}

/// Artifact policies and their words.
pub(super) const ARTIFACT_POLICIES: &[(&str, ArtifactPolicy)] = &[
    ("copy_to_run_root", ArtifactPolicy::CopyToRunRoot),
    ("external_paths", ArtifactPolicy::ExternalPaths),
];

/// Deduplication scopes and their words.
pub(super) const DEDUPE_SCOPES: &[(&str, DedupeScope)] = &[
    ("none", DedupeScope::None),
    ("node", DedupeScope::Node),
    ("node_plus_ancestors", DedupeScope::NodePlusAncestors),
    ("global", DedupeScope::Global),
];

/// Context strategies and their words.
pub(super) const CONTEXT_STRATEGIES: &[(&str, ContextStrategy)] = &[
    ("global_prior_ideas", ContextStrategy::GlobalPriorIdeas),
    ("node_only", ContextStrategy::NodeOnly),
    ("node_plus_ancestors", ContextStrategy::NodePlusAncestors),
];

/// Largest number of retries of an eval.
const MAX_RETRIES: u64 = 19;

/// Extent and promotion rules of a search. The fields are named after the keys.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchSettings {
    /// Ideas tried per node.
    pub ideas_per_node: u32,
    /// Largest depth.
    pub max_depth: u32,
    /// Nodes promoted per depth.
    pub beam_width: u32,
    /// Number of configurations that every sweep must run.
    pub sweep_config_limit: Option<u64>,
    /// Concurrent evals.
    pub max_parallel_evals: u32,
    /// Time limit of an eval, seconds.
    pub eval_timeout_seconds: Option<f64>,
    /// Retries of an eval whose commands failed.
    pub eval_retries: u32,
    /// Lowest number of rows of a sweep without `sweep_config_limit`.
    pub min_candidate_rows: u64,
    /// Lowest share of successful rows without `sweep_config_limit`.
    pub min_ok_rate: f64,
    /// Largest allowed fall of the primary metric.
    pub primary_tolerance: f64,
    /// Whether the search ends if no node was promoted.
    pub stop_on_empty_frontier: bool,
    /// Where artifacts are kept.
    pub artifact_policy: ArtifactPolicy,
    /// Scope in which ideas may not repeat.
    pub dedupe_scope: DedupeScope,
    /// Earlier ideas shown to the idea generator.
    pub ideas_context_strategy: ContextStrategy,
}

/// Scope in which ideas may not repeat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DedupeScope {
    /// No scope: any idea may repeat.
    None,
    /// Ideas of the same node.
    Node,
    /// Ideas of the node and its ancestors.
    #[default]
    NodePlusAncestors,
    /// Ideas of all nodes.
    Global,
}

/// Where artifacts are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactPolicy {
    /// Copied below the run directory.
    #[default]
    CopyToRunRoot,
    /// Left where they were created.
    ExternalPaths,
}

/// Earlier ideas shown to the idea generator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextStrategy {
    /// Only the directories that the user names.
    GlobalPriorIdeas,
    /// Also the node's own ideas.
    NodeOnly,
    /// Also the ideas of its ancestors, from the root on.
    #[default]
    NodePlusAncestors,
}

/// Reads the settings, with defaults for absent keys.
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
