//! Agents: their setup in an environment and the commands they run there.
//!
//! Scripts of an agent are placed below [`SCRIPT_DIR`], readable by any user. The oracle's solution
//! is placed where either format expects it, and run from the directory of the task's own format.
//! Everything runs with `bash` in the environment's working directory.

mod harness;
mod prior;
mod shell;
mod tools;

use bytes::Bytes;
use rollout_environment::Upload;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::spec::agent::{AgentKind, AgentSpec};
use rollout_protocol::spec::task::{StepSpec, TaskFormat};

pub use self::harness::harness_variables;
pub use self::prior::{
    CONVERSATION_FILE, CONVERSATION_VARIABLE, InvalidTrajectory, PriorConversation,
    TRAJECTORY_FILE, TRAJECTORY_VARIABLE,
};
pub use self::shell::{
    BoundedOutput, OUTPUT_BYTES, ShellCommand, ShellRequest, ShellSession, ShellStep, UnknownReply,
};
pub use self::tools::{
    MCP_FILE, MCP_VARIABLE, RESUME_VARIABLE, SKILLS_DIR, SKILLS_VARIABLE, mcp_config,
};

/// Directory of an inline agent's scripts inside the environment.
pub const SCRIPT_DIR: &str = "/rollout";

/// Variable with the path of the instruction file, set for every script.
pub const INSTRUCTION_VARIABLE: &str = "ROLLOUT_TASK_INSTRUCTION";

/// Lines of an install script that ends with the codes below for their reasons: those of the catalogue
/// have them from the functions of `install.sh`. Other scripts may end with these codes by chance, as
/// Python does when it cannot flush its output.
pub const INSTALL_CODES: &str = "UNSUPPORTED=120\nMISSING=121\n";

/// Exit code of an install script in an image that cannot carry the agent.
pub const INSTALL_UNSUPPORTED: i32 = 120;

/// Exit code of an install script that asked a registry for a package that it does not have.
pub const INSTALL_PACKAGE_MISSING: i32 = 121;

/// Whether the install script of an agent ends with codes for their reasons.
pub fn has_install_codes(kind: &AgentKind) -> bool {
    match kind {
        AgentKind::Script { install: Some(script), .. } => script.contains(INSTALL_CODES),
        _ => false,
    }
}

/// Directories of a task's solution for the oracle: first the one of the task's format, from which
/// it runs, then the one of the other format.
pub const fn solution_dirs(format: TaskFormat) -> [&'static str; 2] {
    match format {
        TaskFormat::Rollout => ["/oracle", "/solution"],
        TaskFormat::Harbor => ["/solution", "/oracle"],
    }
}

/// Setup and commands of an agent.
#[derive(Debug, Clone, Default)]
pub struct AgentPlan {
    /// Scripts to place before any command runs.
    pub scripts: Vec<Upload>,
    /// The solution, placed at [`solution_dirs`].
    pub solution: Option<BlobRef>,
    /// The command of the install phase.
    pub install: Option<Vec<String>>,
    /// The work of the execute phase.
    pub execute: Option<AgentWork>,
}

/// The work of an agent in its execute phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentWork {
    /// A command in the environment.
    Command(Vec<String>),
    /// The loop of the agent `shell`.
    Shell,
}

/// The oracle cannot solve a task without a solution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the task has no solution/solve.sh: the agent `{agent}` cannot solve it")]
pub struct NoSolution {
    /// Name of the agent.
    pub agent: String,
}

