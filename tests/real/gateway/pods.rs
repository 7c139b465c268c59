//! Agents in pods of the double of a Kubernetes cluster.

use std::fs;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::kube::{ImageFixture, KubeDouble};
use rollout_tests::model_calls::REAL_KEY;
use rollout_tests::model_server::ModelServer;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::gateway::DEADLINE;

/// Image of the task.
const IMAGE: &str = "registry.test/task:1";

/// An agent that needs no program but a shell.
const CALLER: &str = r#"
origin=${OPENAI_BASE_URL#http://}
address=${origin%%/*}
path=/${origin#*/}/chat/completions
body='{"model":"m","messages":[{"role":"user","content":"hi"}]}'
exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
printf 'POST %s HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer %s\r\n' \
  "$path" "$OPENAI_API_KEY" >&3
printf 'content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s' \
  "${#body}" "$body" >&3
cat <&3 >/logs/agent/answer.txt
head -n 1 /logs/agent/answer.txt
"#;

#[test]
fn agent_in_a_pod_calls_models_at_the_address_of_its_worker() {
    let (server, double) = (ModelServer::start(Duration::ZERO), KubeDouble::start());
    double.image(IMAGE, ImageFixture::new());
    let execute = Value::String(format!("bash <<'BASH'\n{CALLER}\nBASH\n"));
    let job = format!(
        "name: pods\nenvironment: {{type: kubernetes}}\n\
         gateway: {{upstreams: [{{name: main, url: '{}/v1', key_env: MODEL_KEY}}]}}\n\
         retry: {{max_attempts: 1}}\nagents: [{{name: caller, execute: {execute}}}]\n\
         datasets: [{{path: tasks}}]\n",
        server.origin()
    );
    let task = format!("version = '1.0'\n[environment]\ndocker_image = '{IMAGE}'\n");
    let test = "grep -q '200 OK' /logs/agent/answer.txt && reward=1\n\
                echo ${reward:-0} >/logs/verifier/reward.txt\n";
    let options =
        format!("kubeconfig: {}\ngateway_address: '127.0.0.1:0'\n", double.kubeconfig().display());
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"))
        .write("job.yaml", &job)
        .write("kubernetes.yaml", &options)
        .write("tasks/t/task.toml", &task)
        .write("tasks/t/instruction.md", "Call the model.\n")
        .write("tasks/t/tests/test.sh", test);
    let Some(cluster) = Cluster::new(project) else { return };
    let file = cluster.project.path().join("kubernetes.yaml").display().to_string();
    let mut worker = cluster
        .worker("a", 1)
        .with_option("--provider", "kubernetes")
        .with_option("--kubernetes-config", &file)
        .with_option("--trial-env", "MODEL_KEY")
        .with_variable("MODEL_KEY", REAL_KEY)
        .started();
    let mut run = cluster.coordinator("job.yaml").with_variable("MODEL_KEY", REAL_KEY).started();
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = cluster.project.results("pods").trial("caller", "t");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    assert_eq!(server.calls().len(), 1);
    let seen = String::from_utf8_lossy(&server.calls()[0].request).into_owned();
    assert!(seen.contains("\"hi\""), "{seen}");
    let calls = fs::read_to_string(trial.directory.join("gateway/calls.jsonl")).expect("calls");
    assert!(!calls.contains(REAL_KEY));
    let _ended = worker.terminate(DEADLINE);
}
