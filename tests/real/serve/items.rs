//! Items of runs, their output and their artifacts.

use serde_json::{Value, json};

use crate::serve::{DaemonProcess, project, submitted};

/// A job whose agent prints, waits and leaves a file.
fn printing_job(project: &rollout_tests::project::Project, seconds: u32) -> Value {
    json!({ "document": {
        "name": "printing",
        "environment": { "type": "process" },
        "agents": [{
            "name": "printer",
            "execute": format!(
                "echo begun; sleep {seconds}; echo over; echo kept >/logs/agent/note.txt"
            ),
        }],
        "datasets": [{ "path": project.path().join("tasks") }],
    } })
}

#[test]
fn items_outputs_and_artifacts_are_those_of_the_run() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let id = submitted(&daemon.client, &printing_job(&project, 0));
    daemon.wait_for(&id, &["completed"]);
    let items = daemon.client.get(&format!("/v1/runs/{id}/items")).expect(200).json();
    let item = &items["items"][0];
    assert_eq!((&item["agent_name"], &item["state"]), (&json!("printer"), &json!("completed")));
    assert_eq!(items["next"], Value::Null);
    let none = daemon.client.get(&format!("/v1/runs/{id}/items?state=failed")).expect(200).json();
    assert_eq!(none["items"], json!([]));

    let base = format!("/v1/runs/{id}/items/{}", item["item"].as_str().expect("an id"));
    let shown = daemon.client.get(&base).expect(200).json();
    assert_eq!(shown["executions"][0]["role"], json!("settled"), "{shown:#}");
    let by_name = daemon.client.get(&format!("/v1/runs/{id}/items/printer")).expect(200).json();
    assert_eq!(by_name["item"], item["item"]);

    let outputs = daemon.client.get(&format!("{base}/outputs")).expect(200).json();
    let outputs = outputs["outputs"].as_array().expect("outputs").clone();
    let printed = outputs.iter().filter_map(|output| output["path"].as_str());
    let printed: Vec<_> = printed.filter(|path| path.ends_with("stdout.txt")).collect();
    let text = daemon.client.get(&format!("{base}/logs")).expect(200).text();
    assert!(text.contains("begun\nover\n"), "{text}");
    assert!(outputs.iter().any(|output| output["path"] == "command/stderr.txt"), "{outputs:?}");
    assert!(text.contains("==> command/stdout.txt <==") && !text.contains("stderr.txt"), "{text}");
    let one = printed
        .iter()
        .map(|path| daemon.client.get(&format!("{base}/logs?name={path}")).expect(200).text());
    assert!(one.into_iter().any(|text| text == "begun\nover\n"), "{printed:?}");
    let artifacts = daemon.client.get(&format!("{base}/artifacts")).expect(200).json();
    for artifact in artifacts["artifacts"].as_array().expect("artifacts") {
        let path = artifact["path"].as_str().expect("a path");
        let content = daemon.client.get(&format!("{base}/artifact?path={path}")).expect(200);
        assert_eq!(Some(content.body.len() as u64), artifact["size_bytes"].as_u64());
    }
    for path in [
        "/logs?name=../../etc/passwd",
        "/logs?name=/etc/passwd",
        "/logs?name=agent/no-such-file",
        "/logs?name=/etc/passwd&follow=true",
        "/logs?name=command/no-such-file&follow=true",
        "/logs?name=%00",
        "/artifact?path=../x",
    ] {
        let _refused = daemon.client.get(&format!("{base}{path}")).expect(404);
    }
    let _none = daemon.client.get(&format!("/v1/runs/{id}/items/no-such-item")).expect(404);
}

#[test]
fn output_of_a_running_item_is_sent_as_it_is_written() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let id = submitted(&daemon.client, &printing_job(&project, 5));
    daemon.wait_for(&id, &["running"]);
    let mut lines =
        daemon.client.follow(&format!("/v1/runs/{id}/items/printer/logs?follow=true"), &[]);
    assert!(lines.any(|line| line == "begun"));
    let run = daemon.client.get(&format!("/v1/runs/{id}")).expect(200).json();
    assert_eq!(run["state"], json!("running"), "{run:#}");
    assert!(lines.any(|line| line == "over"));
    daemon.wait_for(&id, &["completed"]);
    let rest: String = lines.collect();
    assert!(!rest.contains("begun"), "{rest}");
}
