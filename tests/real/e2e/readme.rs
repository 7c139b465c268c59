//! The shell commands of the README: every one is executed, and an unknown one fails the test.

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::ignored::or_ignored_part;
use rollout_tests::project::repository;
use rollout_tests::{nats, net};

use crate::e2e::examples::with_examples;
use crate::e2e::{DEADLINE, assert_nothing_left};

/// The lines of the README's shell blocks, without comments.
fn commands() -> Vec<String> {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("the README");
    let mut commands = Vec::new();
    let mut inside = false;
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line == "```shell";
        } else if inside {
            let command = line.split('#').next().unwrap_or_default().trim();
            commands.extend((!command.is_empty()).then(|| command.to_owned()));
        }
    }
    commands
}

#[test]
fn readme_commands_do_what_it_says() {
    let commands = commands();
    assert!(commands.len() >= 3, "{commands:?}");
    for command in commands {
        if command == "tests/run" {
            // This test is part of it.
            assert!(repository().join("tests/run").exists());
            continue;
        }
        if command == "examples/nats/run" {
            over_nats();
            continue;
        }
        if command == "examples/agents/run" {
            with_model();
            continue;
        }
        let words: Vec<&str> = command.split_whitespace().collect();
        let Some(arguments) = words.strip_prefix(&["cargo", "run", "--release", "--"]) else {
            panic!("`{command}` of the README is executed by no test");
        };
        // Tasks in Harbor's format run in containers.
        let uses_docker = command.contains("docker") || command.contains("harbor");
        if uses_docker && or_ignored_part(DockerEngine::connect(), &command).is_none() {
            continue;
        }
        let project = with_examples();
        let _ended = project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Success);
        assert_nothing_left(&project);
    }
}

/// Runs the NATS example.
fn over_nats() {
    let part = "examples/nats/run";
    let Some(_engine) = or_ignored_part(DockerEngine::connect(), part) else { return };
    let Some(servers) = or_ignored_part(nats::find_programs(), part) else { return };
    let project = with_examples();
    let example = repository().join("examples/nats/run");
    let mut command = project.script(&example, &[]);
    command.env("NATS_SERVER", &servers[0]).env("NATS_PORT", net::free_port().to_string());
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(project.results("docker").count("completed_trials"), 4, "{}", ended.stderr);
    assert_nothing_left(&project);
}

/// Runs the agent `shell` with the stand-in for a model, offline.
fn with_model() {
    let part = "examples/agents/run";
    let Some(_engine) = or_ignored_part(DockerEngine::connect(), part) else { return };
    let project = with_examples();
    let example = repository().join("examples/agents/run");
    let command = project.script(&example, &["--name", "agents"]);
    let _ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let results = project.results("agents");
    for task in ["sealed", "word-count"] {
        let trial = results.trial("shell", task);
        assert_eq!(trial.reward(), Some(1.0), "{task}");
        let gateway = &trial.result["gateway"];
        assert_eq!((&gateway["calls"], &gateway["usage"]["input"]), (&2.into(), &200.into()));
    }
    assert_nothing_left(&project);
}

/// The tests run the program they were built with; `cargo run` must start the same one.
#[test]
fn cargo_run_starts_rollout() {
    let metadata = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(repository())
        .output()
        .expect("cargo answers");
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata.stdout).expect("cargo writes JSON");
    let default = metadata["workspace_default_members"].as_array().expect("a list");
    let packages = metadata["packages"].as_array().expect("a list");
    let programs: Vec<_> = packages
        .iter()
        .filter(|package| default.contains(&package["id"]))
        .flat_map(|package| package["targets"].as_array().expect("a list"))
        .filter(|target| target["kind"][0] == "bin")
        .map(|target| target["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(programs, ["rollout"]);
}
