//! Pods that are lost while a trial uses them, and an API server that goes away.

use rollout_environment::FailureKind;
use rollout_tests::kube::{ExpiredForm, KubeFaults, RequestFault};

use super::*;

/// The failure of a command whose pod is lost while it runs.
async fn loss(lose: impl FnOnce(&KubeFaults, &str)) -> Failure {
    loss_of(PodFixture::new(), lose).await
}

/// The same with a fixture.
async fn loss_of(fixture: PodFixture, lose: impl FnOnce(&KubeFaults, &str)) -> Failure {
    let environment = fixture.create().await;
    let began = shell("echo x > /tmp/began; sleep 1000");
    let running = environment.exec(began, Arc::new(Captured::default()));
    let losing = async {
        eventually(environment.as_ref(), "test -f /tmp/began").await;
        lose(&fixture.double.faults(), environment.id());
    };
    let both = async { tokio::join!(running, losing) };
    let (ended, ()) = tokio::time::timeout(DEADLINE, both).await.expect("it is noticed");
    let failure = ended.expect_err("its pod is lost");
    environment.destroy().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    assert_eq!(fixture.double.pods(), Vec::<serde_json::Value>::new(), "nothing is left");
    failure
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_evicted_for_its_storage_limit_is_its_own_fault() {
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ";
    let failure = loss(|faults, pod| faults.evict(NAMESPACE, pod, message)).await;
    assert_eq!(failure.kind, FailureKind::StorageExceeded, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_evicted_by_its_node_is_gone() {
    let message = "The node was low on resource: memory.";
    let failure = loss(|faults, pod| faults.evict(NAMESPACE, pod, message)).await;
    assert_eq!(failure.kind, FailureKind::Gone, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn eviction_reported_after_the_end_of_its_container_is_the_cause() {
    for (message, kind) in [
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            FailureKind::StorageExceeded,
        ),
        ("The node was low on resource: memory.", FailureKind::Gone),
    ] {
        let fixture = PodFixture::new();
        fixture.double.faults().delay_reasons(Duration::from_secs(2));
        let failure = loss_of(fixture, |faults, pod| faults.evict(NAMESPACE, pod, message)).await;
        assert_eq!(failure.kind, kind, "{}", failure.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn container_that_ends_without_a_cause_is_not_blamed_on_the_cluster() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let ending = shell("kill -s KILL 1; kill -s TERM 1; sleep 1000");
    let running = environment.exec(ending, Arc::new(Captured::default()));
    let ended = tokio::time::timeout(DEADLINE, running).await.expect("it is noticed");
    let failure = ended.expect_err("its container has ended");
    assert_eq!(failure.kind, FailureKind::NotStarted, "{}", failure.chain());
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_preempted_is_gone() {
    let failure = loss(|faults, pod| faults.preempt(NAMESPACE, pod)).await;
    assert_eq!(failure.kind, FailureKind::Gone, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_of_lost_node_is_gone_and_removed() {
    // Its node never confirms the end of the pod.
    let fixture = PodFixture::with(|options| options.removal_timeout_sec = 5);
    let lose = |faults: &KubeFaults, pod: &str| {
        faults.lose_node(NAMESPACE, pod);
        faults.taint_lost_node(NAMESPACE, pod);
    };
    let failure = loss_of(fixture, lose).await;
    assert_eq!(failure.kind, FailureKind::Gone, "{}", failure.chain());
    let failure = loss(|faults, pod| faults.taint_lost_node(NAMESPACE, pod)).await;
    assert_eq!(failure.kind, FailureKind::Gone, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_deleted_by_stranger_is_gone() {
    let failure = loss(|faults, pod| faults.delete_pod(NAMESPACE, pod)).await;
    assert_eq!(failure.kind, FailureKind::Gone, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_is_noticed_after_watch_expired() {
    for form in [ExpiredForm::Event, ExpiredForm::HttpStatus] {
        let failure = loss(|faults, pod| {
            faults.expire_watches(form);
            faults.cut_connections();
            faults.delete_pod(NAMESPACE, pod);
        })
        .await;
        assert_eq!(failure.kind, FailureKind::Gone, "{form:?}: {}", failure.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_survives_outage_of_api_server() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let faults = fixture.double.faults();
    let script =
        "for i in 1 2 3 4 5 6 7 8; do echo $i; echo $i >> /tmp/log; sleep 0.3; done; exit 7";
    let captured = Arc::new(Captured::default());
    let running = environment.exec(shell(script), captured.clone());
    let outage = async {
        let began = async || !captured.bytes(OutputStream::Stdout).is_empty();
        wait::until_async(DEADLINE, "the first output", began).await;
        faults.stop_listening();
        let service = environment.dependency().expect("the API server");
        assert!(!service.check().await, "it is down");
        assert!(service.is_down());
        faults.resume_listening();
        assert!(service.check().await, "it is up");
    };
    let (ended, ()) = tokio::join!(running, outage);
    assert_eq!(ended.unwrap_or_else(|f| panic!("{}", f.chain())).code, 7);
    assert_eq!(captured.bytes(OutputStream::Stdout), b"1\n2\n3\n4\n5\n6\n7\n8\n");
    let (_, log, _) = run(environment.as_ref(), "cat /tmp/log").await;
    assert_eq!(log, b"1\n2\n3\n4\n5\n6\n7\n8\n", "it ran once");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_api_server_without_rules_fails_no_call_it_granted_before() {
    for code in [403, 401] {
        let fixture = PodFixture::new();
        let environment = fixture.create().await;
        let faults = fixture.double.faults();
        let captured = Arc::new(Captured::default());
        let script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done; exit 7";
        let running = environment.exec(shell(script), captured.clone());
        let restart = async {
            let began = async || !captured.bytes(OutputStream::Stdout).is_empty();
            wait::until_async(DEADLINE, "the first output", began).await;
            faults.restart(Duration::from_secs(3), code);
            // So do calls that begin while the server refuses everything.
            fixture.create().await.destroy().await.expect("destroyed");
        };
        let (ended, ()) = tokio::join!(running, restart);
        assert_eq!(ended.unwrap_or_else(|f| panic!("{code}: {}", f.chain())).code, 7);
        assert_eq!(captured.bytes(OutputStream::Stdout), b"1\n2\n3\n4\n5\n6\n");
        faults.restart(Duration::from_secs(3), code);
        environment.destroy().await.unwrap_or_else(|f| panic!("{code}: {}", f.chain()));
        assert_eq!(fixture.double.pods(), Vec::<serde_json::Value>::new(), "nothing is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn right_that_was_never_used_is_missing_at_once() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    fixture.double.faults().deny_access("delete", "pods");
    let destroying = environment.destroy();
    let ended = tokio::time::timeout(Duration::from_secs(10), destroying).await;
    let failure = ended.expect("nothing is waited for").expect_err("denied");
    assert_eq!(failure.kind, FailureKind::NotPermitted, "{}", failure.chain());
    fixture.double.faults().clear();
}

/// Waits until a cluster has no pod, without any call of a provider.
async fn until_no_pod_is_left(double: &KubeDouble) {
    wait::until_async(DEADLINE, "no pod is left", async || double.pods().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_whose_removal_was_refused_once_is_removed_without_another_call() {
    for (code, times, message) in [
        (500, 1, "etcdserver: request timed out"),
        (400, 1, "admission webhook \"policy.x\" denied the request: busy"),
        // A right that is refused at its first use is asked for twice.
        (403, 2, "pods is forbidden: User \"w\" cannot delete resource \"pods\""),
    ] {
        let fixture = PodFixture::new();
        let environment = fixture.create().await;
        let fault = RequestFault::Error(code, message.to_owned());
        fixture.double.faults().requests("delete", "pods", times, fault);
        let failure = environment.destroy().await.expect_err(message);
        assert!(failure.message.contains(message), "{failure}");
        until_no_pod_is_left(&fixture.double).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_without_caller_is_finished() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let slow = RequestFault::Slow(Duration::from_secs(30));
    fixture.double.faults().requests("delete", "pods", 1, slow);
    let destroying = environment.destroy();
    assert!(tokio::time::timeout(Duration::from_millis(300), destroying).await.is_err());
    until_no_pod_is_left(&fixture.double).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_whose_removal_failed_is_removed_later() {
    let fixture = PodFixture::with(|options| options.schedule_timeout_sec = 60);
    let faults = fixture.double.faults();
    faults.unschedulable(Some("1 Insufficient cpu"));
    faults.deny_access("delete", "pods");
    let created = fixture.provider.create(request(IMAGE));
    assert!(tokio::time::timeout(Duration::from_millis(500), created).await.is_err());
    let tried = || fixture.double.requests().iter().any(|request| request.verb == "delete");
    wait::until_async(DEADLINE, "the removal is tried", async || tried()).await;
    assert_eq!(fixture.double.pods().len(), 1);
    faults.clear();
    let removed = async || {
        fixture.provider.remove_deferred().await;
        fixture.double.pods().is_empty()
    };
    wait::until_async(DEADLINE, "no pod is left", removed).await;
}
