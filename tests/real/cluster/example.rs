//! The NATS example: containers cannot reach the NATS server.

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::{Project, repository};
use rollout_tests::{nats, net};

use crate::cluster::DEADLINE;

/// Tries every address by which a container could reach the host.
const TEST: &str = r#"#!/bin/bash
gateway=$(awk '$2 == "00000000" { print $3 }' /proc/net/route | head -n 1)
gateway=$((16#${gateway:6:2})).$((16#${gateway:4:2})).$((16#${gateway:2:2})).$((16#${gateway:0:2}))
echo 1 >/logs/verifier/reward.txt
for host in 127.0.0.1 "$gateway"; do
  echo "trying $host"
  if timeout 5 bash -c "exec 3<>/dev/tcp/$host/@PORT@"; then
    echo 0 >/logs/verifier/reward.txt
  fi
done
"#;

const JOB: &str = "name: reach
environment: {type: docker}
agents: [{name: oracle}]
datasets: [{path: tasks}]
";

#[test]
fn container_cannot_reach_nats_server() {
    let (Some(_engine), [server, ..]) = (DockerEngine::available(), &nats::programs()[..]) else {
        return;
    };
    let port = net::free_port().to_string();
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
        .write("job.yaml", JOB)
        .write("tasks/reach/task.toml", "version = \"1.0\"\n")
        .write("tasks/reach/instruction.md", "Reach the server.\n")
        .write("tasks/reach/environment/Dockerfile", "FROM debian:bookworm-slim\n")
        .write("tasks/reach/solution/solve.sh", "#!/bin/bash\n")
        .write("tasks/reach/tests/test.sh", &TEST.replace("@PORT@", &port));
    let mut command = project.script(&repository().join("examples/nats/run"), &["job.yaml"]);
    command.env("NATS_SERVER", server).env("NATS_PORT", &port);
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("reach").trial("oracle", "reach");
    let stdout = trial.text("logs/verifier/stdout.txt").unwrap_or_default();
    assert_eq!(trial.reward(), Some(1.0), "{stdout}{}", ended.stderr);
    let tried: Vec<_> = stdout.lines().filter(|line| line.starts_with("trying ")).collect();
    assert!(tried.len() == 2 && tried[0] != tried[1], "{stdout}");
}
