//! Containers as processes: roots, users, limits, ends.

use kube::api::{DeleteParams, LogParams};
use rollout_tests::processes;
use rollout_tests::wait;
use serde_json::json;

use crate::kubernetes::client::{create, double, pod, pods, run, wait_for, wait_until_gone};

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_run_first_and_share_volumes() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    let mut manifest = pod("one", "task:1");
    let mount = json!([{"name": "shared", "mountPath": "/shared"}]);
    manifest["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    manifest["spec"]["initContainers"] = json!([{
        "name": "helper", "image": "task:1", "volumeMounts": mount,
        "command": ["sh", "-c", "echo $(HOSTNAME) $$HOME > /shared/file"],
    }]);
    manifest["spec"]["containers"][0]["volumeMounts"] = mount;
    manifest["spec"]["containers"][0]["command"] = json!(["sh", "-c", "cat /shared/file; exit 4"]);
    create(&pods, manifest).await.expect("created");
    wait_for(&pods, "one", "/status/phase", "Failed").await;
    let log = pods.logs("one", &LogParams::default()).await.expect("a log");
    assert_eq!(log, "one /root\n");
    let ended = serde_json::to_value(pods.get("one").await.expect("there")).expect("JSON");
    let state = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["exitCode"], &state["reason"]), (&json!(4), &json!("Error")));
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_ends_every_process() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    let mark = format!("kube-double-mark-{}", std::process::id());
    let mut manifest = pod("one", "task:1");
    manifest["spec"]["containers"][0]["command"] = json!([
        "sh",
        "-c",
        format!("trap '' TERM; sleep 4000 & : {mark}; while :; do sleep 1; done")
    ]);
    manifest["spec"]["terminationGracePeriodSeconds"] = json!(1);
    run(&pods, manifest).await;
    wait::until(wait::LONG_DEADLINE, "it runs", || !processes::with_mark(&mark).is_empty());
    pods.delete("one", &DeleteParams::default()).await.expect("deleted");
    assert!(pods.get("one").await.expect("there").metadata.deletion_timestamp.is_some());
    wait_until_gone(&pods, "one").await;
    assert_eq!(processes::with_mark(&mark), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_end_with_the_double() {
    let (double, client) = double().await;
    let mark = format!("kube-double-end-{}", std::process::id());
    let mut manifest = pod("one", "task:1");
    manifest["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", format!(": {mark}; while :; do sleep 1; done")]);
    run(&pods(&client), manifest).await;
    assert!(!processes::with_mark(&mark).is_empty());
    tokio::task::block_in_place(|| drop(double));
    wait::until(wait::LONG_DEADLINE, "no process", || processes::with_mark(&mark).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_missing_delays_start_until_it_exists() {
    let (double, client) = double().await;
    let pods = pods(&client);
    let mut manifest = pod("one", "task:1");
    manifest["spec"]["containers"][0]["command"] = json!(["sh", "-c", "echo $KEY; cat /keys/k"]);
    manifest["spec"]["containers"][0]["env"] =
        json!([{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]);
    manifest["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "keys", "mountPath": "/keys", "readOnly": true}]);
    manifest["spec"]["volumes"] = json!([{"name": "keys", "secret": {"secretName": "keys"}}]);
    create(&pods, manifest).await.expect("created");
    let reason = "/status/containerStatuses/0/state/waiting/reason";
    wait_for(&pods, "one", reason, "CreateContainerConfigError").await;
    let secret = json!({"metadata": {"name": "keys"}, "data": {"k": "dmFsdWU="}});
    double.create("secrets", "default", secret).expect("created");
    wait_for(&pods, "one", "/status/phase", "Succeeded").await;
    let log = pods.logs("one", &LogParams::default()).await.expect("a log");
    assert_eq!(log, "value\nvalue");
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_starts_first_and_ends_with_its_pod() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    let mut manifest = pod("one", "task:1");
    let mount = json!([{"name": "shared", "mountPath": "/shared"}]);
    manifest["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    manifest["spec"]["hostAliases"] = json!([{"ip": "127.0.0.1", "hostnames": ["db"]}]);
    manifest["spec"]["initContainers"] = json!([{
        "name": "db", "image": "task:1", "volumeMounts": mount, "restartPolicy": "Always",
        "command": ["sh", "-c", "echo x >> /shared/runs; [ $(wc -l < /shared/runs) -gt 1 ] || exit 3; \
                                 sleep 1; touch /shared/ready; sleep 1000"],
        "startupProbe": {"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1,
                         "failureThreshold": 20},
    }]);
    manifest["spec"]["containers"][0]["volumeMounts"] = mount;
    manifest["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", "ls /shared; getent hosts db | cut -d' ' -f1; echo x > /shared/main"]);
    create(&pods, manifest).await.expect("created");
    wait_for(&pods, "one", "/status/phase", "Succeeded").await;
    let params = LogParams { container: Some("main".to_owned()), ..LogParams::default() };
    let log = pods.logs("one", &params).await.expect("a log");
    assert_eq!(log, "ready\nruns\n127.0.0.1\n");
    let ended = serde_json::to_value(pods.get("one").await.expect("there")).expect("JSON");
    let status = &ended["status"]["initContainerStatuses"][0];
    assert_eq!(
        (&status["restartCount"], &status["lastState"]["terminated"]["exitCode"]),
        (&json!(1), &json!(3))
    );
    assert!(status["state"]["terminated"].is_object(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn container_whose_probe_fails_is_ended() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    let mut manifest = pod("one", "task:1");
    manifest["spec"]["containers"][0]["command"] = json!(["sleep", "1000"]);
    manifest["spec"]["containers"][0]["startupProbe"] = json!({
        "exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 2,
    });
    create(&pods, manifest).await.expect("created");
    wait_for(&pods, "one", "/status/phase", "Failed").await;
}
