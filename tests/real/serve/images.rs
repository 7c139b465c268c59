//! Images and builds of tasks of users: the engine is not led into the network of its host.

use std::fs;

use serde_json::{Value, json};

use crate::serve::{DaemonProcess, project, submission, submitted};

#[test]
fn image_or_build_of_the_inner_network_is_refused_before_an_engine_is_asked() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &[]);
    let mut document = submission(&project, 1);
    document["document"]["environment"] = json!({ "type": "docker" });
    let failure = |document: &Value| {
        let id = submitted(&daemon.client, document);
        let run = daemon.wait_for(&id, &["failed", "completed"]);
        assert_eq!(run["state"], "failed", "{run:#}");
        run["failure"].to_string()
    };
    let task = project.path().join("tasks/second");
    let dockerfile = task.join("environment/Dockerfile");
    let original = fs::read_to_string(&dockerfile).expect("a Dockerfile");
    for (text, word) in [
        ("FROM 127.0.0.1:5000/x\n", "127.0.0.1:5000"),
        ("FROM debian:12\nADD http://127.0.0.1:80/secret /x\n", "ADD"),
        ("FROM debian:12\nADD http://169.254.169.254/latest /x\n", "ADD"),
        ("# syntax=127.0.0.1:5000/frontend\nFROM debian:12\n", "frontend"),
    ] {
        fs::write(&dockerfile, text).expect("written");
        let failed = failure(&document);
        assert!(failed.contains("second/environment/Dockerfile"), "{text}: {failed}");
        assert!(failed.contains(word) && failed.contains("--allow-image-registry"), "{failed}");
    }
    fs::write(&dockerfile, original).expect("written");
    let named = "[environment]\ndocker_image = 'localhost:5000/x'\n";
    fs::write(task.join("task.toml"), format!("version = '1.0'\n{named}")).expect("written");
    let failed = failure(&document);
    assert!(failed.contains("environment.docker_image"), "{failed}");
    daemon.stop();
}
