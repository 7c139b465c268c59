//! Values of variables in output and artifacts: declared secrets, likely ones, and plain values.

use std::fs;

use rollout_protocol::exit::ExitCode;
use serde_json::{Value, json};

use crate::e2e::{DEADLINE, assert_nothing_left, project};

const JOB: &str = r#"
name: values
environment: {type: process}
secrets: [PIN]
artifacts: [/app]
agents:
  - name: a
    env: {SEED: "${SEED}", ON: "${ON}", REGION: "${REGION}", HF_TOKEN: "${HF_TOKEN}", PIN: "${PIN}"}
    execute: |
      echo '{"loss": 0.1234, "ok": true}' > metrics.json; echo us-east-1 > region.csv
      tar -cf r.tar region.csv; echo "$HF_TOKEN" > token.txt; echo "$PIN" > pin.txt
      echo "$SEED $ON $REGION $HF_TOKEN $PIN"
datasets: [{path: tasks}]
"#;

#[test]
fn only_secrets_are_masked_and_artifacts_are_kept_or_left_out_whole() {
    let project = project().write("job.yaml", JOB);
    project.write_small_task(
        "printf '{\"us-east-1\": 0.1234, \"reward\": 1}' > /logs/verifier/reward.json",
    );
    project
        .write_file("tasks/t/environment/Dockerfile", "FROM debian:bookworm-slim\nWORKDIR /app\n");
    let mut command = project.command(&["run", "job.yaml"]);
    command.envs([
        ("SEED", "1234"),
        ("ON", "true"),
        ("REGION", "us-east-1"),
        ("HF_TOKEN", "hunter2hunter2"),
        ("PIN", "0815x"),
    ]);
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let notes: Vec<_> = ended.stderr.lines().filter(|line| line.starts_with("note:")).collect();
    let expected = "note: masked: PIN in all output (declared secrets); HF_TOKEN in logs and errors \
                    (they look like secrets)";
    assert_eq!(notes, [expected]);

    let trial = project.results("values").trial("a", "t");
    let text = |path: &str| fs::read_to_string(trial.directory.join(path)).expect(path);
    let shown = "1234 true us-east-1 [redacted:HF_TOKEN] [redacted:PIN]\n";
    assert_eq!(text("command/stdout.txt"), shown);
    assert_eq!(text("artifacts/app/metrics.json"), "{\"loss\": 0.1234, \"ok\": true}\n");
    assert!(text("artifacts/app/r.tar").contains("us-east-1"), "an archive is not changed");
    assert_eq!(text("artifacts/app/token.txt"), "hunter2hunter2\n");
    assert!(!trial.directory.join("artifacts/app/pin.txt").exists());
    assert_eq!(trial.result["rewards"]["us-east-1"], json!(0.1234), "{:#}", trial.result);
    let manifest: Value = serde_json::from_str(&text("artifacts/manifest.json")).expect("JSON");
    assert_eq!(manifest[0]["possible_secrets"], json!(["HF_TOKEN"]), "{manifest}");
    let reason = manifest[0]["error"].as_str().expect("a reason");
    assert!(reason.contains("1 entries") && reason.contains("PIN"), "{manifest}");
    assert_nothing_left(&project);
}

#[test]
fn value_of_the_variable_of_a_model_server_is_a_declared_secret() {
    let job = r#"
name: keys
environment: {type: process}
gateway: {upstreams: [{name: main, url: "http://127.0.0.1:9/v1", key_env: PLAINNAME}]}
artifacts: [/app]
agents:
  - name: a
    env: {COPY: "${PLAINNAME}"}
    execute: |
      echo "$COPY"; echo "$COPY" > copy.txt; echo fine > fine.txt
datasets: [{path: tasks}]
"#;
    let project = project().write("job.yaml", job);
    project.write_small_task("echo 1 >/logs/verifier/reward.txt\n");
    project
        .write_file("tasks/t/environment/Dockerfile", "FROM debian:bookworm-slim\nWORKDIR /app\n");
    let mut command = project.command(&["run", "job.yaml"]);
    command.env("PLAINNAME", "simplevalue");
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let _noted = ended.expect_stderr("note: masked: PLAINNAME in all output (declared secrets)");

    let trial = project.results("keys").trial("a", "t");
    let text = |path: &str| fs::read_to_string(trial.directory.join(path)).expect(path);
    assert_eq!(text("command/stdout.txt"), "[redacted:PLAINNAME]\n");
    assert_eq!(text("artifacts/app/fine.txt"), "fine\n");
    assert!(!trial.directory.join("artifacts/app/copy.txt").exists());
    let manifest: Value = serde_json::from_str(&text("artifacts/manifest.json")).expect("JSON");
    let reason = manifest[0]["error"].as_str().expect("a reason");
    assert!(reason.contains("1 entries") && reason.contains("PLAINNAME"), "{manifest}");
    assert_nothing_left(&project);
}
