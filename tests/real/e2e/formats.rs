//! Tasks of both formats, which together use every key, with the oracle agent.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::{self, DockerEngine};
use rollout_tests::formats::FormatTable;
use rollout_tests::ignored::or_ignored_part;
use rollout_tests::kube::{ImageFixture, KubeDouble};
use rollout_tests::project::{copy, fixtures};

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

#[test]
fn task_formats_match_table_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    let compose = or_ignored_part(docker::find_compose_program(), "tasks with services");
    let except: &[&str] = if compose.is_some() { &[] } else { &["compose"] };
    assert_formats("docker", except);
}

#[test]
fn task_formats_match_table_in_sandbox() {
    assert_formats("process", &[]);
}

fn assert_formats(provider: &str, except: &[&str]) {
    let formats = FormatTable::read();
    let project = project();
    formats.write_job(&project, provider, except);
    let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let results = project.results("formats");
    let (count, differences) = formats.differences(&results, provider, except);
    assert!(differences.is_empty(), "{differences:#?}\n{}", ended.stderr);
    assert_adds_up(&results, count as u64);
    assert_nothing_left(&project);
}

#[test]
fn task_with_services_in_pods_has_the_result_of_docker() {
    let double = KubeDouble::start();
    double.image("debian:bookworm-slim", ImageFixture::new());
    let project = project();
    let task = project.path().join("tasks/compose");
    copy(&fixtures().join("formats/harbor/compose"), &task, &[]);
    // An image by reference: the double has no builder.
    let file = task.join("task.toml");
    let text = fs::read_to_string(&file).expect("a task");
    let named = "[environment]\ndocker_image = \"debian:bookworm-slim\"\n";
    fs::write(&file, text.replace("[environment]\n", named)).expect("written");
    let words = ["run", "-p", "tasks", "-a", "oracle", "--name", "j", "-e", "kubernetes"];
    let mut command = project.command(&words);
    command.env("KUBECONFIG", double.kubeconfig());
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let results = project.results("j");
    let trial = results.trial("oracle", "compose");
    assert_eq!(trial.reward(), Some(1.0), "{:#}\n{}", trial.result, ended.stderr);
    assert_eq!(trial.result["secondary_errors"], serde_json::json!([]), "its hook ran");
    assert_eq!(double.pods(), Vec::<serde_json::Value>::new());

    // A key that a pod does not have settles the task before anything starts.
    let compose = task.join("environment/docker-compose.yaml");
    let text = fs::read_to_string(&compose).expect("a compose file");
    let privileged = text.replace("    init: true\n", "    privileged: true\n");
    fs::write(&compose, privileged).expect("written");
    let asked = double.requests().len();
    let words = ["run", "-p", "tasks", "-a", "oracle", "--name", "k", "-e", "kubernetes"];
    let mut command = project.command(&words);
    command.env("KUBECONFIG", double.kubeconfig());
    let _ended = project.start(command).wait(DEADLINE);
    let results = project.results("k");
    let trial = results.trial("oracle", "compose");
    assert_eq!(trial.result["error"]["code"], "unsupported_by_environment");
    assert!(trial.message().contains("services.store.privileged"), "{}", trial.message());
    let created = double.requests().into_iter().skip(asked).any(|asked| asked.verb == "create");
    assert!(!created, "something was started");
}
