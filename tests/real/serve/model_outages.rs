//! Model servers that fail: no verdict on the agents of runs and farms of a server.

use std::time::Duration;

use rollout_tests::model_server::{ModelAnswer, ModelServer};
use serde_json::{Value, json};

use crate::serve::farms::{CALLER, completions, farm_project, farm_request, group, opened};
use crate::serve::{DEADLINE, DaemonProcess, submitted};

/// Adds a model server to a document, and no second try.
fn add_server(document: &mut Value, server: &ModelServer) {
    document["retry"] = json!({ "max_attempts": 1 });
    document["gateway"] = json!({ "upstreams": [
        { "name": "main", "url": format!("{}/v1", server.origin()), "max_retries": 0 },
    ] });
}

/// An agent that ends with 0, whatever its call gets.
fn agent() -> String {
    format!("python3 - <<'PYTHON' || true\n{CALLER}\nPYTHON\n")
}

#[test]
fn sample_without_an_answer_is_not_usable_and_one_with_an_answer_is() {
    let server = ModelServer::start(Duration::ZERO);
    server.command([ModelAnswer::Status(503, None)]);
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &["--allow-model-server", &server.origin()]);
    let mut request = farm_request(&project, &agent());
    add_server(&mut request["document"], &server);
    let path = opened(&daemon.client, &request);
    let groups = format!("{path}/groups");
    let mut outage = group("outage", 1);
    outage["group_policy"] = json!("as_is");
    let _admitted = daemon.client.post(&groups, &[], &outage).expect(201);
    let lost = completions(&daemon.client, &path, 1).remove(0);
    assert_eq!(lost["usable"], false, "{lost:#}");
    assert_eq!(lost["outcome"], "no_result", "{lost:#}");
    assert_eq!(lost["error"]["code"], "model_unreachable", "{lost:#}");
    assert!(lost["reward"].is_null(), "{lost:#}");

    let _admitted = daemon.client.post(&groups, &[], &group("later", 1)).expect(201);
    let answered = completions(&daemon.client, &path, 2).remove(1);
    assert_eq!((&answered["usable"], &answered["reward"]), (&true.into(), &1.0.into()));
    daemon.stop();
}

#[test]
fn run_on_a_server_without_an_answer_has_no_verdict() {
    let server = ModelServer::start(Duration::ZERO);
    server.command([ModelAnswer::Status(500, None)]);
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &["--allow-model-server", &server.origin()]);
    let mut submission = json!({ "document": farm_request(&project, &agent())["document"] });
    submission["document"]["name"] = json!("calls");
    add_server(&mut submission["document"], &server);
    let id = submitted(&daemon.client, &submission);
    daemon.wait_for(&id, &["completed", "failed"]);
    let run = daemon.client.get(&format!("/v1/runs/{id}")).expect(200).json();
    assert_eq!(run["progress"]["scored"]["trials"], 0, "{run:#}");
    daemon.stop();
    let words = ["show", &format!("state/jobs/{id}"), "t", "--json"];
    let shown = project.rollout(&words).wait(DEADLINE);
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let error = &shown["verdict"]["error"];
    assert_eq!(
        (&error["code"], &error["class"]),
        (&"model_unreachable".into(), &"infrastructure".into())
    );
    assert!(shown["verdict"]["reward"].is_null(), "{shown:#}");
}
