//! Generated requests, valid and not, against the description of the API: no answer is a failure of
//! the server, and none is one that the description does not have.

use std::fs;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::{Project, repository};
use rollout_tests::{python, wait};
use serde_json::{Value, json};

use crate::{DaemonProcess, project, submission, submitted};

/// Longest duration on a busy machine with two processors.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Requests for each operation and phase, unless `ROLLOUT_TEST_SCHEMATHESIS_EXAMPLES` says otherwise.
const EXAMPLES: &str = "200";

/// The seed of the requests: a failure can be repeated.
const SEED: &str = "1";

/// Statuses of requests that the schema accepts: documents, states and limits may refuse them.
const CONFIG: &str = "[checks.positive_data_acceptance]\nexpected-statuses = \
    ['2xx', '401', '403', '404', '409', '422', '429', '503']\n";

/// The description for a server with these runs: requests with ids that exist reach more than a 404.
fn description(project: &Project, daemon: &DaemonProcess) -> String {
    let text = fs::read_to_string(repository().join("docs/openapi.json")).expect("a description");
    let mut description: Value = serde_json::from_str(&text).expect("JSON");
    let [of_job, to_delete] = [0, 1].map(|_| submitted(&daemon.client, &submission(project, 1)));
    for id in [&of_job, &to_delete] {
        daemon.wait_for(id, &["completed"]);
    }
    let mut executor = submission(project, 2);
    executor["kind"] = json!("executor");
    let executor = submitted(&daemon.client, &executor);
    daemon.wait_for(&executor, &["running"]);
    let trials = daemon.client.get(&format!("/v1/runs/{executor}/trials")).expect(200).json();
    let start =
        json!({ "trial": trials["trials"][0]["trial"], "spec": trials["trials"][0]["spec"] });
    let path = format!("/v1/runs/{executor}/trials");
    let started = daemon.client.post(&path, &[], &start).expect(201).json();
    let trial = format!("{path}/{}", started["item"].as_str().expect("an item"));
    wait::until(crate::DEADLINE, "the trial is settled", || {
        daemon.client.get(&trial).expect(200).json()["state"] == "settled"
    });
    let paths = description["paths"].as_object_mut().expect("paths");
    for (path, operations) in paths {
        let id = if path.contains("/trials") { &executor } else { &of_job };
        for (method, operation) in operations.as_object_mut().expect("operations") {
            let id = if method == "delete" { &to_delete } else { id };
            let parameters = operation["parameters"].as_array_mut().into_iter().flatten();
            for parameter in parameters {
                let known = match parameter["name"].as_str().expect("a name") {
                    "id" => json!(id),
                    "item" if path.contains("/trials") => started["item"].clone(),
                    "item" => json!("oracle"),
                    _ => continue,
                };
                parameter["schema"] = json!({ "type": "string", "enum": [known] });
            }
        }
    }
    let path = project.path().join("openapi.json");
    fs::write(&path, description.to_string()).expect("written");
    path.display().to_string()
}

#[test]
fn generated_requests_get_no_answer_that_the_description_does_not_have() {
    let Some(interpreter) = python::with_schemathesis() else { return };
    let project = project().tasks(["slow/second"], &[]);
    let users = [("ada", "submit", "ada-token")];
    let project = project.write("tokens.toml", &crate::tokens::tokens(&users));
    let options = ["--tokens", "tokens.toml", "--max-running", "4", "--max-queued", "100000"];
    let mut daemon = DaemonProcess::start(&project, &options);
    daemon.client = daemon.client.with_token("ada-token");
    let description = description(&project, &daemon);
    let examples = std::env::var("ROLLOUT_TEST_SCHEMATHESIS_EXAMPLES");
    let examples = examples.unwrap_or_else(|_| EXAMPLES.to_owned());
    let url = daemon.url();
    let project = project.write("schemathesis.toml", CONFIG);
    let mut command = project.command_of(&interpreter, &["-m", "schemathesis.cli"]);
    command.args([
        "--config-file",
        "schemathesis.toml",
        "run",
        &description,
        "--url",
        &url,
        "--checks",
        "all",
    ]);
    command.args(["--header", "authorization: Bearer ada-token"]);
    command.args(["--max-examples", &examples, "--seed", SEED, "--continue-on-failure"]);
    // Streams last as long as their run.
    command.args(["--request-timeout", "10", "--suppress-health-check", "all"]);
    let ended = project.start(command).wait(DEADLINE);
    let _open = daemon.client.get("/healthz").expect(200);
    let _passed = ended.expect_code(ExitCode::Success);
    daemon.stop();
}
