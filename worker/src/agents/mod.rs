//! Agents: what they need in an environment and what they run there.
//!
//! Scripts of an agent are placed below [`SCRIPT_DIR`], readable by any user; the oracle's solution
//! is placed where either format has it, and run from where the task's own does. Everything runs with `bash` from the environment's
//! working directory.

mod tools;

use bytes::Bytes;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::spec::agent::{AgentKind, AgentSpec};
use rollout_protocol::spec::task::{StepSpec, TaskFormat};

use crate::environment::Upload;

pub use self::tools::{MCP_FILE, MCP_VARIABLE, SKILLS_VARIABLE, mcp_config, takes_tools};

/// Directory of an inline agent's scripts inside the environment.
pub const SCRIPT_DIR: &str = "/rollout";

/// Names the file with the instruction for every script.
pub const INSTRUCTION_VARIABLE: &str = "ROLLOUT_TASK_INSTRUCTION";

/// Where the oracle finds the solution of a task: where its format has it, and from where it runs,
/// and where the other format would have it.
pub const fn solution_dirs(format: TaskFormat) -> [&'static str; 2] {
    match format {
        TaskFormat::Rollout => ["/oracle", "/solution"],
        TaskFormat::Harbor => ["/solution", "/oracle"],
    }
}

/// What an agent needs and runs.
#[derive(Debug, Clone, Default)]
pub struct AgentPlan {
    /// Scripts to place before anything runs.
    pub scripts: Vec<Upload>,
    /// The solution, to be placed at [`solution_dirs`].
    pub solution: Option<BlobRef>,
    /// The command of the install phase.
    pub install: Option<Vec<String>>,
    /// The command of the execute phase.
    pub execute: Option<Vec<String>>,
}

/// The oracle was asked to solve a task without a solution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the task has no solution/solve.sh: the agent `{agent}` cannot solve it")]
pub struct NoSolution {
    /// Name of the agent.
    pub agent: String,
}

/// Plans what an agent does with a step of a task.
///
/// # Errors
/// [`NoSolution`].
pub fn plan(
    agent: &AgentSpec,
    format: TaskFormat,
    step: &StepSpec,
) -> Result<AgentPlan, NoSolution> {
    let mut plan = AgentPlan::default();
    match &agent.kind {
        AgentKind::Nop => {}
        // Several steps may be solved in some of them: the oracle does nothing in the others.
        AgentKind::Oracle if step.name.is_some() && step.files.solution.is_none() => {}
        AgentKind::Oracle => {
            let none = || NoSolution { agent: agent.name.clone() };
            plan.solution = Some(step.files.solution.clone().ok_or_else(none)?);
            plan.execute = Some(bash(format!("{}/solve.sh", solution_dirs(format)[0])));
        }
        AgentKind::Script { install, execute } => {
            plan.install = plan.script("install.sh", install.as_deref());
            plan.execute = plan.script("execute.sh", execute.as_deref());
        }
    }
    Ok(plan)
}

/// `bash SCRIPT`.
pub fn bash(script: String) -> Vec<String> {
    vec!["bash".to_owned(), script]
}

/// A command text for the shell of an environment.
pub fn shell(text: String) -> Vec<String> {
    vec!["bash".to_owned(), "-c".to_owned(), text]
}

impl AgentPlan {
    /// Places a script, unless there is nothing in it, and gives the command that runs it.
    fn script(&mut self, name: &str, text: Option<&str>) -> Option<Vec<String>> {
        let text = text.filter(|text| !text.trim().is_empty())?;
        let path = format!("{SCRIPT_DIR}/{name}");
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        self.scripts.push(Upload::File { path: path.clone(), bytes, executable: true });
        Some(bash(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_protocol::spec::agent::AgentLimits;
    use std::collections::BTreeMap;

    fn planned(kind: AgentKind) -> Result<AgentPlan, NoSolution> {
        planned_in(&crate::work::trial::testing::task().steps[0], kind)
    }

    fn planned_in(step: &StepSpec, kind: AgentKind) -> Result<AgentPlan, NoSolution> {
        let agent = AgentSpec {
            name: "a".into(),
            kind,
            env: BTreeMap::new(),
            limits: AgentLimits::default(),
        };
        plan(&agent, TaskFormat::Harbor, step)
    }

    #[test]
    fn agent_without_scripts_has_empty_plan() {
        for kind in
            [AgentKind::Nop, AgentKind::Script { install: None, execute: Some(" \n".into()) }]
        {
            let plan = planned(kind).expect("a plan");
            assert!(plan.scripts.is_empty() && plan.install.is_none() && plan.execute.is_none());
        }
    }

    #[test]
    fn agent_scripts_run_from_upload_path() {
        let kind = AgentKind::Script { install: Some("i".into()), execute: Some("e".into()) };
        let plan = planned(kind).expect("a plan");
        assert_eq!(plan.install, Some(vec!["bash".into(), "/rollout/install.sh".into()]));
        assert_eq!(plan.execute, Some(vec!["bash".into(), "/rollout/execute.sh".into()]));
        assert_eq!(plan.scripts.len(), 2);
    }

    #[test]
    fn oracle_without_solution_is_refused() {
        let error = planned(AgentKind::Oracle).expect_err("there is none").to_string();
        assert_eq!(error, "the task has no solution/solve.sh: the agent `a` cannot solve it");
    }

    #[test]
    fn oracle_in_step_without_solution_has_empty_plan() {
        let mut step = crate::work::trial::testing::task().steps[0].clone();
        step.name = Some("share".into());
        let plan = planned_in(&step, AgentKind::Oracle).expect("a plan");
        assert!(plan.solution.is_none() && plan.execute.is_none());
    }
}
