//! Values of the server's variables that documents use: masked like those of a local run.

use rollout_protocol::exit::ExitCode;
use serde_json::json;

use crate::serve::farms::{farm_project, farm_request};
use crate::serve::{DEADLINE, DaemonProcess, submitted};

#[test]
fn value_of_a_variable_of_the_server_is_masked_by_its_class() {
    let project = farm_project();
    project.set_variable("TEAM_API_KEY", "hunter2hunter2");
    project.set_variable("REGION", "eu-west-7");
    project.set_variable("PIN", "0815x");
    let words = ["TEAM_API_KEY", "REGION", "PIN"].map(|name| ["--variable", name]).concat();
    let daemon = DaemonProcess::start(&project, &words);
    let execute = "echo \"$TEAM_API_KEY $REGION $PIN\"; echo done >answer.txt";
    let mut submission = json!({ "document": farm_request(&project, execute)["document"] });
    submission["document"]["name"] = json!("variables");
    submission["document"]["secrets"] = json!(["PIN"]);
    submission["document"]["agents"][0]["env"] =
        json!({ "TEAM_API_KEY": "${TEAM_API_KEY}", "REGION": "${REGION}", "PIN": "${PIN}" });
    let id = submitted(&daemon.client, &submission);
    daemon.wait_for(&id, &["completed"]);
    let assert_masked = |place: &str| {
        let shown = project.rollout(&["logs", place, "t", "command/stdout.txt"]).wait(DEADLINE);
        let shown = shown.expect_code(ExitCode::Success).stdout;
        assert_eq!(shown, "[redacted:TEAM_API_KEY] eu-west-7 [redacted:PIN]\n", "{place}");
    };
    assert_masked(&format!("{}/v1/runs/{id}", daemon.url()));
    daemon.stop();
    assert_masked(&format!("state/jobs/{id}"));
}
