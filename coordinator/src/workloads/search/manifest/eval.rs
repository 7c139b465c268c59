//! Evals: one idea tried on one node.

use std::fmt;

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::score::{Recommendation, SweepCompleteness};
use super::{CopiedFile, StepCalls};
use rollout_protocol::search::{EvalId, EvalStatus, NodeId};

/// One idea tried on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchEval {
    /// Number of the eval.
    pub eval_id: EvalId,
    /// The node.
    pub parent_node_id: NodeId,
    /// The node's depth.
    pub depth: u32,
    /// File of the idea, below the run's directory.
    pub idea_path: String,
    /// SHA-256 of the idea's normalized text.
    pub idea_normalized_sha256: String,
    /// Status of the eval.
    pub status: EvalStatus,
    /// Time of planning.
    pub queued_at: Timestamp,
    /// Start of its last execution.
    pub started_at: Option<Timestamp>,
    /// Time of settlement.
    pub finished_at: Option<Timestamp>,
    /// Duration of all executions, seconds.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Number of ended executions.
    pub attempt: u32,
    /// Worker of the last execution.
    pub worker: Option<String>,
    /// Cost that its commands reported, and of the model calls of its agents.
    #[serde(default)]
    pub cost: Option<f64>,
    /// Model calls of its agents, by step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<StepCalls>,
    /// Variables of values in its results, output and commit that look like secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub possible_secrets: Vec<String>,
    /// Why it failed.
    pub error: Option<SearchEvalError>,
    /// Output directory of its commands, below the run's directory.
    pub eval_output_root: String,
    /// Logs and outputs, below the run's directory; `None` once removed.
    pub experiment_dir: Option<String>,
    /// The commit that the idea became.
    pub candidate_commit: Option<String>,
    /// The reference that holds it; `None` once removed. A node has its own.
    pub candidate_ref_name: Option<String>,
    /// Its results, below the run's directory.
    pub candidate_results_csv_path: Option<String>,
    /// Source of the results.
    pub candidate_results_provenance: Option<CopiedFile>,
    /// Counts of successful and failed rows.
    pub strict_completeness: Option<SweepCompleteness>,
    /// Why its scores may look better than its results are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results_warning: Option<String>,
    /// Comparison with the parent's results: decides whether it may be promoted.
    pub parent_relative: Option<ComparisonSummary>,
    /// Comparison with the root's results: decides its rank.
    pub root_relative: Option<ComparisonSummary>,
    /// The decision; `None` before all evals of its depth are settled.
    pub decision: Option<EvalDecision>,
}

/// Why an eval failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchEvalError {
    /// Type of the error.
    pub error_type: String,
    /// The failed step and its output.
    pub message: String,
    /// Whether a time limit ended it.
    pub timed_out: bool,
    /// Whether the infrastructure failed, not the idea or a command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub infrastructure: bool,
}

/// Comparison of a candidate's results with a baseline's, as far as decisions need it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparisonSummary {
    /// Recommendation of the score.
    pub recommendation_summary: Option<Recommendation>,
    /// Improvement of the primary metric.
    pub primary_delta: Option<f64>,
    /// Rows used of the baseline.
    pub baseline_rows_used: u64,
    /// Rows used of the candidate.
    pub candidate_rows_used: u64,
    /// File with the whole comparison, below the run's directory.
    pub summary_json_path: String,
}

/// The decision on an eval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalDecision {
    /// Always [`ComparisonBasis::ParentRelative`].
    pub gate_basis: ComparisonBasis,
    /// Always [`ComparisonBasis::RootRelative`].
    pub rank_basis: ComparisonBasis,
    /// Whether it may be promoted.
    pub passed_gate: bool,
    /// Its rank score, if it passed the gate.
    pub rank_score: Option<f64>,
    /// Why it was promoted or not. Earlier versions left it out for promoted evals.
    pub promotion_reason: Option<Reason>,
    /// Whether the primary metric is worse than the parent's.
    pub primary_regressed: bool,
    /// The node that it became.
    pub promoted_to_node_id: Option<NodeId>,
    /// Time of promotion.
    pub promoted_at: Option<Timestamp>,
}

/// The baseline of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonBasis {
    /// The parent's results.
    ParentRelative,
    /// The root's results.
    RootRelative,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal;)*) => {
        /// The reason for promoting an eval or not: the first that holds, in this order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl Reason {
            /// The name in the manifest.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

reasons! {
    /// It has no results.
    NotCompleted = "eval_not_completed";
    /// The idea changed nothing.
    NoChanges = "no_changes";
    /// The candidate commit is missing.
    MissingCommit = "missing_candidate_commit";
    /// No results file is recorded.
    MissingResults = "missing_candidate_results_csv";
    /// The results file does not exist.
    ResultsGone = "candidate_results_csv_missing_on_disk";
    /// The results file is not among the run's artifacts.
    ResultsElsewhere = "candidate_results_csv_not_in_artifacts";
    /// No results file of the parent is recorded.
    MissingBaseline = "missing_parent_baseline_artifact";
    /// The parent's results file does not exist.
    BaselineGone = "parent_baseline_artifact_missing_on_disk";
    /// The parent's results file is not among the run's artifacts.
    BaselineElsewhere = "parent_baseline_not_in_artifacts";
    /// Rows are missing or did not succeed.
    IncompleteRows = "incomplete_or_failed_rows";
    /// The number of rows used is unknown.
    MissingRowsUsed = "missing_candidate_rows_used";
    /// The number of rows used differs from the configured one.
    RowsUsedMismatch = "candidate_rows_used_mismatch";
    /// Fewer rows than the minimum.
    TooFewRows = "too_few_candidate_rows";
    /// The results have no status column.
    MissingStatus = "missing_status_column";
    /// The share of successful rows is below the minimum.
    OkRateTooLow = "ok_rate_too_low";
    /// The primary metric is missing on one side.
    MissingPrimaryDelta = "missing_primary_delta";
    /// The primary metric regressed.
    PrimaryRegressed = "primary_regressed";
    /// Neither worth exploring nor mixed.
    NotWorthExploring = "should_explore_false";
    /// It passed the gate, but has no rank score.
    Unranked = "missing_rank_score";
    /// It passed the gate, but others rank higher.
    BeyondBeam = "beyond_beam_width";
    /// It was promoted: the comparison with its parent is worth exploring.
    WorthExploring = "should_explore";
    /// It was promoted: the comparison with its parent is mixed, and the primary metric is no
    /// worse.
    MixedNotRegressed = "mixed_primary_not_regressed";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
