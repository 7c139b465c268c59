//! Commands that take the address of a server, of a run on it or of a farm.

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::{Value, json};

use crate::serve::farms::{farm_project, farm_request, opened, wait_for};
use crate::serve::{DEADLINE, DaemonProcess, project, submitted};

fn printed(project: &Project, arguments: &[&str]) -> String {
    project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Success).stdout
}

fn document(project: &Project, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(project, arguments)).expect("one JSON document")
}

/// A job with an agent that prints, on a task that passes and on one whose tests fail.
fn job(project: &Project) -> Value {
    json!({ "document": {
        "name": "printing",
        "environment": { "type": "process" },
        "retry": { "max_attempts": 1 },
        "agents": [{ "name": "printer", "execute": "echo said" }],
        "datasets": [{ "path": project.path().join("tasks") }],
    } })
}

#[test]
fn runs_of_server_are_listed_and_shown_by_address() {
    let project = project().tasks(["faults/passes", "faults/verifier-failed"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let (server, id) = (daemon.url(), submitted(&daemon.client, &job(&project)));
    daemon.wait_for(&id, &["completed"]);
    let run = format!("{server}/v1/runs/{id}");

    let text = printed(&project, &["list", &server]);
    let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row[..3], [id.as_str(), "printing", "completed"], "{text}");
    assert_eq!(row[4..], ["2", "2", "50%"], "{text}");
    let listed = document(&project, &["list", &server, "--json"]);
    assert_eq!(listed["runs"][0]["path"], json!(run));

    let text = printed(&project, &["show", &run]);
    assert!(text.contains("printer/tasks/passes__1"), "{text}");
    let text = printed(&project, &["show", &run, "--failed", "--agent", "print*"]);
    assert!(!text.contains("printer/tasks/passes__1"), "{text}");
    assert!(text.contains("verifier_failed (non_zero_exit)"), "{text}");
    let shown = document(&project, &["show", &run, "--limit", "1", "--json"]);
    assert_eq!(
        (&shown["selected"], shown["trials"].as_array().map(Vec::len)),
        (&json!(2), Some(1))
    );

    let text = printed(&project, &["show", &run, "verifier-failed"]);
    let hint = format!("`rollout logs {run} printer/tasks/verifier-failed__1` prints its output");
    assert!(text.contains(&hint), "{text}");
    assert!(text.contains("command/stdout.txt"), "{text}");
    let shown = document(&project, &["show", &run, "verifier-failed", "--json"]);
    assert_eq!(shown["executions"][0]["role"], "settled", "{shown:#}");

    let text = printed(&project, &["logs", &run, "passes", "command/stdout.txt"]);
    assert_eq!(text, "said\n");
    let text = printed(&project, &["logs", &run, "passes", "--list"]);
    assert!(text.lines().any(|line| line.starts_with("command/stdout.txt")), "{text}");
    let refused = project.rollout(&["list", &run]).wait(DEADLINE).expect_code(ExitCode::Usage);
    assert!(refused.stderr.contains("it is not a server"), "{}", refused.stderr);
    daemon.stop();
}

#[test]
fn farms_of_server_are_listed_and_shown() {
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &[]);
    let server = daemon.url();
    assert_eq!(printed(&project, &["farm", "list", &server]), "no farms\n");
    let path = opened(&daemon.client, &farm_request(&project, "true"));
    wait_for(&daemon.client, &path, "running");
    let id = path.rsplit('/').next().expect("an id");

    let text = printed(&project, &["farm", "list", &server]);
    let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!((row[0], row[1], row[3]), (id, "policy", "running"), "{text}");
    for arguments in [
        &["farm", "show", &format!("{server}{path}")][..],
        &["farm", "show", id, "--server", &server],
    ] {
        let text = printed(&project, arguments);
        assert!(text.contains("groups   0 open of 0, 0 complete"), "{text}");
    }
    let shown = document(&project, &["farm", "show", id, "--server", &server, "--json"]);
    assert_eq!(shown["state"], "running");
    let refused = project.rollout(&["farm", "show", "none", "--server", &server]).wait(DEADLINE);
    assert!(!refused.status.success(), "{}", refused.stderr);
    daemon.stop();
}
