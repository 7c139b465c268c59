//! Evals: one idea tried on one node.

use std::fmt;

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::score::{Recommendation, SweepCompleteness};
use super::CopiedFile;
use rollout_protocol::search::{EvalId, EvalStatus, NodeId};

/// One idea tried on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchEval {
    /// Its number.
    pub eval_id: EvalId,
    /// The node.
    pub parent_node_id: NodeId,
    /// The node's depth.
    pub depth: u32,
    /// File of the idea, below the run's directory.
    pub idea_path: String,
    /// The idea without what makes no difference.
    pub idea_normalized_sha256: String,
    /// How it ended.
    pub status: EvalStatus,
    /// When it was planned.
    pub queued_at: Timestamp,
    /// When its last execution began.
    pub started_at: Option<Timestamp>,
    /// When it was settled.
    pub finished_at: Option<Timestamp>,
    /// Seconds that all its executions took.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Executions that ended, the last included.
    pub attempt: u32,
    /// Worker of the last one.
    pub worker: Option<String>,
    /// What its commands say that it cost.
    #[serde(default)]
    pub cost: Option<f64>,
    /// Why it failed.
    pub error: Option<SearchEvalError>,
    /// Where its commands wrote, below the run's directory.
    pub eval_output_root: String,
    /// Logs and outputs, below it; nothing when they were removed.
    pub experiment_dir: Option<String>,
    /// The commit that the idea became.
    pub candidate_commit: Option<String>,
    /// The reference that keeps it; nothing when there is none any more. A node has its own.
    pub candidate_ref_name: Option<String>,
    /// Its results, below the run's directory.
    pub candidate_results_csv_path: Option<String>,
    /// Where they came from.
    pub candidate_results_provenance: Option<CopiedFile>,
    /// Rows that succeeded and did not.
    pub strict_completeness: Option<SweepCompleteness>,
    /// Against the parent's results: decides whether it may be promoted.
    pub parent_relative: Option<ComparisonSummary>,
    /// Against the root's: decides its rank.
    pub root_relative: Option<ComparisonSummary>,
    /// What was decided; nothing before all evals of its depth are settled.
    pub decision: Option<EvalDecision>,
}

/// Why an eval failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchEvalError {
    /// Type.
    pub error_type: String,
    /// What failed, and what it said.
    pub message: String,
    /// Whether a time limit ended it.
    pub timed_out: bool,
    /// Whether the infrastructure failed, and not the idea or a command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub infrastructure: bool,
}

/// A candidate's results against a baseline's, as far as decisions need them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparisonSummary {
    /// What to make of them.
    pub recommendation_summary: Option<Recommendation>,
    /// How much better the primary metric is.
    pub primary_delta: Option<f64>,
    /// Rows of the baseline that were used.
    pub baseline_rows_used: u64,
    /// Rows of the candidate that were used.
    pub candidate_rows_used: u64,
    /// The whole comparison, below the run's directory.
    pub summary_json_path: String,
}

/// What was decided about an eval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalDecision {
    /// Always [`ComparisonBasis::ParentRelative`].
    pub gate_basis: ComparisonBasis,
    /// Always [`ComparisonBasis::RootRelative`].
    pub rank_basis: ComparisonBasis,
    /// Whether it may be promoted.
    pub passed_gate: bool,
    /// Its rank among those that may.
    pub rank_score: Option<f64>,
    /// Why it was promoted, or not. Earlier versions left it out for those that were.
    pub promotion_reason: Option<Reason>,
    /// Whether the primary metric is worse than the parent's.
    pub primary_regressed: bool,
    /// The node that it became.
    pub promoted_to_node_id: Option<NodeId>,
    /// When.
    pub promoted_at: Option<Timestamp>,
}

/// What results are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonBasis {
    /// The parent's results.
    ParentRelative,
    /// The root's.
    RootRelative,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal;)*) => {
        /// Why an eval was promoted, or not: the first that holds, in this order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl Reason {
            /// The word of the format.
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
    /// There is no commit.
    MissingCommit = "missing_candidate_commit";
    /// Its results have no file.
    MissingResults = "missing_candidate_results_csv";
    /// The file is gone.
    ResultsGone = "candidate_results_csv_missing_on_disk";
    /// The file is not among the run's artifacts.
    ResultsElsewhere = "candidate_results_csv_not_in_artifacts";
    /// The parent's results have no file.
    MissingBaseline = "missing_parent_baseline_artifact";
    /// That file is gone.
    BaselineGone = "parent_baseline_artifact_missing_on_disk";
    /// That file is not among the run's artifacts.
    BaselineElsewhere = "parent_baseline_not_in_artifacts";
    /// Rows are missing or did not succeed.
    IncompleteRows = "incomplete_or_failed_rows";
    /// Nothing says how many rows were used.
    MissingRowsUsed = "missing_candidate_rows_used";
    /// Other than the configured number of rows were used.
    RowsUsedMismatch = "candidate_rows_used_mismatch";
    /// Fewer rows than the least number.
    TooFewRows = "too_few_candidate_rows";
    /// Nothing says which rows succeeded.
    MissingStatus = "missing_status_column";
    /// A smaller share of rows succeeded than the least.
    OkRateTooLow = "ok_rate_too_low";
    /// The primary metric is not on both sides.
    MissingPrimaryDelta = "missing_primary_delta";
    /// The primary metric is worse.
    PrimaryRegressed = "primary_regressed";
    /// Neither worth exploring nor mixed.
    NotWorthExploring = "should_explore_false";
    /// It passed, but has nothing to be ranked by.
    Unranked = "missing_rank_score";
    /// It passed, and others are better.
    BeyondBeam = "beyond_beam_width";
    /// It was promoted: the comparison with its parent is worth exploring.
    WorthExploring = "should_explore";
    /// It was promoted: the comparison with its parent is mixed, and the primary metric is no worse.
    MixedNotRegressed = "mixed_primary_not_regressed";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
