//! The description of the API, kept as a reviewed file.

use std::fs;

use rollout_tests::project::repository;
use serde_json::Value;

use crate::serve::{DaemonProcess, project};

#[test]
fn description_equals_the_reviewed_file_and_what_the_server_sends() {
    let path = repository().join("docs/openapi.json");
    let found = rollout_coordinator::api::openapi();
    if std::env::var("INSTA_UPDATE").as_deref() == Ok("always") {
        let text = serde_json::to_string_pretty(&found).expect("JSON");
        fs::write(&path, text + "\n").expect("written");
    }
    let text = fs::read_to_string(&path).expect("docs/openapi.json");
    let reviewed: Value = serde_json::from_str(&text).expect("JSON");
    let how = "write it again with `INSTA_UPDATE=always` and review the difference";
    assert!(found == reviewed, "docs/openapi.json is outdated: {how}");

    let project = project();
    let daemon = DaemonProcess::start(&project, &[]);
    assert_eq!(daemon.client.get("/v1/openapi.json").expect(200).json(), reviewed);
}
