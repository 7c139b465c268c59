//! Cache mounts of builds: a task of one user finds nothing that the build of another's kept.

use rollout_tests::docker::DockerEngine;
use rollout_tests::project::Project;
use serde_json::json;

use crate::serve::{DaemonProcess, project, submission, submitted};

/// Reward 1 if the build found nothing.
const VERIFIER: &str = "#!/bin/bash
grep -q nothing /app/found && r=1 || r=0
echo $r > /logs/verifier/reward.txt
";

/// A project with a task whose build runs a command with a cache mount at `/cache`.
fn with_build(project: Project, name: &str, command: &str) -> Project {
    let at = |file: &str| format!("tasks/{name}/{file}");
    let id = project.path().file_name().expect("a name").to_string_lossy().into_owned();
    let dockerfile = format!(
        "FROM debian:bookworm-slim\nRUN --mount=type=cache,id={id},target=/cache {command}\nWORKDIR /app\n"
    );
    project
        .write(&at("task.toml"), "format = \"rollout\"\n")
        .write(&at("instruction.md"), "Show what the build found.\n")
        .write(&at("environment/Dockerfile"), &dockerfile)
        .write(&at("solution/solve.sh"), "#!/bin/bash\ncp /found /app/found\n")
        .write(&at("tests/test.sh"), VERIFIER)
}

#[test]
fn cache_mount_of_one_build_is_empty_in_another_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    let project = with_build(project(), "keeps", "echo nothing >/found; touch /cache/kept");
    let project =
        with_build(project, "looks", "ls /cache | grep kept >/found || echo nothing >/found");
    let daemon = DaemonProcess::start(&project, &["--allow-provider", "docker"]);
    for name in ["keeps", "looks"] {
        let mut request = submission(&project, 1);
        request["document"]["name"] = json!(name);
        request["document"]["environment"] = json!({ "type": "docker" });
        request["document"]["datasets"][0]["task_names"] = json!([name]);
        let run = daemon.wait_for(&submitted(&daemon.client, &request), &["failed", "completed"]);
        assert_eq!(run["progress"]["mean_reward"], 1.0, "{run:#}");
    }
    daemon.stop();
}
