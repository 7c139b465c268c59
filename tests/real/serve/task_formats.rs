//! Formats of uploaded tasks: the same as those of the directory.

use rollout_protocol::exit::ExitCode;
use serde_json::Value;

use crate::serve::{DEADLINE, DaemonProcess, project};

#[test]
fn uploaded_task_has_the_verdict_of_its_directory() {
    let project = project();
    let write = |task: &str, name: &str, text: &str| {
        project.write_file(&format!("tasks/{task}/{name}"), text);
    };
    for (task, first) in [("comment", "# reward.json"), ("bench", "true /logs/verifier/ctrf.json")]
    {
        write(task, "task.toml", "version = '1.0'\n");
        write(task, "instruction.md", "Do it.\n");
        let tests = format!("{first}\necho 1 > /logs/verifier/reward.txt\nexit 1\n");
        write(task, "tests/test.sh", &tests);
    }
    let daemon = DaemonProcess::start(&project, &[]);
    let url = daemon.url();
    let common = ["run", "-p", "tasks", "-a", "nop", "-e", "process", "--name", "j"];
    let _local = project.rollout(&common).wait(DEADLINE).expect_code(ExitCode::Success);
    let remote = [&common[..], &["--executor", "remote", "--remote-endpoint", &url]].concat();
    let _remote = project.rollout(&remote).wait(DEADLINE).expect_code(ExitCode::Success);
    let runs = daemon.client.get("/v1/runs").expect(200).json();
    let id = runs["runs"][0]["id"].as_str().expect("an id").to_owned();
    daemon.stop();
    for (task, outcome) in [("comment", "failed"), ("bench", "completed")] {
        let local = project.results("j").trial("nop", task).result;
        let show = ["show", &format!("state/jobs/{id}"), task, "--json"];
        let remote = project.rollout(&show).wait(DEADLINE).expect_code(ExitCode::Success);
        let remote: Value = serde_json::from_str(&remote.stdout).expect("JSON");
        for verdict in [&local, &remote["verdict"]] {
            assert_eq!(verdict["outcome"], outcome, "{verdict:#}");
            assert_eq!(verdict["format_doubt"], "test_exit", "{verdict:#}");
        }
    }
}
