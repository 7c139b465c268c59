//! Runs of one agent with one task, which is to write a line into a file.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::{self, REAL_KEY};
use rollout_tests::model_server::{ModelServer, ScriptedTask};
use rollout_tests::project::Project;
use rollout_tests::results::TrialDirectory;

use crate::agents::trajectories::{self, Counts};

/// The task, for the scripted model.
pub(crate) fn task() -> ScriptedTask {
    ScriptedTask::new("answer.txt", "42")
}

/// A run of one agent.
pub(crate) struct AgentRun {
    pub(crate) agent: &'static str,
    pub(crate) dialect: &'static str,
    /// The environment, and further keys of the job, in YAML.
    pub(crate) job: String,
    /// Further options of `rollout run`.
    pub(crate) options: Vec<&'static str>,
}

impl AgentRun {
    /// A run in Docker, with time for the installation of the agent.
    pub(crate) fn on_docker(agent: &'static str, dialect: &'static str) -> Self {
        let job = "environment: {type: docker}\n".to_owned();
        let options =
            vec!["--ak", "override_setup_timeout_sec=1200", "--ak", "override_timeout_sec=200"];
        Self { agent, dialect, job, options }
    }

    /// A project with the task.
    pub(crate) fn project(&self) -> Project {
        let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
        let head = "name: solve\nretry: {max_attempts: 1}\ndatasets: [{path: tasks}]\n";
        project.write_file("job.yaml", &format!("{head}{}", self.job));
        project.write_small_task(
            "if [ \"$(cat answer.txt)\" = 42 ]; then reward=1; else reward=0; fi\n\
             echo \"$reward\" >/logs/verifier/reward.txt\n",
        );
        let instruction = "Write a line with 42 to the file answer.txt in the working directory.\n";
        project.write_file("tasks/t/instruction.md", instruction);
        project
    }

    /// Runs the agent in a project; returns its trial.
    pub(crate) fn run_in(
        &self,
        project: &Project,
        server: &ModelServer,
        deadline: Duration,
    ) -> TrialDirectory {
        self.end_in(project, server, deadline, ExitCode::Success)
    }

    /// Runs the agent in a project until the program ends with a code; returns its trial.
    pub(crate) fn end_in(
        &self,
        project: &Project,
        server: &ModelServer,
        deadline: Duration,
        code: ExitCode,
    ) -> TrialDirectory {
        let version = if self.dialect == "openai" { "/v1" } else { "" };
        let url = format!("{}{version}", server.origin());
        let arguments = ["run", "job.yaml", "-q", "-a", self.agent, "-m", "lab/scripted"];
        let mut command = project.command(&arguments);
        command.args(["--base-url", &url, "--key-env", "MODEL_KEY", "--dialect", self.dialect]);
        command.args(&self.options).env("MODEL_KEY", REAL_KEY);
        let _ended = project.start(command).wait(deadline).expect_code(code);
        project.results("solve").trial(self.agent, "t")
    }
}

/// Fails unless the agent has solved the task, and its records equal the log of the server.
#[track_caller]
pub(crate) fn assert_solved(
    agent: &str,
    project: &Project,
    trial: &TrialDirectory,
    server: &ModelServer,
) {
    let output = trial.text("command/stdout.txt").unwrap_or_default();
    assert_eq!(trial.reward(), Some(1.0), "{:#}\n{output}", trial.result);
    let (lines, calls) = (model_calls::lines(trial), server.calls());
    model_calls::assert_equal_log(&lines, &calls);
    let gateway = &trial.result["gateway"];
    assert_eq!(gateway["calls"], calls.len(), "{gateway:#}");
    assert_eq!((&gateway["failed_calls"], &gateway["cut_calls"]), (&0.into(), &0.into()));
    let (main, all) = trajectories::assert_equal_log(trial, &calls);
    // It does not note the call that names the conversation.
    let noted = if agent == "gptme" { main } else { all };
    assert_equal_session(agent, trial, &noted);
    model_calls::assert_key_is_in_no_file(project.path());
}

/// Agents whose session has no token counts, or is not known.
const WITHOUT_SESSION: [&str; 2] = ["aider", "shell"];

/// Fails unless an agent's own session has the calls of its trajectory, and their tokens.
#[track_caller]
fn assert_equal_session(agent: &str, trial: &TrialDirectory, counts: &Counts) {
    let session = &trial.result["gateway"]["session"];
    if WITHOUT_SESSION.contains(&agent) {
        assert!(session.is_null(), "{session}");
        return;
    }
    let number = |name: &str| session[name].as_u64().expect("a number");
    let found =
        Counts { replies: number("calls"), input: number("input"), output: number("output") };
    assert_eq!(found, *counts, "the session of {agent}");
}
