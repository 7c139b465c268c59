//! Trials in pods of the double of a Kubernetes cluster, by several workers.

use std::collections::BTreeMap;
use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::docker::DockerEngine;
use rollout_tests::kube::{ImageFixture, KubeDouble};
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::project::{copy, repository};
use rollout_tests::results::Results;
use rollout_tests::wait;
use serde_json::json;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

/// A worker whose trials are pods.
fn worker(cluster: &Cluster, double: &KubeDouble, name: &str, slots: u32) -> ClusterMember {
    let kubeconfig = double.kubeconfig().to_str().expect("a plain path");
    cluster
        .worker(name, slots)
        .with_option("--provider", "kubernetes")
        .with_variable("KUBECONFIG", kubeconfig)
}

/// The load in pods of an image that the double gets.
fn in_pods(load: Load, double: &KubeDouble) -> Load {
    const IMAGE: &str = "registry.test/load:1";
    double.image(IMAGE, ImageFixture::new());
    Load { provider: "kubernetes".to_owned(), image: Some(IMAGE.to_owned()), ..load }
}

/// Rewards by agent and task.
fn rewards(results: &Results) -> BTreeMap<(String, String), Option<f64>> {
    let trials = results.trials().into_iter();
    let text = |value: &serde_json::Value| value.as_str().expect("a name").to_owned();
    let name = |trial: &serde_json::Value| (text(&trial["agent_name"]), text(&trial["task_name"]));
    trials.map(|trial| (name(&trial.result), trial.reward())).collect()
}

#[test]
fn example_in_pods_has_the_results_of_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    let Some(cluster) = cluster() else { return };
    let examples = cluster.project.path().join("examples");
    copy(&repository().join("examples"), &examples, &[]);
    let run = ["run", "examples/docker/job.yaml", "--jobs-dir", "embedded"];
    let _ended = cluster.project.rollout(&run).wait(DEADLINE).expect_code(ExitCode::Success);

    let double = KubeDouble::start();
    let numbers: String = (1..=1000).step_by(3).map(|number| format!("{number}\n")).collect();
    for (task, files) in [("greeting", None), ("prime-sum", Some(numbers))] {
        // Images by reference: the double has no builder.
        let image = format!("registry.test/{task}:1");
        let file = examples.join("docker/tasks").join(task).join("task.toml");
        let text = fs::read_to_string(&file).expect("a task");
        let named = format!("[environment]\ndocker_image = \"{image}\"\n");
        fs::write(&file, text.replace("[environment]\n", &named)).expect("a file");
        let content = files.iter().fold(ImageFixture::new(), |fixture, numbers| {
            fixture.file("/app/numbers.txt", numbers.as_bytes(), 0o644)
        });
        double.image(&image, content);
    }
    let workers = ["a", "b"].map(|name| worker(&cluster, &double, name, 1).started());
    let mut coordinator = cluster.coordinator("examples/kubernetes/job.yaml").started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    let pods = cluster.project.results("kubernetes");
    let docker = Results::new(cluster.project.path().join("embedded/docker"));
    assert_eq!(rewards(&pods), rewards(&docker));
    assert_eq!(rewards(&pods).len(), 4);
    assert_eq!(pods.job()["metrics"], docker.job()["metrics"]);
    assert_eq!(double.pods(), Vec::<serde_json::Value>::new());
    assert_no_leaks(&cluster, &["kubernetes"], workers);
}

#[test]
fn pods_of_killed_worker_are_removed_and_trials_run_elsewhere() {
    let Some(cluster) = cluster() else { return };
    let (double, counter) = (KubeDouble::start(), LiveCounter::start());
    let load = in_pods(Load::new("pods", 8, (6.0, 8.0)), &double);
    load.write(&cluster.project, &counter);
    let [mut dead, other] = ["a", "b"].map(|name| worker(&cluster, &double, name, 3).started());
    let mut coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "six agents", || counter.running() == 6);
    dead.kill();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    assert_eq!(counter.repeated(), 3, "those of the killed worker: {:?}", counter.observed());
    wait::until(DEADLINE, "the end of all pods", || double.pods().is_empty());
    // It removes the files of the killed one.
    let next = worker(&cluster, &double, "c", 1).started();
    let cleaned = || next.own_dir().is_some() && cluster.host_files().len() == 2;
    wait::until(DEADLINE, "the cleanup", cleaned);
    assert_no_leaks(&cluster, &["pods"], [other, next]);
}

