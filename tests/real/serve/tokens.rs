//! Users by bearer tokens.

use std::os::unix::fs::PermissionsExt as _;

use rollout_protocol::digest::Digest;
use rollout_protocol::exit::ExitCode;
use rollout_tests::http::HttpClient;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::serve::{DaemonProcess, client_variables, project, submission, submitted};

/// Entries of a file of tokens: name, role, token.
pub(crate) fn tokens(entries: &[(&str, &str, &str)]) -> String {
    let entry = |(name, role, token): &(&str, &str, &str)| {
        let sha256 = Digest::sha256(token.as_bytes()).hex();
        format!("[[tokens]]\nname = '{name}'\nrole = '{role}'\nsha256 = '{sha256}'\n")
    };
    entries.iter().map(entry).collect()
}

/// Options of a daemon with users and roles, which starts no run.
pub(crate) const WITH_USERS: [&str; 4] = ["--tokens", "tokens.toml", "--max-running", "0"];

/// Such a daemon.
pub(crate) fn with_users() -> (Project, DaemonProcess) {
    let users = [
        ("ada", "submit", "ada-token"),
        ("ada", "read", "ada-reads"),
        ("bob", "submit", "bob-token"),
        ("root", "admin", "root-token"),
    ];
    let project = project().tasks(["slow/second"], &[]).write("tokens.toml", &tokens(&users));
    let daemon = DaemonProcess::start(&project, &WITH_USERS);
    (project, daemon)
}

