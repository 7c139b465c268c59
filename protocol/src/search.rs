//! Searches: ids of nodes and evals, and progress events.

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
    /// A node: a commit whose results are a baseline. The root is 0. A counter in the search's
    /// manifest assigns the ids, so that a resumed search assigns the same.
    NodeId
}

number! {
    /// An eval: one idea tried on one node. A counter in the search's manifest assigns the ids.
    EvalId
}

/// State of an eval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalStatus {
    /// Planned.
    Queued,
    /// Running.
    Running,
    /// Ended with results.
    Completed,
    /// The idea changed nothing.
    NoChanges,
    /// Ended without results.
    Failed,
}

impl EvalStatus {
    /// Whether it has ended.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Completed | Self::NoChanges | Self::Failed)
    }

    /// The name shown to users.
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
    /// It reached its maximum depth.
    MaxDepthReached,
    /// It reached its maximum number of idea evals.
    MaxTotalIdeaEvalsReached,
    /// It used up its budget of time or money.
    BudgetSpent,
    /// Nothing was promoted.
    EmptyFrontier,
}

/// An eval that became a node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PromotedEval {
    /// The new node.
    pub node: NodeId,
    /// The eval.
    pub eval: EvalId,
    /// Its score against the root; more is better.
    pub score: Option<f64>,
}

/// Progress of a search. Executions of evals and ideas are counted from the other events of the
/// run; these events report the decisions of the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SearchEvent {
    /// A session of the search started; `settled` and `planned` count the evals of earlier
    /// sessions.
    SearchStarted {
        /// Name of the search.
        search: String,
        /// Current depth, from 0.
        depth: u32,
        /// Depth at which it ends.
        max_depth: u32,
        /// Evals that earlier sessions settled.
        settled: u64,
        /// Evals that earlier sessions planned.
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
        /// Number of their nodes.
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
        /// Type and message of its error.
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
    /// The evals of a depth were decided.
    DepthDecided {
        /// The depth.
        depth: u32,
        /// The evals promoted to nodes of the next depth, best first.
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
