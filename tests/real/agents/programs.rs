//! Programs of the catalogue in containers: each is installed from its registry and solves the task.
//!
//! Most take minutes and hundreds of megabytes, so that they run with `ROLLOUT_TEST_AGENTS=all` only.

use rollout_tests::docker::DockerEngine;
use rollout_tests::ignored::or_ignored;
use rollout_tests::model_server::ModelServer;

use crate::agents::INSTALL_DEADLINE;
use crate::agents::fixture::{AgentRun, assert_solved, task};

/// The agent that also runs without `ROLLOUT_TEST_AGENTS=all`: it is installed in the shortest time.
const QUICKEST: &str = "gemini-cli";

/// An image with Python 3.12, which Debian 12 does not have.
const IMAGE_WITH_PYTHON_3_12: &str = "ubuntu:24.04";

/// Whether an agent is to be tested, and can be; if not, the test is ignored.
pub(crate) fn is_tested(agent: &str) -> bool {
    or_ignored(check_tested(agent)).is_some()
}

/// Checks that an agent is to be tested, and can be.
///
/// # Errors
/// The reason, if not.
pub(crate) fn check_tested(agent: &str) -> Result<(), String> {
    let selection = std::env::var("ROLLOUT_TEST_AGENTS").unwrap_or_default();
    let selected = match selection.as_str() {
        "all" => true,
        "" => agent == QUICKEST,
        names => names.split(',').any(|name| name == agent),
    };
    if !selected {
        return Err("needs ROLLOUT_TEST_AGENTS=all, which installs every agent".to_owned());
    }
    DockerEngine::connect().map(|_| ())
}

/// Runs an agent in each of the dialects.
#[track_caller]
fn assert_solves(agent: &'static str, dialects: &[&'static str]) {
    if !is_tested(agent) {
        return;
    }
    for dialect in dialects {
        let run = AgentRun::on_docker(agent, dialect);
        let server = ModelServer::start_scripted(task());
        let project = run.project();
        match agent {
            "openhands" => {
                project.write_agent_image_from(IMAGE_WITH_PYTHON_3_12, "tasks/t/environment");
            }
            _ => project.write_agent_image("tasks/t/environment"),
        }
        let trial = run.run_in(&project, &server, INSTALL_DEADLINE);
        assert_solved(agent, &project, &trial, &server);
    }
}

macro_rules! agents {
    ($($test:ident: $agent:literal in $dialects:expr;)*) => {
        $(
            #[test]
            fn $test() {
                assert_solves($agent, &$dialects);
            }
        )*
    };
}

agents! {
    aider_solves_task_on_docker: "aider" in ["openai"];
    claude_code_solves_task_on_docker: "claude-code" in ["anthropic"];
    cline_solves_task_on_docker: "cline" in ["openai"];
    codex_solves_task_on_docker: "codex" in ["openai"];
    copilot_cli_solves_task_on_docker: "copilot-cli" in ["openai", "anthropic"];
    gemini_cli_solves_task_on_docker: "gemini-cli" in ["gemini"];
    gptme_solves_task_on_docker: "gptme" in ["openai"];
    mini_swe_agent_solves_task_on_docker: "mini-swe-agent" in ["openai"];
    opencode_solves_task_on_docker: "opencode" in ["openai", "anthropic"];
    openhands_solves_task_on_docker: "openhands" in ["openai"];
    pi_solves_task_on_docker: "pi" in ["openai", "anthropic"];
    qwen_code_solves_task_on_docker: "qwen-code" in ["openai", "anthropic"];
}
