//! Images and builds of tasks of users: the engine is not led into the network of its host.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use serde_json::{Value, json};

use crate::serve::{DaemonProcess, project, submission, submitted};

#[test]
fn image_or_build_of_the_inner_network_is_refused_before_an_engine_is_asked() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.set_nonblocking(true).expect("set");
    let inner = listener.local_addr().expect("an address").to_string();
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
    let base = "FROM debian:12\n";
    for (text, word) in [
        (format!("FROM {inner}/x\n"), inner.as_str()),
        (format!("ARG H={inner}\nFROM $H/x\n"), &inner),
        (format!("{base}COPY --from={inner}/x /x /y\n"), &inner),
        (format!("{base}ADD http://{inner}/secret /x\n"), "ADD"),
        (format!("{base}ADD h'tt'p://{inner}/secret /x\n"), "ADD"),
        (format!("{base}ADD http://169.254.169.254/latest /x\n"), "ADD"),
        (format!("{base}ONBUILD ADD http://{inner}/secret /x\n"), "ADD"),
        (format!("# syntax={inner}/frontend\n{base}"), "frontend"),
        (
            format!("{base}COPY <<#\\E /f\nx \\\n#E\nADD http://{inner}/x /x\nRUN true \\\n#\\E\n"),
            "COPY",
        ),
        (format!("{base}ADD [\"\\u0068ttp:\\u002f\\u002f{inner}/x?\\ud800\", \"/x\"]\n"), "ADD"),
        (format!("{{\"syntax\": \"{inner}/frontend\", \"x\": \"\\ud800\"}}\n"), "frontend"),
        ("FROM rollout/task:0123456789abcdef0123456789abcdef\n".to_owned(), "rollout/task"),
        ("ARG BASE\nFROM $BASE\n".to_owned(), "BASE"),
    ] {
        fs::write(&dockerfile, &text).expect("written");
        let failed = failure(&document);
        assert!(failed.contains("second/environment/Dockerfile"), "{text}: {failed}");
        assert!(failed.contains(word) && failed.contains("expected "), "{failed}");
    }
    fs::write(&dockerfile, original).expect("written");
    let compose = task.join("environment/docker-compose.yaml");
    for (text, word) in [
        (format!("services: {{main: {{!!binary aW1hZ2U=: '{inner}/x'}}}}\n"), "!!binary"),
        ("services: {main: {build: {context: ., args: [BASE]}}}\n".to_owned(), "argument"),
        (format!("services: {{main: {{build: 'http://{inner}/x.git'}}}}\n"), "a build of a place"),
        (format!("services: {{main: {{build: 'git@{inner}:x'}}}}\n"), "a build of a place"),
        (
            "services: {main: {build: {context: 'https://example.com/x.git#main:sub'}}}\n"
                .to_owned(),
            "a build of a place",
        ),
    ] {
        fs::write(&compose, &text).expect("written");
        let failed = failure(&document);
        assert!(failed.contains("docker-compose.yaml") && failed.contains(word), "{failed}");
    }
    fs::remove_file(&compose).expect("removed");
    let named = "[environment]\ndocker_image = 'localhost:5000/x'\n";
    fs::write(task.join("task.toml"), format!("version = '1.0'\n{named}")).expect("written");
    let failed = failure(&document);
    assert!(failed.contains("environment.docker_image"), "{failed}");
    assert!(listener.accept().is_err(), "something was fetched");
    daemon.stop();
}
