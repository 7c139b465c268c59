//! Generated requests, valid and not, against the description of the API: no answer is a failure of
//! the server, and none is one that the description does not have.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::http::HttpClient;
use rollout_tests::project::{Project, repository};
use rollout_tests::{python, wait};
use serde_json::{Value, json};

use crate::serve::farms::{completions, farm_request, opened};
use crate::serve::{DaemonProcess, project, submission, submitted};

/// Longest duration on a busy machine with two processors.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Requests for each operation and phase, unless `ROLLOUT_TEST_SCHEMATHESIS_EXAMPLES` says otherwise.
const EXAMPLES: &str = "200";

/// The seed of the requests: a failure can be repeated.
const SEED: &str = "1";

/// The user, and statuses of requests that the schema accepts: documents, states and limits may
/// refuse them.
const CONFIG: &str = "[auth.openapi.token]\nbearer = 'ada-token'\n[checks.positive_data_acceptance]\nexpected-statuses = \
    ['2xx', '401', '403', '404', '409', '422', '429', '503']\n";

/// Runs and farms of a user.
struct Belongings {
    run: String,
    run_to_delete: String,
    executor: String,
    /// The item of a trial that the executor has started.
    item: String,
    farm: String,
    farm_to_delete: String,
}

impl Belongings {
    /// The things that this client makes for its user.
    fn new(project: &Project, client: &HttpClient) -> Self {
        let run = || {
            let id = submitted(client, &submission(project, 1));
            wait_for(client, &format!("/v1/runs/{id}"), "completed");
            id
        };
        let mut executor = submission(project, 2);
        executor["kind"] = json!("executor");
        let executor = submitted(client, &executor);
        wait_for(client, &format!("/v1/runs/{executor}"), "running");
        let path = format!("/v1/runs/{executor}/trials");
        let trial = &client.get(&path).expect(200).json()["trials"][0];
        let start = json!({ "trial": trial["trial"], "spec": trial["spec"] });
        let started = client.post(&path, &[], &start).expect(201).json();
        let item = started["item"].as_str().expect("an item").to_owned();
        wait_for(client, &format!("{path}/{item}"), "settled");
        let farm = || {
            let path = opened(client, &farm_request(project, "echo done >answer.txt"));
            let group = json!({ "group": "g", "task": { "named": "tasks/second" }, "n": 2 });
            let _admitted = client.post(&format!("{path}/groups"), &[], &group).expect(201);
            completions(client, &path, 2);
            path.rsplit('/').next().expect("an id").to_owned()
        };
        Self {
            run: run(),
            run_to_delete: run(),
            executor,
            item,
            farm: farm(),
            farm_to_delete: farm(),
        }
    }

    /// The value of a parameter of an operation, if something of this user is meant.
    fn value(&self, method: &str, path: &str, parameter: &str) -> Option<&str> {
        let is_farm = path.contains("/farms/");
        match parameter {
            "id" if is_farm && method == "delete" => Some(&self.farm_to_delete),
            "id" if is_farm => Some(&self.farm),
            "id" if path.contains("/trials") => Some(&self.executor),
            "id" if method == "delete" => Some(&self.run_to_delete),
            "id" => Some(&self.run),
            "item" if path.contains("/trials") => Some(&self.item),
            "item" => Some("oracle"),
            "group" => Some("g"),
            _ => None,
        }
    }

    /// The documents of the runs and farms.
    fn documents(&self, client: &HttpClient) -> Vec<Value> {
        let runs = [&self.run, &self.run_to_delete, &self.executor].map(|id| format!("runs/{id}"));
        let farms = [&self.farm, &self.farm_to_delete].map(|id| format!("farms/{id}"));
        let paths = runs.iter().chain(&farms);
        paths.map(|path| client.get(&format!("/v1/{path}")).expect(200).json()).collect()
    }
}

#[track_caller]
fn wait_for(client: &HttpClient, path: &str, state: &str) {
    wait::until(crate::serve::DEADLINE, state, || {
        client.get(path).expect(200).json()["state"] == state
    });
}

/// Writes the description with ids that exist, for requests that reach more than a 404, and returns
/// its path.
fn description(project: &Project, users: &[&Belongings]) -> String {
    let text = fs::read_to_string(repository().join("docs/openapi.json")).expect("a description");
    let mut description: Value = serde_json::from_str(&text).expect("JSON");
    for (path, operations) in description["paths"].as_object_mut().expect("paths") {
        for (method, operation) in operations.as_object_mut().expect("operations") {
            for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
                let name = parameter["name"].as_str().expect("a name");
                let known = |user: &&Belongings| user.value(method, path, name).map(str::to_owned);
                let known: BTreeSet<String> = users.iter().filter_map(known).collect();
                if !known.is_empty() {
                    parameter["schema"] = json!({ "type": "string", "enum": known });
                }
            }
        }
    }
    let path = project.path().join("openapi.json");
    fs::write(&path, description.to_string()).expect("written");
    path.display().to_string()
}

#[test]
fn generated_requests_get_described_answers_and_touch_nothing_of_other_users() {
    let Some(interpreter) = python::with_schemathesis() else { return };
    let project = project().tasks(["slow/second"], &[]);
    let users = [("ada", "submit", "ada-token"), ("bob", "submit", "bob-token")];
    let project = project.write("tokens.toml", &crate::serve::tokens::tokens(&users));
    let options = ["--tokens", "tokens.toml", "--max-running", "4", "--max-queued", "60000"];
    let mut daemon = DaemonProcess::start(&project, &options);
    let bob = daemon.client.with_token("bob-token");
    daemon.client = daemon.client.with_token("ada-token");
    let of_bob = Belongings::new(&project, &bob);
    let description = description(&project, &[&Belongings::new(&project, &daemon.client), &of_bob]);
    let before = of_bob.documents(&bob);
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
    command.args(["--max-examples", &examples, "--seed", SEED, "--continue-on-failure"]);
    // Streams last as long as their run.
    command.args(["--request-timeout", "10", "--suppress-health-check", "all"]);
    let ended = project.start(command).wait(DEADLINE);
    let _open = daemon.client.get("/healthz").expect(200);
    let _passed = ended.expect_code(ExitCode::Success);
    assert_eq!(of_bob.documents(&bob), before);
    daemon.stop();
}
