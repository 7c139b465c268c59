//! Starts of pods that fail or wait, each with its kind of failure.

use rollout_environment::FailureKind;
use rollout_tests::kube::{PullOutcome, RequestFault, StartFault};
use serde_json::json;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_fits_no_node_fails_for_its_resources() {
    let fixture = PodFixture::new();
    fixture.double.faults().unschedulable(Some("3 Insufficient cpu"));
    let failure = fixture.creation_failure(IMAGE).await;
    assert_eq!(failure.kind, FailureKind::Resources, "{}", failure.chain());
    assert!(failure.message.contains("Insufficient cpu"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_larger_than_every_node_fails_for_its_resources_beside_others() {
    let fixture = PodFixture::new();
    fixture.double.faults().cpu_capacity(Some(1_500));
    let other = fixture.create().await;
    let large = Resources { cpus: 2, memory_mb: 256, ..Resources::default() };
    for (resources, kind) in
        [(large, FailureKind::Resources), (request(IMAGE).resources, FailureKind::Service)]
    {
        let request = CreateRequest { resources, ..request(IMAGE) };
        let failure = fixture.provider.create(request).await.expect_err("there is no room");
        assert_eq!(failure.kind, kind, "{}", failure.chain());
    }
    other.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_scheduler_before_answer_to_creation_is_cause_of_failure() {
    let fixture = PodFixture::new();
    fixture.double.faults().cpu_capacity(Some(1_500));
    // With this pod, the watch runs while the next one is created.
    let other = fixture.create().await;
    let late = RequestFault::LateAnswer(Duration::from_secs(1));
    fixture.double.faults().requests("create", "pods", 1, late);
    let resources = Resources { cpus: 2, memory_mb: 256, ..Resources::default() };
    let request = CreateRequest { resources, ..request(IMAGE) };
    let failure = fixture.provider.create(request).await.expect_err("there is no room");
    assert_eq!(failure.kind, FailureKind::Resources, "{}", failure.chain());
    other.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_waits_for_room_that_another_leaves() {
    let fixture = PodFixture::with(|options| options.schedule_timeout_sec = 60);
    fixture.double.faults().pod_capacity(Some(1));
    let first = fixture.create().await;
    let second = fixture.provider.create(request(IMAGE));
    let leaving = async {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while fixture.double.pods().len() < 2 {
            assert!(tokio::time::Instant::now() < deadline, "the second pod was not created");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        first.destroy().await.expect("destroyed");
    };
    let (second, ()) = tokio::join!(second, leaving);
    second.unwrap_or_else(|f| panic!("{}", f.chain())).destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn image_that_cannot_be_pulled_fails_by_its_cause() {
    let fixture = PodFixture::new();
    for (outcome, kind) in [
        (PullOutcome::Missing, FailureKind::Refused),
        (PullOutcome::Denied, FailureKind::Refused),
        (PullOutcome::Unreachable, FailureKind::Unreachable),
    ] {
        let image = ImageFixture::new().pull(outcome.clone());
        fixture.double.image("registry.test/broken:1", image);
        let failure = fixture.creation_failure("registry.test/broken:1").await;
        assert_eq!(failure.kind, kind, "{outcome:?}: {}", failure.chain());
    }
    let invalid = fixture.creation_failure("registry.test/Broken:1").await;
    assert_eq!(invalid.kind, FailureKind::Refused, "{}", invalid.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn image_pulled_slowly_starts() {
    let fixture = PodFixture::with(|options| options.start_timeout_sec = 60);
    let image = ImageFixture::new().pull(PullOutcome::Slow(Duration::from_secs(2)));
    fixture.double.image("registry.test/slow:1", image);
    let made = fixture.provider.create(request("registry.test/slow:1")).await;
    made.unwrap_or_else(|f| panic!("{}", f.chain())).destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn container_that_cannot_start_fails_by_its_cause() {
    let fixture = PodFixture::new();
    let text = |text: &str| text.to_owned();
    for (fault, kind) in [
        (StartFault::Config(text("secret \"keys\" not found")), FailureKind::Refused),
        (StartFault::Create(text("no such device")), FailureKind::NotStarted),
        (StartFault::Run(text("OCI runtime create failed")), FailureKind::NotStarted),
    ] {
        fixture.double.faults().starts(IMAGE, 100, fault.clone());
        let failure = fixture.creation_failure(IMAGE).await;
        fixture.double.faults().clear();
        assert_eq!(failure.kind, kind, "{fault:?}: {}", failure.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_that_is_full_is_a_failure_of_the_service() {
    let fixture = PodFixture::new();
    let quota = json!({
        "metadata": {"name": "few", "namespace": NAMESPACE},
        "spec": {"hard": {"pods": "1"}},
    });
    fixture.double.create("resourcequotas", NAMESPACE, quota).expect("created");
    let first = fixture.create().await;
    let second = fixture.provider.create(request(IMAGE)).await.expect_err("no room");
    assert_eq!(second.kind, FailureKind::Service, "{}", second.chain());
    assert!(second.message.contains("exceeded quota"), "{second}");
    let waiting = fixture.provider.create(request(IMAGE));
    let (waited, destroyed) = tokio::join!(waiting, first.destroy());
    destroyed.expect("destroyed");
    waited.unwrap_or_else(|f| panic!("{}", f.chain())).destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_denied_by_admission_or_rights_fails_at_once() {
    let fixture = PodFixture::new();
    fixture.double.faults().deny_admission(Some("only signed images"));
    let failure = fixture.creation_failure(IMAGE).await;
    assert_eq!(failure.kind, FailureKind::Refused, "{}", failure.chain());
    assert!(failure.message.contains("only signed images"), "{failure}");
    // Admission comes behind the check of rights, so the first provider waits for a right it has seen.
    let fixture = PodFixture::new();
    fixture.double.faults().deny_access("create", "pods");
    let failure = fixture.creation_failure(IMAGE).await;
    assert_eq!(failure.kind, FailureKind::NotPermitted, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn creation_that_is_dropped_leaves_nothing() {
    let fixture = PodFixture::with(|options| options.schedule_timeout_sec = 60);
    fixture.double.faults().unschedulable(Some("1 Insufficient cpu"));
    let created = fixture.provider.create(request(IMAGE));
    let dropped = tokio::time::timeout(Duration::from_millis(500), created).await;
    assert!(dropped.is_err(), "it waits");
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !fixture.double.pods().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "a pod is left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn creation_of_same_execution_replaces_earlier_pod() {
    let fixture = PodFixture::new();
    let again = request(IMAGE);
    let first = fixture.provider.create(again.clone()).await.expect("created");
    let second = fixture.provider.create(again).await.expect("created again");
    assert_eq!(first.id(), second.id());
    assert_eq!(failure(first.as_ref(), "exit 0").await.kind, FailureKind::Gone);
    assert_eq!(run(second.as_ref(), "echo lives").await.1, b"lives\n");
    // The first one's identity is not the second one's.
    first.destroy().await.expect("it is gone");
    assert_eq!(run(second.as_ref(), "echo lives").await.1, b"lives\n");
    second.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_without_network_needs_enforcement() {
    let closed = || CreateRequest { network: NetworkPolicy::NoNetwork, ..request(IMAGE) };
    let unknown =
        PodFixture::with(|options| options.network_policy_enforced = NetworkEnforcement::No);
    let failure = unknown.provider.create(closed()).await.expect_err("not known");
    assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.chain());
    assert!(failure.message.contains("network_policy_enforced"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dockerfile_without_builder_is_unsupported() {
    let fixture = PodFixture::new();
    let source = ImageSource::Context {
        digest: rollout_protocol::digest::Digest::sha256(b"context"),
        dir: "/nowhere".into(),
    };
    let asked = rollout_environment::ImageRequest {
        source,
        force_build: false,
        timeout: DEADLINE,
        log: None,
        proxies: rollout_environment::BuildProxies::default(),
        settings: request(IMAGE).settings,
        labels: labels(),
    };
    let failure = fixture.provider.prepare(asked).await.expect_err("no builder");
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.message.contains("builder"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_that_is_not_configured_is_refused_with_hint() {
    let fixture = PodFixture::with(|options| options.kubeconfig = Some("/no/such/file".into()));
    let failure = fixture.provider.capacity().await.expect_err("no cluster");
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(failure.message.contains("KUBECONFIG"), "{failure}");
}
