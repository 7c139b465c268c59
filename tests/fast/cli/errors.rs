//! Errors of daily use: what is printed, and the exit code.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use rollout_protocol::exit::ExitCode;
use rollout_tests::net;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::cli::{DEADLINE, assert_printed, normalized, project};

/// A project with a job of one passing task in a sandbox.
fn passing() -> Project {
    project().tasks(["faults/passes"], &[]).job("faults.yaml", &[("PROVIDER", "process")])
}

/// A project with a job of several tasks that take a while.
fn slow() -> Project {
    let values = [("PROVIDER", "process"), ("ATTEMPTS", "12")];
    project().tasks(["slow/second"], &[]).job("slow.yaml", &values)
}

/// Compares the errors of an ended program with the snapshot.
#[track_caller]
fn assert_error(project: &Project, name: &str, exit: ProgramExit, code: ExitCode) {
    let exit = exit.expect_code(code);
    let text = format!("exit code {}\n{}", code.code(), normalized(project, &exit.stderr));
    assert_printed(&format!("error_{name}"), &text);
}

#[test]
fn docker_engine_missing_is_explained() {
    let project = project().tasks(["faults/passes"], &[]);
    let project = project.job("faults.yaml", &[("PROVIDER", "docker")]);
    let mut command = project.command(&["run", "job.yaml"]);
    let _set = command.env("DOCKER_HOST", "unix:///no/such/engine.sock");
    let exit = project.start(command).wait(DEADLINE);
    assert_error(&project, "no_docker", exit, ExitCode::Config);
}

#[test]
fn docker_address_unsupported_is_explained() {
    let project = project().tasks(["faults/passes"], &[]);
    let project = project.job("faults.yaml", &[("PROVIDER", "docker")]);
    let mut command = project.command(&["run", "job.yaml"]);
    let _set = command.env("DOCKER_HOST", "ssh://engine.example");
    let exit = project.start(command).wait(DEADLINE);
    assert_error(&project, "docker_address", exit, ExitCode::Config);
}

#[test]
fn errors_name_no_login_of_an_address_among_the_words() {
    let project = project();
    for words in [
        &["run", "http://me:secret-word@h.invalid/job.yaml"][..],
        &["run", "job.yaml", "https://me:secret-word@h.invalid/x"],
        &["run", "--repo", "https:me:secret-word@h.invalid/r", "-a", "nop"],
        &["run", "--registry=https:me:secret-word@h.invalid/r.json", "-d", "some", "-a", "nop"],
        &["resume", "https:/me:secret-word@h.invalid/v1/runs/r"],
        &["status", "http://me:secret-word@h.invalid/x"],
        &["list", "http://me:secret-word@127.0.0.1:1"],
        &["check", "http://me:secret-word@h.invalid/x"],
    ] {
        let exit = project.rollout(words).wait(DEADLINE);
        let printed = format!("{}{}", exit.stdout, exit.stderr);
        assert!(!printed.contains("secret-word"), "{words:?}: {printed}");
        assert!(
            printed.contains("invalid") || printed.contains("127.0.0.1"),
            "{words:?}: {printed}"
        );
    }
}

#[test]
fn nats_server_missing_is_explained() {
    let project = project();
    let server = format!("nats://127.0.0.1:{}", net::free_port());
    let exit = project.rollout(&["workers", "--nats", &server]).wait(DEADLINE);
    assert_error(&project, "no_server", exit, ExitCode::OutOfReach);
}

#[test]
fn monitoring_address_in_use_is_explained() {
    let project = passing();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let exit = project.rollout(&["run", "job.yaml", "--listen", &address]).wait(DEADLINE);
    assert!(!project.results("faults").path().exists(), "nothing was started");
    assert_error(&project, "address_in_use", exit, ExitCode::Config);
}

#[test]
fn job_key_unknown_is_explained() {
    let project = passing();
    let path = project.path().join("job.yaml");
    let job = fs::read_to_string(&path).expect("a job");
    let project = project.write("job.yaml", &format!("{job}\nn_concurent_trials: 4\n"));
    let exit = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    assert_error(&project, "wrong_key", exit, ExitCode::Config);
}

#[test]
fn second_owner_is_explained() {
    let project = slow();
    let results = project.results("slow");
    let mut first = project.rollout(&["run", "job.yaml"]);
    wait::until(DEADLINE, "a result", || !results.trials().is_empty());
    let exit = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    assert_error(&project, "second_owner", exit, ExitCode::LockHeld);
    for _ in 0..2 {
        first.signal(Signal::INT);
    }
    let _ended = first.wait(DEADLINE).expect_code(ExitCode::Cancelled);
}

#[test]
fn other_plan_is_explained() {
    let project = passing();
    let _done = project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let path = project.path().join("job.yaml");
    let job = fs::read_to_string(&path)
        .expect("a job")
        .replace("execute: |\n", "execute: |\n      true\n");
    let project = project.write("job.yaml", &job);
    let exit = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    assert_error(&project, "other_plan", exit, ExitCode::PlanMismatch);
}

#[test]
fn registry_unreachable_is_explained() {
    let project = project();
    let registry = format!("http://127.0.0.1:{}/registry.json", net::free_port());
    let arguments = ["run", "-d", "tasks@1.0", "--registry", &registry, "-a", "oracle"];
    let exit = project.rollout(&arguments).wait(DEADLINE);
    assert_error(&project, "bad_registry", exit, ExitCode::Config);
}

#[test]
fn run_directory_damaged_is_explained() {
    let project = passing();
    let _done = project.rollout(&["run", "job.yaml"]).wait(DEADLINE).expect_code(ExitCode::Success);
    let results = project.results("faults");
    let journal = results.path().join("journal/000001.log");
    let mut bytes = fs::read(&journal).expect("a journal");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&journal, bytes).expect("writable");
    let exit = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    assert_error(&project, "damaged", exit, ExitCode::RunDamaged);
}

#[test]
fn task_file_missing_is_explained() {
    let project = project();
    let exit = project.rollout(&["run", "-p", "tasks", "-a", "oracle"]).wait(DEADLINE);
    assert_error(&project, "no_tasks", exit, ExitCode::Config);
}
