//! `rollout up`: a server of one user.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;

use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

fn start(project: &Project) -> DaemonProcess {
    DaemonProcess::started(project.rollout(&["up", "--dir", "up", "--listen", "127.0.0.1:0"]))
}

/// The variables that a shell gets from the file for clients.
fn exported(project: &Project) -> BTreeMap<String, String> {
    let path = project.path().join("up/client.env");
    let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let script = format!(". '{}' && env", path.display());
    let mut command = project.command_of(Path::new("/bin/sh"), &["-c", &script]);
    let output = command.output().expect("a shell");
    let text = String::from_utf8(output.stdout).expect("text");
    let variables = text.lines().filter_map(|line| line.split_once('='));
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn up_runs_jobs_of_its_user_and_keeps_its_token() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = start(&project);
    let _refused = daemon.client.get("/v1/runs").expect(401);
    let variables = exported(&project);
    let token = &variables["ROLLOUT_API_TOKEN"];
    let port = variables["ROLLOUT_API_URL"].rsplit(':').next().expect("a port");
    let _healthy = rollout_tests::http::HttpClient::new(port.parse().expect("a number"))
        .with_token(token)
        .get("/v1/runs")
        .expect(200);
    let users = std::fs::read_to_string(project.path().join("up/tokens.toml")).expect("a file");
    assert!(!users.contains(token));

    let second = project.rollout(&["up", "--dir", "up", "--variable", "KEY"]).wait(DEADLINE);
    let _refused = second.expect_code(ExitCode::LockHeld);
    let after = std::fs::read_to_string(project.path().join("up/tokens.toml")).expect("a file");
    assert_eq!(users, after, "a second server that is refused changes no file of the first one");

    let DaemonProcess { process, client } = daemon;
    let daemon = DaemonProcess { process, client: client.with_token(token) };
    let id = submitted(&daemon.client, &submission(&project, 1));
    let run = daemon.wait_for(&id, &["completed", "failed"]);
    assert_eq!(run["state"], "completed", "{run:#}");
    daemon.stop();

    let daemon = start(&project);
    let _shown = daemon.client.with_token(token).get(&format!("/v1/runs/{id}")).expect(200);
    daemon.stop();
}
