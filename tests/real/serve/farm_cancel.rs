//! Cancellation of groups whose samples run.

use std::time::{Duration, Instant};

use rollout_tests::docker::DockerEngine;
use rollout_tests::model_server::ModelServer;
use rollout_tests::print_notice;
use rollout_tests::wait::{self, LONG_DEADLINE};
use serde_json::{Value, json};

use crate::serve::farms::{completions, farm_project, farm_request, group, opened, problem_type};
use crate::serve::{DEADLINE, DaemonProcess};

/// Containers of the group, unless `ROLLOUT_TEST_CANCEL_SAMPLES` says otherwise.
const SAMPLES: u32 = 16;

/// An agent that calls the model again and again, with the name of its model as the message.
const TALKER: &str = r#"
import json, os, time, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": os.environ["ROLLOUT_MODEL"]}]}
headers = {"Content-Type": "application/json",
           "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
while True:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        reply.read()
    time.sleep(0.05)
"#;

/// Asserts that every sample of the only group ended by its cancellation, and nothing else did.
fn assert_cancelled(daemon: &DaemonProcess, farm: &str, samples: u32) {
    let ended = completions(&daemon.client, farm, samples as usize);
    for completion in &ended {
        assert_eq!(completion["outcome"], "cancelled", "{completion:#}");
        assert_eq!(completion["reason"], "requested", "{completion:#}");
        assert_eq!(completion["reward"], Value::Null, "{completion:#}");
    }
    let again = daemon.client.post(&format!("{farm}/groups"), &[], &group("g", samples + 1));
    let again = again.expect(409);
    assert_eq!(problem_type(&again), "conflict");
    assert!(again.text().contains("cancelled"), "{}", again.text());
}

#[test]
fn cancelled_group_leaves_no_container() {
    let Some(engine) = DockerEngine::available() else { return };
    let samples = std::env::var("ROLLOUT_TEST_CANCEL_SAMPLES");
    let samples = samples.map_or(SAMPLES, |text| text.parse().expect("a number"));
    let project = farm_project();
    let slots = samples.to_string();
    let daemon = DaemonProcess::start(&project, &["--allow-provider", "docker", "--slots", &slots]);
    let mut request = farm_request(&project, "while true; do sleep 1; done");
    request["document"]["environment"] = json!({ "type": "docker" });
    request["document"]["n_concurrent_trials"] = json!(samples);
    let farm = opened(&daemon.client, &request);
    let _admitted =
        daemon.client.post(&format!("{farm}/groups"), &[], &group("g", samples)).expect(201);
    let mark = project.path().display().to_string();
    wait::until(DEADLINE, "every container runs", || {
        engine.running_containers(&mark) == samples as usize
    });

    let removal = DockerEngine::last_removal(&mark, samples as usize);
    let began = Instant::now();
    let cancelled = daemon.client.post(&format!("{farm}/groups/g/cancel"), &[], &Value::Null);
    assert_eq!(cancelled.expect(200).json()["samples"], json!(samples));
    wait::until(LONG_DEADLINE, "every container is removed", || removal.is_finished());
    let took = (removal.join().expect("a time") - began).as_secs_f64();
    print_notice(&format!("{samples} containers were removed within {took:.2} s"));
    assert_cancelled(&daemon, &farm, samples);
    assert_eq!(engine.containers(&mark), [""; 0]);
    daemon.stop();
}

#[test]
fn cancelled_group_makes_no_model_call_any_more() {
    const SAMPLES: u32 = 4;
    let server = ModelServer::start(Duration::ZERO);
    let project = farm_project();
    let daemon = DaemonProcess::start(&project, &["--allow-model-server", &server.origin()]);
    let mut request = farm_request(&project, &format!("python3 - <<'PYTHON'\n{TALKER}\nPYTHON\n"));
    request["document"]["gateway"] = json!({ "upstreams": [
        { "name": "main", "url": format!("{}/v1", server.origin()), "capture": "tokens" },
    ] });
    let farm = opened(&daemon.client, &request);
    let admit = |id: &str| {
        let mut group = group(id, SAMPLES);
        group["model"] = json!({ "name": format!("of-{id}") });
        let _admitted = daemon.client.post(&format!("{farm}/groups"), &[], &group).expect(201);
    };
    let calls_of = |id: &str| {
        let name = format!("of-{id}");
        let is_of = |request: &[u8]| String::from_utf8_lossy(request).contains(&name);
        server.calls().iter().filter(|call| is_of(&call.request)).count()
    };
    admit("g");
    wait::until(DEADLINE, "the samples talk", || calls_of("g") > 20);
    let cancelled = daemon.client.post(&format!("{farm}/groups/g/cancel"), &[], &Value::Null);
    assert_eq!(cancelled.expect(200).json()["samples"], json!(SAMPLES));
    // The next group takes the slots when the environments of the first one are gone.
    admit("h");
    wait::until(DEADLINE, "every next sample talks", || calls_of("h") > 20);
    let calls = calls_of("g");
    wait::until(DEADLINE, "the next samples go on", || calls_of("h") > 100);
    assert_eq!(calls_of("g"), calls);
    assert_cancelled(&daemon, &farm, SAMPLES);
    daemon.stop();
}