/// Plans the agent's part in a step of a task.
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
        // Only some of several steps may have a solution: the oracle does nothing in the others.
        AgentKind::Oracle if step.name.is_some() && step.files.solution.is_none() => {}
        AgentKind::Oracle => {
            let none = || NoSolution { agent: agent.name.clone() };
            plan.solution = Some(step.files.solution.clone().ok_or_else(none)?);
            let script = format!("{}/solve.sh", solution_dirs(format)[0]);
            plan.execute = Some(AgentWork::Command(bash(script)));
        }
        AgentKind::Script { install, execute } => {
            plan.install = plan.script("install.sh", install.as_deref());
            plan.execute = plan.script("execute.sh", execute.as_deref()).map(AgentWork::Command);
        }
        AgentKind::Harness(spec) => {
            plan.install = plan.script("install.sh", spec.install.as_deref());
            let execute = plan.script("execute.sh", Some(&harness::script(spec)));
            plan.execute = execute.map(AgentWork::Command);
        }
        AgentKind::Shell(_) => plan.execute = Some(AgentWork::Shell),
    }
    Ok(plan)
}

/// `bash SCRIPT`.
pub fn bash(script: String) -> Vec<String> {
    vec!["bash".to_owned(), script]
}

/// Runs a command text with the shell of an environment.
pub fn shell(text: String) -> Vec<String> {
    vec!["bash".to_owned(), "-c".to_owned(), text]
}

impl AgentPlan {
    /// Places a script, unless it is empty, and returns the command that runs it.
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
    use rollout_protocol::spec::agent::{AgentLimits, AgentTaskOptions};
    use rollout_protocol::spec::harness::HarnessSpec;
    use rollout_protocol::spec::task::TaskSpec;
    use std::collections::BTreeMap;

    fn execute_script() -> AgentWork {
        AgentWork::Command(vec!["bash".into(), "/rollout/execute.sh".into()])
    }

    fn planned(kind: AgentKind) -> Result<AgentPlan, NoSolution> {
        planned_in(&TaskSpec::new("dataset", "task").steps[0], kind)
    }

    fn planned_in(step: &StepSpec, kind: AgentKind) -> Result<AgentPlan, NoSolution> {
        let agent = AgentSpec {
            name: "a".into(),
            kind,
            env: BTreeMap::new(),
            limits: AgentLimits::default(),
            install_once: false,
            model: None,
            task_options: AgentTaskOptions::default(),
            session_calls: None,
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
        assert_eq!(plan.execute, Some(execute_script()));
        assert_eq!(plan.scripts.len(), 2);
    }

    #[test]
    fn harness_script_removes_old_results_and_reads_input() {
        let mut harness = HarnessSpec::new("python /agent/main.py");
        let text = |harness: &HarnessSpec| {
            let plan = planned(AgentKind::Harness(Box::new(harness.clone()))).expect("a plan");
            assert_eq!(plan.execute, Some(execute_script()));
            let [Upload::File { bytes, .. }] = &plan.scripts[..] else { panic!("{plan:?}") };
            String::from_utf8_lossy(bytes).into_owned()
        };
        let script = "rm -f -- \"$ROLLOUT_TRIAL_OUTPUT\" || exit\n\
                      exec < \"$ROLLOUT_TRIAL_INPUT\" || exit\npython /agent/main.py\n";
        assert_eq!(text(&harness), script);
        harness.events_path = Some("/logs/agent/e.jsonl".into());
        assert!(
            text(&harness)
                .starts_with("rm -f -- \"$ROLLOUT_TRIAL_OUTPUT\" \"$ROLLOUT_EVENTS_PATH\"")
        );
        let names = harness_variables(&harness).map(|(name, _)| name);
        assert_eq!(names.last(), Some("ROLLOUT_EVENTS_PATH"));
    }

    #[test]
    fn oracle_without_solution_is_refused() {
        let error = planned(AgentKind::Oracle).expect_err("there is none").to_string();
        assert_eq!(error, "the task has no solution/solve.sh: the agent `a` cannot solve it");
    }

    #[test]
    fn oracle_in_step_without_solution_has_empty_plan() {
        let mut step = TaskSpec::new("dataset", "task").steps[0].clone();
        step.name = Some("share".into());
        let plan = planned_in(&step, AgentKind::Oracle).expect("a plan");
        assert!(plan.solution.is_none() && plan.execute.is_none());
    }
}
