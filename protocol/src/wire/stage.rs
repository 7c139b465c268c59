//! Permits for stages of evals: how workers request them from the coordinator, release them and
//! show which ones they hold.

use serde::{Deserialize, Serialize};

use crate::spec::eval::{CommandKind, EvalStage};

/// Progress of an execution of an eval. Only ever increases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StageProgress {
    /// The stage.
    pub stage: EvalStage,
    /// The step within the stage.
    pub step: StageStep,
}

/// The steps of a stage, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageStep {
    /// Waiting for its permit.
    Waiting,
    /// Its command is placed and runs.
    Running,
    /// Its command has ended.
    Over,
}

/// The kinds of commands that need a permit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PermitKinds {
    /// [`CommandKind::Llm`].
    pub llm: bool,
    /// [`CommandKind::Sweep`].
    pub sweep: bool,
}

impl PermitKinds {
    /// Whether no kind needs a permit.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a stage needs a permit.
    pub fn requires(&self, stage: EvalStage) -> bool {
        match stage.kind() {
            Some(CommandKind::Llm) => self.llm,
            Some(CommandKind::Sweep) => self.sweep,
            None => false,
        }
    }
}
