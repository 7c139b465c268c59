//! Parts of documents that need an option of the server.

use rollout_tests::cluster::Cluster;
use serde_json::json;

use crate::serve::{DaemonProcess, project, submission};

/// Options of a server that starts no run.
const IDLE: [&str; 2] = ["--max-running", "0"];

#[test]
fn kept_environments_need_the_option_for_settings_of_providers() {
    let project = project().tasks(["slow/second"], &[]);
    let mut job = submission(&project, 1);
    for options in [&IDLE[..], &["--max-running", "0", "--allow-provider-settings"]] {
        let daemon = DaemonProcess::start(&project, options);
        for kept in ["always", "on_failure"] {
            job["document"]["environment"]["preserve_env"] = json!(kept);
            let answer = daemon.client.post("/v1/runs", &[], &job);
            if options.len() > IDLE.len() {
                let _accepted = answer.expect(201);
                continue;
            }
            let farm = json!({ "name": "policy", "document": job["document"] });
            let of_farm = daemon.client.post("/v1/farms", &[], &farm);
            for refused in [answer, of_farm] {
                let text = refused.expect(422).json()["details"].to_string();
                assert!(text.contains("environment.preserve_env: "), "{kept}: {text}");
                assert!(text.contains("--allow-provider-settings"), "{kept}: {text}");
            }
        }
        daemon.stop();
    }
}

#[test]
fn pools_that_are_not_listed_are_refused_over_nats() {
    let Some(cluster) = Cluster::new(project().tasks(["slow/second"], &[])) else { return };
    let (url, store) = (cluster.server.url(), cluster.store().display().to_string());
    let nats = ["--nats", &url, "--store", &store, "--allow-pool", "gpu"];
    let daemon = DaemonProcess::start(&cluster.project, &[&nats[..], &IDLE].concat());
    let mut job = submission(&cluster.project, 1);
    for (pool, status) in [("gpu", 201), ("default", 201), ("private", 422)] {
        job["document"]["pool"] = json!(pool);
        let answer = daemon.client.post("/v1/runs", &[], &job);
        assert_eq!(answer.status, status, "{pool}: {}", answer.text());
        if status == 422 {
            let farm = json!({ "name": "policy", "document": job["document"] });
            let of_farm = daemon.client.post("/v1/farms", &[], &farm);
            for refused in [answer, of_farm] {
                let text = refused.expect(422).json()["details"].to_string();
                assert!(text.contains("pool private: ") && text.contains("--allow-pool"), "{text}");
            }
        }
    }
    daemon.stop();
}
