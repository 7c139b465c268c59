//! Failures of pods on command.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, AttachParams, DeleteParams, ListParams};
use rollout_tests::kube::{ImageFixture, PullOutcome, RequestFault, StartFault};
use rollout_tests::wait;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::kubernetes::client::{
    create, double, pod, pods, run, status_of, wait_for, wait_until_gone,
};

const STATE: &str = "/status/containerStatuses/0/state";

#[tokio::test(flavor = "multi_thread")]
async fn pod_unschedulable_waits_with_condition_and_event() {
    let (double, client) = double().await;
    let pods = pods(&client);
    double.faults().unschedulable(Some("Insufficient cpu"));
    create(&pods, pod("one", "lazy:1")).await.expect("created");
    let message = "0/3 nodes are available: 3 Insufficient cpu.";
    wait_for(&pods, "one", "/status/conditions/0/reason", "Unschedulable").await;
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let params = ListParams::default().fields("involvedObject.name=one,reason=FailedScheduling");
    wait::until_async(Duration::from_secs(10), "an event", async || {
        let events = events.list(&params).await.expect("listed");
        events.items.iter().any(|event| event.message.as_ref().is_some_and(|m| m.contains(message)))
    })
    .await;
    double.faults().unschedulable(None);
    wait_for(&pods, "one", "/status/phase", "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_beyond_capacity_wait_for_room() {
    let (double, client) = double().await;
    let pods = pods(&client);
    double.faults().pod_capacity(Some(1));
    run(&pods, pod("one", "lazy:1")).await;
    create(&pods, pod("two", "lazy:1")).await.expect("created");
    wait_for(&pods, "two", "/status/conditions/0/reason", "Unschedulable").await;
    pods.delete("one", &DeleteParams::default()).await.expect("deleted");
    wait_for(&pods, "two", "/status/phase", "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_missing_backs_off_until_it_exists() {
    let (double, client) = double().await;
    let pods = pods(&client);
    let reason = format!("{STATE}/waiting/reason");
    create(&pods, pod("one", "missing:1")).await.expect("created");
    wait_for(&pods, "one", &reason, "ErrImagePull").await;
    wait_for(&pods, "one", &reason, "ImagePullBackOff").await;
    double.image("missing:1", ImageFixture::new().lazy());
    wait_for(&pods, "one", "/status/phase", "Running").await;
    double.image("away:1", ImageFixture::new().pull(PullOutcome::Unreachable));
    create(&pods, pod("two", "away:1")).await.expect("created");
    wait_for(&pods, "two", &reason, "ErrImagePull").await;
    create(&pods, pod("three", "Bad//")).await.expect("created");
    wait_for(&pods, "three", &reason, "InvalidImageName").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn container_start_failures_are_waiting_reasons() {
    let (double, client) = double().await;
    let pods = pods(&client);
    let reason = format!("{STATE}/waiting/reason");
    let faults = [
        ("CreateContainerConfigError", StartFault::Config("secret \"s\" not found".to_owned())),
        ("CreateContainerError", StartFault::Create("context deadline exceeded".to_owned())),
        ("RunContainerError", StartFault::Run("failed to start".to_owned())),
    ];
    for (name, fault) in faults {
        let pod_name = name.to_lowercase();
        double.faults().starts("task:1", usize::MAX, fault);
        create(&pods, pod(&pod_name, "task:1")).await.expect("created");
        wait_for(&pods, &pod_name, &reason, name).await;
        double.faults().clear();
    }
    let mut missing = pod("missing", "task:1");
    missing["spec"]["containers"][0]["command"] = json!(["no-such-program"]);
    create(&pods, missing).await.expect("created");
    wait_for(&pods, "missing", &format!("{STATE}/terminated/reason"), "StartError").await;
    let mut unprivileged = pod("unprivileged", "task:1");
    unprivileged["spec"]["securityContext"] = json!({"runAsNonRoot": true});
    create(&pods, unprivileged).await.expect("created");
    wait_for(&pods, "unprivileged", &reason, "CreateContainerConfigError").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_admission_and_role_refuse_with_403() {
    let (double, client) = double().await;
    let pods = pods(&client);
    let quota = json!({"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}});
    double.create("resourcequotas", "default", quota).expect("created");
    run(&pods, pod("one", "lazy:1")).await;
    let (code, _, message) = status_of(create(&pods, pod("two", "lazy:1")).await);
    assert_eq!(code, 403);
    assert_eq!(
        message,
        "pods \"two\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: \
         pods=1"
    );
    let quota = json!({"metadata": {"name": "cpu"}, "spec": {"hard": {"limits.cpu": "4"}}});
    double.create("resourcequotas", "kube-system", quota).expect("created");
    let system = Api::namespaced(client.clone(), "kube-system");
    let message = status_of(create(&system, pod("one", "lazy:1")).await).2;
    assert!(message.contains("failed quota: cpu: must specify limits.cpu for: main"), "{message}");
    double.faults().deny_admission(Some("no privileged pods"));
    assert!(status_of(create(&pods, pod("three", "lazy:1")).await).2.contains("admission webhook"));
    double.faults().deny_access("list", "pods");
    let (code, _, message) = status_of(pods.list(&ListParams::default()).await);
    assert_eq!(code, 403);
    assert!(message.contains("cannot list resource \"pods\" in API group \"\""), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn disruptions_end_pods_with_their_reasons() {
    let (double, client) = double().await;
    let pods = pods(&client);
    let faults = double.faults();
    for name in ["evicted", "killed", "lost", "preempted", "stolen"] {
        run(&pods, pod(name, "task:1")).await;
    }
    faults.evict("default", "evicted", "The node was low on resource: ephemeral-storage.");
    wait_for(&pods, "evicted", "/status/reason", "Evicted").await;
    faults.out_of_memory("default", "killed");
    wait_for(&pods, "killed", &format!("{STATE}/terminated/reason"), "OOMKilled").await;
    let has = async |kind: &str, status: &str| {
        let lost = pods.get("lost").await.expect("there");
        let conditions = lost.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.iter().any(|one| one.type_ == kind && one.status == status)
    };
    let ready = async || has("Ready", "True").await;
    wait::until_async(Duration::from_secs(10), "it is ready", ready).await;
    faults.lose_node("default", "lost");
    assert!(has("Ready", "False").await && has("ContainersReady", "True").await);
    faults.taint_lost_node("default", "lost");
    let lost = pods.get("lost").await.expect("there");
    assert!(lost.metadata.deletion_timestamp.is_some());
    faults.delete_pod("default", "lost");
    faults.delete_pod("default", "stolen");
    faults.preempt("default", "preempted");
    for name in ["lost", "stolen", "preempted"] {
        wait_until_gone(&pods, name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_beyond_limit_ends_container_as_oom_killed() {
    let (double, client) = double().await;
    let pods = pods(&client);
    if !double.can_limit_memory() {
        rollout_tests::ignored::report_ignored("needs a control group for memory");
        return;
    }
    let mut manifest = pod("one", "task:1");
    let hungry = "x=$(head -c 300000000 /dev/zero | tr '\\0' x); sleep 60";
    manifest["spec"]["containers"][0]["command"] = json!(["sh", "-c", hungry]);
    manifest["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    create(&pods, manifest).await.expect("created");
    wait_for(&pods, "one", &format!("{STATE}/terminated/reason"), "OOMKilled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_fail_on_command() {
    let (double, client) = double().await;
    let pods = pods(&client);
    let fault = RequestFault::Error(500, "etcdserver: leader changed".to_owned());
    double.faults().requests("create", "pods", 1, fault);
    let (code, reason, _) = status_of(create(&pods, pod("one", "lazy:1")).await);
    assert_eq!((code, reason.as_str()), (500, "InternalError"));
    double.faults().requests("*", "*", usize::MAX, RequestFault::Throttle(7));
    let answer = raw_get(double.url(), "/api/v1/namespaces/default/pods").await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.to_lowercase().contains("retry-after: 7"), "{answer}");
}

/// The answer to a request, with its head.
async fn raw_get(url: &str, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let address = url.strip_prefix("http://").expect("a URL");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("read");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn network_policy_takes_network_away() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    let policy: k8s_openapi::api::networking::v1::NetworkPolicy = serde_json::from_value(json!({
        "metadata": {"name": "none"},
        "spec": {"podSelector": {"matchLabels": {"app": "test"}}, "policyTypes": ["Egress"]},
    }))
    .expect("a policy");
    let policies = Api::default_namespaced(client.clone());
    policies.create(&kube::api::PostParams::default(), &policy).await.expect("created");
    let mut manifest = pod("one", "task:1");
    let count = "grep -c : /proc/net/dev";
    manifest["spec"]["containers"][0]["command"] = json!(["sh", "-c", count]);
    run_to_end(&pods, manifest, "one").await;
    let log = pods.logs("one", &kube::api::LogParams::default()).await.expect("a log");
    assert_eq!(log.trim(), "1", "only the loopback device");

    // The policy has an effect on pods that run, too.
    policies.delete("none", &DeleteParams::default()).await.expect("deleted");
    run(&pods, pod("two", "task:1")).await;
    // Other programs add devices to this host and remove them meanwhile.
    let has_network = async || {
        let params = AttachParams::default();
        let script = ["sh", "-c", count];
        let mut process = pods.exec("two", script, &params).await.expect("upgraded");
        let mut text = String::new();
        process.stdout().expect("one").read_to_string(&mut text).await.expect("read");
        text.trim().parse::<u32>().expect("a number") > 1
    };
    let before = has_network().await;
    policies.create(&kube::api::PostParams::default(), &policy).await.expect("created");
    assert!(!has_network().await);
    policies.delete("none", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(has_network().await, before);
}

async fn run_to_end(pods: &Api<k8s_openapi::api::core::v1::Pod>, manifest: Value, name: &str) {
    create(pods, manifest).await.expect("created");
    wait_for(pods, name, "/status/phase", "Succeeded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_runs_its_pod_and_completes() {
    let (_double, client) = double().await;
    let job = json!({
        "metadata": {"name": "build"},
        "spec": {"backoffLimit": 0, "template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "task:1", "command": ["true"]}],
        }}},
    });
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = Api::default_namespaced(client.clone());
    let job = serde_json::from_value(job).expect("a job");
    jobs.create(&kube::api::PostParams::default(), &job).await.expect("created");
    wait::until_async(wait::LONG_DEADLINE, "complete", async || {
        let job = jobs.get("build").await.expect("there");
        job.status.and_then(|status| status.succeeded) == Some(1)
    })
    .await;
    jobs.delete("build", &DeleteParams::background()).await.expect("deleted");
    let pods = pods(&client);
    wait::until_async(wait::LONG_DEADLINE, "its pod is gone", async || {
        pods.list(&ListParams::default()).await.expect("listed").items.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_lazy_pods_need_no_processes() {
    let (double, client) = double().await;
    let pods = pods(&client);
    let names: Vec<String> = (0..500).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        create(&pods, pod(name, "lazy:1")).await.expect("created");
    }
    wait::until_async(wait::LONG_DEADLINE, "500 run", async || {
        let running = ListParams::default().fields("status.phase=Running");
        pods.list(&running).await.expect("listed").items.len() == 500
    })
    .await;
    assert_eq!(double.peak_pods(), 500);
    let directory = double.kubeconfig().parent().expect("one").display().to_string();
    assert_eq!(rollout_tests::processes::with_mark(&directory), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_beyond_its_deadline_fails() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    let mut manifest = pod("one", "task:1");
    manifest["spec"]["activeDeadlineSeconds"] = json!(1);
    create(&pods, manifest).await.expect("created");
    wait_for(&pods, "one", "/status/reason", "DeadlineExceeded").await;
    assert_eq!(
        pods.get("one").await.expect("there").status.expect("one").phase.as_deref(),
        Some("Failed")
    );
}