/// Writes an operator's file for the cluster of a double; returns its path.
fn options_file(cluster: &Cluster, double: &KubeDouble) -> String {
    let file = cluster.project.path().join("kubernetes.yaml");
    let text = format!("kubeconfig: {}\n", double.kubeconfig().display());
    fs::write(&file, text).expect("a file");
    file.to_str().expect("a plain path").to_owned()
}

#[test]
fn pods_of_deleted_worker_pod_are_removed_by_cluster() {
    let Some(cluster) = cluster() else { return };
    let (double, counter) = (KubeDouble::start(), LiveCounter::start());
    let load = in_pods(Load::new("owned", 2, (30.0, 31.0)), &double);
    load.write(&cluster.project, &counter);
    let own_pod = json!({"metadata": {"name": "worker-a", "namespace": "default"}});
    double.create("pods", "default", own_pod).expect("created");
    let uid = double.pods()[0]["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let mut worker = cluster
        .worker("a", 2)
        .with_option("--provider", "kubernetes")
        .with_option("--kubernetes-config", &options_file(&cluster, &double))
        .with_variable("ROLLOUT_POD_NAME", "worker-a")
        .with_variable("ROLLOUT_POD_UID", &uid)
        .with_variable("ROLLOUT_POD_NAMESPACE", "default")
        .started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    let trials = double.pods().into_iter().filter(|pod| pod["metadata"]["name"] != "worker-a");
    let owners: Vec<_> = trials.map(|pod| pod["metadata"]["ownerReferences"].clone()).collect();
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "worker-a", "uid": uid}]);
    assert_eq!(owners, [owner.clone(), owner]);
    // No other process removes anything.
    worker.kill();
    coordinator.kill();
    assert_eq!(double.pods().len(), 3);
    double.faults().delete_pod("default", "worker-a");
    wait::until(DEADLINE, "the end of all pods", || double.pods().is_empty());
}

#[test]
fn coordinator_in_a_pod_warns_of_no_engine_that_it_does_not_use() {
    let Some(cluster) = cluster() else { return };
    let (double, counter) = (KubeDouble::start(), LiveCounter::start());
    let load = in_pods(Load::new("quiet", 2, (0.1, 0.2)), &double);
    load.write(&cluster.project, &counter);
    let worker = worker(&cluster, &double, "a", 2).started();
    // As in the chart: the address of the API and no token, and no socket of an engine.
    let mut coordinator = cluster
        .coordinator(&load.file())
        .with_variable("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .with_variable("KUBERNETES_SERVICE_PORT", "1")
        .with_variable("DOCKER_HOST", "unix:///nowhere/docker.sock")
        .started();
    let ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(!ended.stderr.contains("leftovers"), "{}", ended.stderr);
    assert_no_leaks(&cluster, &["quiet"], [worker]);
}

#[test]
fn run_without_server_reads_operators_file() {
    const IMAGE: &str = "registry.test/load:1";
    let Some(cluster) = cluster() else { return };
    let double = KubeDouble::start();
    double.image(IMAGE, ImageFixture::new());
    let counter = LiveCounter::start();
    let (provider, image) = ("kubernetes".to_owned(), Some(IMAGE.to_owned()));
    let load = Load { provider, image, ..Load::new("alone", 2, (0.1, 0.2)) };
    load.write(&cluster.project, &counter);
    let run = |file: &str| {
        let arguments = ["run", &load.file(), "--kubernetes-config", file];
        cluster.project.rollout(&arguments).wait(DEADLINE)
    };
    let missing = run("/no/such/file.yaml");
    assert!(missing.stderr.contains("`/no/such/file.yaml`"), "{}", missing.stderr);
    assert!(missing.stderr.contains("--kubernetes-config"), "{}", missing.stderr);
    let _ended = run(&options_file(&cluster, &double)).expect_code(ExitCode::Success);
    assert_eq!(double.pods(), Vec::<serde_json::Value>::new());
    assert!(double.peak_pods() > 0, "its trials were pods");
}