#[test]
fn users_see_and_control_their_own_runs_only() {
    let (project, daemon) = with_users();
    let user = |token: &str| daemon.client.with_token(token);
    let (ada, bob, root) = (user("ada-token"), user("bob-token"), user("root-token"));
    let of_ada = submitted(&ada, &submission(&project, 1));
    let of_bob = submitted(&bob, &submission(&project, 1));
    let ids = |list: Value| -> Vec<String> {
        let runs = list["runs"].as_array().expect("runs");
        runs.iter().map(|run| run["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(ids(ada.get("/v1/runs").json()), std::slice::from_ref(&of_ada));
    assert_eq!(ids(ada.get("/v1/runs?user=bob").json()), [""; 0]);
    assert_eq!(ids(root.get("/v1/runs").json()), [&*of_bob, &*of_ada]);
    let path = format!("/v1/runs/{of_bob}");
    let _hidden = ada.get(&path).expect(404);
    let _hidden = ada.post(&format!("{path}/cancel"), &[], &Value::Null).expect(404);
    let _hidden = ada.send("DELETE", &path, &[], b"").expect("an answer").expect(404);
    let _shown = root.get(&path).expect(200);

    let reader = user("ada-reads");
    let _shown = reader.get(&format!("/v1/runs/{of_ada}")).expect(200);
    let refused = reader.post("/v1/runs", &[], &submission(&project, 1)).expect(403);
    assert_eq!(refused.json()["type"], json!("urn:rollout:problem:forbidden"));
    let _refused = reader.post(&format!("/v1/runs/{of_ada}/cancel"), &[], &Value::Null).expect(403);
    // Keys of different users are different keys.
    let key = [("idempotency-key", "same")];
    let first = ada.post("/v1/runs", &key, &submission(&project, 1)).expect(201).json();
    let second = bob.post("/v1/runs", &key, &submission(&project, 2)).expect(201).json();
    assert_ne!(first["id"], second["id"]);
}

#[test]
fn requests_without_a_valid_token_are_refused() {
    let (project, daemon) = with_users();
    for client in [daemon.client.clone(), daemon.client.with_token("wrong")] {
        for path in ["/v1/runs", "/v1/runs/x", "/metrics", "/v1/openapi.json", "/nowhere"] {
            let refused = client.get(path).expect(401);
            assert_eq!(refused.header("www-authenticate"), Some("Bearer"), "{path}");
        }
        let _refused = client.post("/v1/runs", &[], &submission(&project, 1)).expect(401);
        let _open = client.get("/healthz").expect(200);
    }
    let basic = [("authorization", "Basic cm9vdC10b2tlbg==")];
    let refused = daemon.client.send("GET", "/v1/runs", &basic, b"").expect("an answer");
    let _refused = refused.expect(401);
}

#[test]
fn changed_tokens_count_without_a_restart() {
    let (project, daemon) = with_users();
    let carol = daemon.client.with_token("carol-token");
    let _unknown = carol.get("/v1/runs").expect(401);
    project.write_file("tokens.toml", &tokens(&[("carol", "read", "carol-token")]));
    wait::until(wait::LONG_DEADLINE, "the new token is known", || {
        carol.get("/v1/runs").status == 200
    });
    let _removed = daemon.client.with_token("ada-token").get("/v1/runs").expect(401);
}

/// Asserts that a server without a file of users has made a token, which its file for shells has and
/// no other user of this host can read. Returns the token.
pub(crate) fn assert_own_token(
    project: &Project,
    daemon: &DaemonProcess,
    directory: &str,
) -> String {
    let directory = project.path().join(directory);
    for name in ["client.env", "token", "user.toml"] {
        let mode = std::fs::metadata(directory.join(name)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let users = std::fs::read_to_string(directory.join("user.toml")).expect("a file");
    let variables = client_variables(project, &daemon.process.stdout()).expect("a file");
    let token = variables["ROLLOUT_API_TOKEN"].clone();
    assert!(!users.contains(&token));
    assert!(variables["ROLLOUT_API_URL"].ends_with(&format!(":{}", daemon.port())));
    let _shown = daemon.client.with_token(&token).get("/v1/runs").expect(200);
    let stranger = HttpClient::new(daemon.port());
    for header in [("host", "localhost"), ("origin", "https://evil.example")] {
        let refused = stranger.send("GET", "/v1/runs", &[header], b"").expect("an answer");
        assert!(matches!(refused.status, 400 | 401), "{header:?}: {}", refused.text());
    }
    token
}

#[test]
fn server_without_users_makes_a_token_that_stays() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = DaemonProcess::start(&project, &["--variable", "PATH"]);
    let token = assert_own_token(&project, &daemon, "state");
    let mut job = submission(&project, 1);
    job["document"]["task_env"] = json!(["PATH", "HOME"]);
    let refused = daemon.client.post("/v1/runs", &[], &job).expect(422).text();
    assert!(refused.contains("${HOME}") && !refused.contains("${PATH}"), "{refused}");
    let id = submitted(&daemon.client, &submission(&project, 1));
    daemon.stop();
    // The directory may hold a file of users of the operator.
    project.write_file("state/tokens.toml", &tokens(&[("ada", "admin", "ada-token")]));
    let daemon = DaemonProcess::start(&project, &["--tokens", "state/tokens.toml"]);
    let _unknown = daemon.client.with_token(&token).get("/v1/runs").expect(401);
    let _shown = daemon.client.with_token("ada-token").get(&format!("/v1/runs/{id}")).expect(200);
    daemon.stop();
    let daemon = DaemonProcess::start(&project, &[]);
    assert_eq!(assert_own_token(&project, &daemon, "state"), token);
    daemon.stop();
}

#[test]
fn document_with_a_file_of_the_server_is_refused_without_its_content() {
    let (project, daemon) = with_users();
    let ada = daemon.client.with_token("ada-token");
    for key in ["prices", "agents_dir", "extra_instruction_paths"] {
        let mut document = submission(&project, 1)["document"].clone();
        let path = "/proc/self/environ";
        document[key] = if key.ends_with("paths") { json!([path]) } else { json!(path) };
        let requests = [
            ("/v1/runs", json!({ "document": document })),
            ("/v1/runs", json!({ "kind": "executor", "document": document })),
            ("/v1/farms", json!({ "name": "farm", "document": document })),
        ];
        for (address, request) in requests {
            let answer = ada.post(address, &[], &request).expect(422);
            let problem = answer.text();
            assert!(problem.contains(&format!("{key}: a server reads no file")), "{problem}");
            for content in ["PATH=", "HOME="] {
                assert!(!problem.contains(content), "{address}: {problem}");
            }
        }
    }
}

#[test]
fn document_uses_nothing_that_the_operator_does_not_list() {
    let (project, daemon) = with_users();
    let ada = daemon.client.with_token("ada-token");
    let mut job = submission(&project, 1);
    job["document"]["datasets"] = json!([{ "path": "/etc" }]);
    job["document"]["jobs_dir"] = json!("/srv");
    job["document"]["environment"]["provider_config"] = json!({ "network": "none" });
    job["document"]["task_env"] = json!(["PATH"]);
    let problem = ada.post("/v1/runs", &[], &job).expect(422).json();
    let details = problem["details"].to_string();
    for part in ["path /etc", "jobs_dir", "provider_config", "${PATH}"] {
        assert!(details.contains(part), "{part}: {problem:#}");
    }
    let files = std::fs::read_dir(project.path().join("state/runs")).expect("a directory");
    assert_eq!(files.count(), 0);
}

#[test]
fn tokens_in_a_device_a_pipe_or_a_directory_are_refused_before_they_are_read() {
    let project = project();
    let pipe = project.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    for (file, said) in [
        ("/dev/zero", "cannot use the tokens in /dev/zero: it is no regular file"),
        ("pipe", "cannot use the tokens in pipe: it is no regular file"),
        ("home", "cannot read the tokens in home"),
    ] {
        let words = ["serve", "--dir", "state", "--listen", "127.0.0.1:0", "--tokens", file];
        let refused = project.rollout(&words).wait(wait::LONG_DEADLINE);
        let _said = refused.expect_code(ExitCode::Config).expect_stderr(said);
    }
}
