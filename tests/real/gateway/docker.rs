//! Agents in containers of a real engine: with a network, without one, and where the worker may not
//! enter the container's network.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::model_calls::{REAL_KEY, lines, of_type};
use rollout_tests::model_server::ModelServer;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::gateway::DEADLINE;

/// Calls the model with nothing but bash, and prints the status and the interfaces of its network.
const AGENT: &str = r#"
origin=${OPENAI_BASE_URL#http://}; address=${origin%%/*}
body='{"model":"m","messages":[{"role":"user","content":"x"}]}'
exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
printf 'POST /openai/v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s' \
  "$OPENAI_API_KEY" "${#body}" "$body" >&3
read -r _ status _ <&3
echo "$status ${address%:*}" $(ls /sys/class/net)
"#;

/// Runs one trial in a container, with further lines of the task; returns the program's end and the
/// project.
fn run(network: &str, task: &str, prefix: &[&str]) -> (ModelServer, ProgramExit, Project) {
    let server = ModelServer::start(Duration::ZERO);
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let (origin, execute) = (server.origin(), Value::from(AGENT));
    project.write_file(
        "job.yaml",
        &format!(
            "name: calls\n\
             environment: {{type: docker, provider_config: {{network: {network}}}}}\n\
             gateway: {{upstreams: [{{name: main, url: '{origin}/v1', key_env: MODEL_KEY}}]}}\n\
             retry: {{max_attempts: 1}}\n\
             agents:\n  - name: caller\n    execute: {execute}\n\
             datasets: [{{path: tasks}}]\n"
        ),
    );
    project.write_small_task("echo 1 >/logs/verifier/reward.txt\n");
    project.write_file("tasks/t/task.toml", &format!("version = '1.0'\n{task}"));
    let mut command = project.command(&["run", "job.yaml", "-q"]);
    if let [program, arguments @ ..] = prefix {
        let mut prefixed = std::process::Command::new(program);
        prefixed.args(arguments).arg(command.get_program()).args(command.get_args());
        prefixed
            .env_clear()
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        prefixed.current_dir(command.get_current_dir().expect("a directory"));
        command = prefixed;
    }
    command.env("MODEL_KEY", REAL_KEY);
    let ended = project.start(command).wait(DEADLINE);
    (server, ended, project)
}

#[test]
fn agent_in_container_reaches_gateway_with_and_without_network() {
    if DockerEngine::available().is_none() {
        return;
    }
    let without = "[agent]\nnetwork_mode = 'no-network'\n";
    for (network, task, interfaces) in
        [("bridge", "", "eth0 lo"), ("bridge", without, "lo"), ("none", "", "lo")]
    {
        let (server, ended, project) = run(network, task, &[]);
        let _ended = ended.expect_code(ExitCode::Success);
        let trial = project.results("calls").trial("caller", "t");
        let output = trial.text("command/stdout.txt").expect("output");
        assert_eq!(output, format!("200 127.0.0.1 {interfaces}\n"), "{network} {task}");
        let lines = lines(&trial);
        assert_eq!(of_type(&lines, "ended").len(), 1);
        assert_eq!(server.calls().len(), 1);
    }
}

#[test]
fn worker_that_may_not_enter_container_listens_on_bridge_or_refuses_the_trial() {
    if DockerEngine::available().is_none() {
        return;
    }
    // Without the capability to enter namespaces.
    let prefix = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"];
    let (server, ended, project) = run("bridge", "", &prefix);
    let _ended = ended.expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    let output = trial.text("command/stdout.txt").expect("output");
    assert!(output.starts_with("200 ") && !output.contains("127.0.0.1"), "{output}");
    assert_eq!(server.calls().len(), 1);

    let without = "[agent]\nnetwork_mode = 'no-network'\n";
    for (network, task) in [("bridge", without), ("none", "")] {
        let (server, _ended, project) = run(network, task, &prefix);
        let trial = project.results("calls").trial("caller", "t");
        let error = &trial.result["error"];
        assert_eq!(error["code"], "unsupported_by_environment", "{:#}", trial.result);
        let message = error["message"].as_str().expect("a message");
        assert!(message.starts_with("cannot reach the model gateway: "), "{message}");
        assert!(message.contains("run the worker as root on the engine's host"), "{message}");
        assert_eq!(trial.text("command/stdout.txt"), None, "the agent did not begin");
        assert!(server.calls().is_empty());
    }
}
