//! Searches: ids of nodes and evals, and the events that tell their progress.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:04}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

number! {
    /// A node: a commit whose results are a baseline. The root is 0. Ids are given out by a counter
    /// in the search's manifest, so that a resumed search gives out the same.
    NodeId
}

number! {
    /// An eval: one idea tried on one node. Ids are given out by a counter in the search's manifest.
    EvalId
}

/// State of an eval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalStatus {
    /// Planned.
    Queued,
    /// Under way.
    Running,
    /// With results.
    Completed,
    /// The idea changed nothing.
    NoChanges,
    /// Without results.
    Failed,
}

impl EvalStatus {
    /// Whether it ended.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Completed | Self::NoChanges | Self::Failed)
    }

    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::NoChanges => "no changes",
            Self::Failed => "failed",
        }
    }
}

/// Why a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It is as deep as it may be.
    MaxDepthReached,
    /// It tried as many ideas as it may.
    MaxTotalIdeaEvalsReached,
    /// Its time or money is spent.
    BudgetSpent,
    /// Nothing was promoted.
    EmptyFrontier,
}

/// An eval that became a node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PromotedEval {
    /// The node that it became.
    pub node: NodeId,
    /// The eval.
    pub eval: EvalId,
    /// Its score against the root; more is better.
    pub score: Option<f64>,
}

/// Progress of a search. A search counts the executions of its evals and ideas as its run's other
/// events tell them; these events tell its decisions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SearchEvent {
    /// A session of the search began; `settled` and `planned` count the evals of former sessions.
    SearchStarted {
        /// Name of the search.
        search: String,
        /// Depth that it is at, from 0.
        depth: u32,
        /// Depth at which it ends.
        max_depth: u32,
        /// Evals that ended before.
        settled: u64,
        /// Evals planned before.
        planned: u64,
        /// The best eval so far.
        best: Option<PromotedEval>,
    },
    /// A node's ideas are being written.
    IdeasStarted {
        /// The node.
        node: NodeId,
    },
    /// The evals of a depth were planned.
    DepthPlanned {
        /// The depth.
        depth: u32,
        /// Number of evals.
        evals: u64,
        /// Number of nodes that they belong to.
        nodes: u64,
    },
    /// An eval was requested.
    EvalStarted {
        /// The eval.
        eval: EvalId,
        /// Its node.
        node: NodeId,
        /// File of its idea.
        idea: String,
    },
    /// An eval has a result, which is durable.
    EvalEnded {
        /// The eval.
        eval: EvalId,
        /// Its node.
        node: NodeId,
        /// How it ended.
        status: EvalStatus,
        /// Type and message of the error that it ended with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// An eval was not promoted.
    EvalRejected {
        /// The eval.
        eval: EvalId,
        /// Why.
        reason: String,
    },
    /// The evals of a depth were decided on.
    DepthDecided {
        /// The depth.
        depth: u32,
        /// The evals that became nodes of the next depth, the best first.
        promoted: Vec<PromotedEval>,
        /// Why the search ends now, if it does.
        stop: Option<StopReason>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eval_id_serialized_has_four_digits() {
        let id = EvalId(7);
        assert_eq!(serde_json::to_string(&id).expect("json"), "\"0007\"");
        assert_eq!(serde_json::from_str::<EvalId>("\"0007\"").expect("an id"), id);
    }

    #[test]
    fn eval_status_as_str_matches_serialized_form() {
        use EvalStatus::{Completed, Failed, NoChanges, Queued, Running};
        for status in [Queued, Running, Completed, NoChanges, Failed] {
            let written = serde_json::to_value(status).expect("json");
            let word = written.as_str().expect("a string").replace('_', " ");
            assert_eq!(word, status.as_str());
        }
    }
}
