//! The built-in agent `shell` in sandboxes.

use std::time::Instant;

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::{assert_key_is_in_no_file, lines, of_type};
use rollout_tests::model_server::{ModelAnswer, ModelServer, ScriptedTask};

use crate::agents::DEADLINE;
use crate::agents::fixture::{AgentRun, assert_solved, task};

/// A run in a sandbox with further options.
fn shell(dialect: &'static str, options: &[&'static str]) -> AgentRun {
    let job = "environment: {type: process, provider_config: {ignore_dockerfile: true}}\n";
    AgentRun { agent: "shell", dialect, job: job.to_owned(), options: options.to_vec() }
}

#[test]
fn shell_solves_task_in_every_dialect_and_records_equal_log_in_sandbox() {
    for dialect in ["openai", "anthropic", "gemini"] {
        let (run, server) = (shell(dialect, &[]), ModelServer::start_scripted(task()));
        let project = run.project();
        let trial = run.run_in(&project, &server, DEADLINE);
        assert_solved(run.agent, &project, &trial, &server);
        let output = trial.text("command/stdout.txt").expect("output");
        assert_eq!(output, "$ printf '%s\\n' '42' >answer.txt\nanswer.txt is written.\n");
        assert_eq!(server.calls().len(), 2, "{dialect}");
    }
}

#[test]
fn refused_call_is_repeated_by_gateway_and_then_by_shell_in_sandbox() {
    for dialect in ["openai", "anthropic", "gemini"] {
        let (run, server) = (shell(dialect, &[]), ModelServer::start_scripted(task()));
        // The gateway sends a call four times, then the agent repeats it.
        server.command(vec![ModelAnswer::Status(429, Some(1)); 5]);
        let project = run.project();
        let begun = Instant::now();
        let trial = run.run_in(&project, &server, DEADLINE);
        assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
        assert!(begun.elapsed().as_secs_f64() >= 5.0, "it waits as long as the server asks");
        let lines = lines(&trial);
        let ended = of_type(&lines, "ended");
        let statuses: Vec<_> = ended.iter().map(|line| line["status"].clone()).collect();
        assert_eq!(statuses, [429, 200, 200], "{dialect}");
        let attempts = |call: usize| ended[call]["attempts"].as_array().map(Vec::len);
        assert_eq!([0, 1, 2].map(attempts), [4, 2, 1].map(Some), "{dialect}");
        assert_eq!(server.calls().len(), 7);
    }
}

#[test]
fn command_over_its_limit_is_killed_and_model_is_told_in_sandbox() {
    let mark = "sleep 86000 & sleep 86000; echo never";
    for dialect in ["openai", "anthropic", "gemini"] {
        let run = shell(dialect, &["--ak", "command_timeout_sec=1"]);
        let task = ScriptedTask { commands: vec![mark.to_owned()], ..task() };
        let server = ModelServer::start_scripted(task);
        let project = run.project();
        let trial = run.run_in(&project, &server, DEADLINE);
        assert_solved(run.agent, &project, &trial, &server);
        let calls = server.calls();
        assert_eq!(calls.len(), 3, "{dialect}");
        let second = String::from_utf8_lossy(&calls[1].request);
        assert!(second.contains("killed after 1 s, with all other processes"), "{second}");
    }
}

#[test]
fn time_limit_of_attempt_ends_loop_and_command_in_sandbox() {
    let run = shell("openai", &["--ak", "override_timeout_sec=2"]);
    let commands = vec!["sleep 86000".to_owned()];
    let server = ModelServer::start_scripted(ScriptedTask { commands, ..task() });
    let project = run.project();
    let trial = run.run_in(&project, &server, DEADLINE);
    assert_eq!(trial.error(), Some("agent_execution_timeout"), "{:#}", trial.result);
    assert_eq!(server.calls().len(), 1, "no call after the time limit");
}

#[test]
fn turns_of_shell_are_limited_in_sandbox() {
    let run = shell("anthropic", &["--ak", "max_turns=2"]);
    let commands = vec!["true".to_owned(); 5];
    let server = ModelServer::start_scripted(ScriptedTask { commands, ..task() });
    let project = run.project();
    let trial = run.run_in(&project, &server, DEADLINE);
    assert_eq!(server.calls().len(), 2);
    let errors = trial.text("command/stderr.txt").expect("errors");
    assert_eq!(errors, "shell: the model did not end within 2 calls\n");
    assert!(!trial.result["error"].is_null(), "{:#}", trial.result);
}

#[test]
fn refusal_of_model_server_ends_trial_with_its_message_in_sandbox() {
    // A wrong request is the agent's; an unknown model is no verdict on the agent.
    let refusals = [
        (400, "non_zero_exit", ExitCode::Success),
        (404, "model_refused", ExitCode::Infrastructure),
    ];
    for dialect in ["openai", "anthropic", "gemini"] {
        for (status, code, exit) in refusals {
            let (run, server) = (shell(dialect, &[]), ModelServer::start_scripted(task()));
            server.command([ModelAnswer::Status(status, None)]);
            let project = run.project();
            let trial = run.end_in(&project, &server, DEADLINE, exit);
            let expected = format!("shell: the model server answered with status {status}: ");
            assert!(trial.message().contains(&expected), "{:#}", trial.result["error"]);
            assert_eq!(trial.result["error"]["code"], code, "{:#}", trial.result["error"]);
            assert_eq!(server.calls().len(), 1, "it is not repeated");
            assert_key_is_in_no_file(project.path());
        }
    }
}
