//! Permits for stages of evals: how workers request them from the coordinator, release them and
//! show which ones they hold.

use serde::{Deserialize, Serialize};

use crate::spec::eval::{CommandKind, EvalStage};

/// Progress of an execution of an eval. Only ever increases: an execution that starts over counts
/// that first, because its stages begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StageProgress {
    /// How many times the execution started over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    /// The stage.
    pub stage: EvalStage,
    /// The step within the stage.
    pub step: StageStep,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_progress_of_first_start_has_the_text_of_earlier_versions() {
        let first =
            StageProgress { restarts: 0, stage: EvalStage::Sweep, step: StageStep::Running };
        let text = r#"{"stage":"sweep","step":"running"}"#;
        assert_eq!(serde_json::to_string(&first).expect("JSON"), text);
        assert_eq!(serde_json::from_str::<StageProgress>(text).expect("readable"), first);
        let later = StageProgress { restarts: 2, ..first };
        let text = r#"{"restarts":2,"stage":"sweep","step":"running"}"#;
        assert_eq!(serde_json::to_string(&later).expect("JSON"), text);
        assert_eq!(serde_json::from_str::<StageProgress>(text).expect("readable"), later);
    }

    #[test]
    fn stage_progress_of_later_start_is_greater_than_any_earlier_one() {
        let last = StageProgress { restarts: 0, stage: EvalStage::Ideas, step: StageStep::Over };
        let again =
            StageProgress { restarts: 1, stage: EvalStage::Implement, step: StageStep::Waiting };
        assert!(again > last);
    }
}
