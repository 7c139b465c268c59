//! Stages of evals that begin only with a ticket of the coordinator: how workers ask for it, say that
//! they need it no longer, and show who has one.

use serde::{Deserialize, Serialize};

use crate::spec::eval::{CommandKind, EvalStage};

/// Where an execution of an eval is. Only ever grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StageProgress {
    /// The stage.
    pub stage: EvalStage,
    /// Where in it.
    pub step: StageStep,
}

/// The steps of a stage, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageStep {
    /// Its ticket is asked for.
    Waiting,
    /// Its command is placed and runs.
    Running,
    /// Its command has ended.
    Over,
}

/// The kinds of commands for which a worker asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PermitKinds {
    /// [`CommandKind::Llm`].
    pub llm: bool,
    /// [`CommandKind::Sweep`].
    pub sweep: bool,
}

impl PermitKinds {
    /// Whether it asks for none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it asks before a stage.
    pub fn requires(&self, stage: EvalStage) -> bool {
        match stage.kind() {
            Some(CommandKind::Llm) => self.llm,
            Some(CommandKind::Sweep) => self.sweep,
            None => false,
        }
    }
}
