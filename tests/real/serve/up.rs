//! `rollout up`: a server of one user.

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;

use crate::serve::tokens::assert_own_token;
use crate::serve::{DEADLINE, DaemonProcess, project, submission, submitted};

fn start(project: &Project) -> DaemonProcess {
    let process = project.rollout(&["up", "--dir", "up", "--listen", "127.0.0.1:0"]);
    DaemonProcess::started(project, process)
}

#[test]
fn up_runs_jobs_of_its_user_and_keeps_its_token() {
    let project = project().tasks(["slow/second"], &[]);
    let daemon = start(&project);
    let token = assert_own_token(&project, &daemon, "up");
    let users = std::fs::read_to_string(project.path().join("up/user.toml")).expect("a file");

    let second = project.rollout(&["up", "--dir", "up", "--variable", "KEY"]).wait(DEADLINE);
    let _refused = second.expect_code(ExitCode::LockHeld);
    let after = std::fs::read_to_string(project.path().join("up/user.toml")).expect("a file");
    assert_eq!(users, after, "a second server that is refused changes no file of the first one");

    let id = submitted(&daemon.client, &submission(&project, 1));
    let run = daemon.wait_for(&id, &["completed", "failed"]);
    assert_eq!(run["state"], "completed", "{run:#}");
    daemon.stop();

    let daemon = start(&project);
    let _shown = daemon.client.with_token(&token).get(&format!("/v1/runs/{id}")).expect(200);
    daemon.stop();
}
