//! Clients of a double, and pods for tests.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use rollout_tests::kube::{ImageFixture, KubeDouble};
use rollout_tests::wait;
use serde_json::{Value, json};

/// A double with the image `task:1`, and a client of it.
pub(crate) async fn double() -> (KubeDouble, Client) {
    let double = KubeDouble::start();
    double.image("task:1", ImageFixture::new());
    double.image("lazy:1", ImageFixture::new().lazy());
    let kubeconfig = Kubeconfig::read_from(double.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a config");
    (double, Client::try_from(config).expect("a client"))
}

/// Pods of the namespace `default`.
pub(crate) fn pods(client: &Client) -> Api<Pod> {
    Api::default_namespaced(client.clone())
}

/// A pod whose container `main` waits for TERM.
pub(crate) fn pod(name: &str, image: &str) -> Value {
    let keep_alive = "trap 'exit 0' TERM; while :; do sleep 60 & wait $!; done";
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "test"}},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "main", "image": image, "command": ["sh", "-c", keep_alive]}],
        },
    })
}

/// Creates a pod.
pub(crate) async fn create(pods: &Api<Pod>, pod: Value) -> Result<Pod, kube::Error> {
    let pod = serde_json::from_value(pod).expect("a pod");
    pods.create(&PostParams::default(), &pod).await
}

/// Creates a pod and waits until it runs.
pub(crate) async fn run(pods: &Api<Pod>, pod: Value) {
    let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
    create(pods, pod).await.expect("created");
    wait_for(pods, &name, "/status/phase", "Running").await;
}

/// Waits until a field of a pod has a value.
pub(crate) async fn wait_for(pods: &Api<Pod>, name: &str, pointer: &str, value: &str) {
    wait::until_async(wait::LONG_DEADLINE, value, async || {
        let found = pods.get_opt(name).await.expect("an answer");
        let found = serde_json::to_value(found).expect("JSON");
        found.pointer(pointer).is_some_and(|found| found == value)
    })
    .await;
}

/// Waits until a pod is gone.
pub(crate) async fn wait_until_gone(pods: &Api<Pod>, name: &str) {
    wait::until_async(Duration::from_secs(30), "the pod is gone", async || {
        pods.get_opt(name).await.expect("an answer").is_none()
    })
    .await;
}

/// Code and reason of the status in an error.
pub(crate) fn status_of<T>(result: Result<T, kube::Error>) -> (u16, String, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason, status.message),
        Err(other) => panic!("no status: {other}"),
        Ok(_) => panic!("no error"),
    }
}
