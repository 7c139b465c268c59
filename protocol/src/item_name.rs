//! Names of items: trials, evals, commands that write ideas, and samples of farms.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sample_key::SampleKey;
use crate::search::{EvalId, NodeId};
use crate::spec::trial::TrialName;

/// The name of an item. Where it is part of a document, the kind is the key: `"trial": {…}`,
/// `"eval": {…}`, `"ideas": {…}` or `"rollout": {…}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemName {
    /// A trial of a job.
    Trial(TrialName),
    /// An eval of a search.
    Eval(EvalName),
    /// A command of a search that writes ideas.
    Ideas(IdeasName),
    /// A generation of a sample of a farm.
    Rollout(SampleKey),
}

/// The name of one attempt of an eval.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EvalName {
    /// The search.
    pub search: String,
    /// The node that the idea is tried on.
    pub node: NodeId,
    /// The eval.
    pub eval: EvalId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

/// The name of one attempt to write the ideas of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdeasName {
    /// The search.
    pub search: String,
    /// The node.
    pub node: NodeId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

impl ItemName {
    /// The name of a trial; `None` for other items.
    pub const fn trial(&self) -> Option<&TrialName> {
        match self {
            Self::Trial(trial) => Some(trial),
            Self::Eval(_) | Self::Ideas(_) | Self::Rollout(_) => None,
        }
    }
}

impl From<TrialName> for ItemName {
    fn from(trial: TrialName) -> Self {
        Self::Trial(trial)
    }
}

impl fmt::Display for ItemName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trial(trial) => trial.fmt(f),
            Self::Eval(EvalName { search, node, eval, attempt }) => {
                write!(f, "{search}/node-{node}/eval-{eval}__{attempt}")
            }
            Self::Ideas(IdeasName { search, node, attempt }) => {
                write!(f, "{search}/node-{node}/ideas__{attempt}")
            }
            Self::Rollout(sample) => sample.fmt(f),
        }
    }
}
