//! Trials without network: the policy, and the probe that shows whether it has an effect.

use rollout_environment::FailureKind;
use rollout_tests::wait;
use serde_json::{Value, json};

use super::*;

/// Image of probes, with an `nc` as busybox has it, and no other program that can connect.
const PROBE: &str = "registry.test/probe:1";
const NC: &[u8] = b"#!/usr/bin/perl\nuse IO::Socket::INET;\n\
    @ARGV == 4 && $ARGV[0] eq '-w' or die \"nc: invalid option\\nUsage: nc HOST PORT\\n\";\n\
    exit(IO::Socket::INET->new(PeerAddr => $ARGV[2], PeerPort => $ARGV[3], Timeout => $ARGV[1]) ? 0 : 1);\n";

/// Image whose `bash`, once there is a file `/lies`, says that it connects, and then that it cannot.
const LIAR: &str = "registry.test/liar:1";
const LYING_BASH: &[u8] = b"#!/bin/sh\n[ -e /lies ] || exec /bin/bash \"$@\"\n\
    [ -e /said ] || { : >/said; exit 0; }\n\
    echo begins; echo 'bash: connect: Connection refused' >&2; exit 1\n";

/// Image with a helper, whose programs are those of the host and an `nc`.
const HELPER: &str = "registry.test/helper:1";
const BUSYBOX: &[u8] = b"#!/bin/sh\n[ \"$1 $2\" = '--install -s' ] || exit 64\n\
    for program in sh rm sleep nc; do cp -L \"$(command -v $program)\" \"$3/$program\" || exit; done\n";

fn liar() -> ImageFixture {
    ImageFixture::new().file("/usr/local/bin/bash", LYING_BASH, 0o755)
}

fn probe_image() -> ImageFixture {
    ImageFixture::new().file("/usr/local/bin/nc", NC, 0o755).without(&["bash", "python3"])
}

fn fixture() -> PodFixture {
    let fixture = PodFixture::with(|options| {
        options.network_policy_enforced = NetworkEnforcement::Probe;
        options.network_probe_timeout_sec = 3;
        PROBE.clone_into(&mut options.probe_image);
    });
    fixture.double.image(PROBE, probe_image());
    fixture
}

fn closed() -> CreateRequest {
    CreateRequest { network: NetworkPolicy::NoNetwork, ..request(IMAGE) }
}

/// Pods of probes that were created so far.
fn probes(double: &KubeDouble) -> usize {
    let events = double.objects("events");
    let started = events.iter().filter(|event| {
        let name = event["involvedObject"]["name"].as_str().unwrap_or_default();
        event["reason"] == "Scheduled" && name.starts_with("rollout-probe-")
    });
    started.count()
}

fn policies(double: &KubeDouble) -> Vec<Value> {
    double.objects("networkpolicies")
}

/// A script that tries to connect to the API server.
fn connect_script(double: &KubeDouble) -> String {
    let address = double.url()["http://".len()..].replace(':', "/");
    format!("bash -c 'echo > /dev/tcp/{address}' 2>/dev/null && echo open || echo closed")
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_phase_begins_after_its_policy_works() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    for delay in [500, 5_000].map(Duration::from_millis) {
        let fixture = PodFixture::with(|options| options.network_probe_timeout_sec = 10);
        fixture.double.faults().delay_network_policies(delay);
        let script = connect_script(&fixture.double);
        let isolated = fixture.provider.create(closed()).await;
        let isolated = isolated.unwrap_or_else(|failure| panic!("{}", failure.chain()));
        assert_eq!(run(isolated.as_ref(), &script).await.1, b"closed\n", "{delay:?}");
        let open = fixture.create().await;
        assert_eq!(run(open.as_ref(), &script).await.1, b"open\n", "{delay:?}");
        open.set_network(&NetworkPolicy::NoNetwork).await.expect("isolated");
        assert_eq!(run(open.as_ref(), &script).await.1, b"closed\n", "{delay:?}");
        for environment in [isolated, open] {
            environment.destroy().await.expect("destroyed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_program_is_no_proof_of_an_isolated_phase() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = PodFixture::with(|options| options.network_probe_timeout_sec = 20);
    let slow = b"#!/bin/sh\nsleep 3\nexec /bin/bash \"$@\"\n";
    fixture.double.image(IMAGE, ImageFixture::new().file("/usr/local/bin/bash", slow, 0o755));
    fixture.double.faults().delay_network_policies(Duration::from_secs(8));
    let script = connect_script(&fixture.double).replace("bash", "/bin/bash");
    let isolated = fixture.provider.create(closed()).await;
    let isolated = isolated.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert_eq!(run(isolated.as_ref(), &script).await.1, b"closed\n");
    isolated.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_never_connected_waits_the_whole_time_for_its_isolation() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = PodFixture::new();
    let limit = Duration::from_secs(3);
    let begun = std::time::Instant::now();
    let isolated = fixture.provider.create(closed()).await;
    let isolated = isolated.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert!(begun.elapsed() >= limit, "nothing showed that the policy is the cause");
    isolated.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn image_that_lies_shortens_no_wait_of_other_pods() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = PodFixture::new();
    fixture.double.image(LIAR, liar().file("/lies", b"", 0o644));
    let lying = CreateRequest { image: Image::found(LIAR), ..closed() };
    let lying = fixture.provider.create(lying).await;
    let lying = lying.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    let begun = std::time::Instant::now();
    let isolated = fixture.provider.create(closed()).await;
    let isolated = isolated.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert!(begun.elapsed() >= Duration::from_secs(3), "only a pod of a user has connected");
    for environment in [lying, isolated] {
        environment.destroy().await.expect("destroyed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_that_changes_programs_ends_no_wait_for_its_isolation() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = PodFixture::new();
    fixture.double.image(IMAGE, liar());
    let environment = fixture.create().await;
    assert_eq!(run(environment.as_ref(), ": >/lies").await.0, 0);
    let begun = std::time::Instant::now();
    environment.set_network(&NetworkPolicy::NoNetwork).await.expect("isolated");
    assert!(begun.elapsed() >= Duration::from_secs(3), "its programs show nothing");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_that_removes_programs_is_at_fault() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = PodFixture::with(|options| options.network_probe_timeout_sec = 2);
    let bash = b"#!/bin/sh\n[ ! -e /gone ] || exit 1\nexec /bin/bash \"$@\"\n";
    let image = ImageFixture::new().without(&["python3", "nc"]);
    fixture.double.image(IMAGE, image.file("/usr/local/bin/bash", bash, 0o755));
    let mute = ImageFixture::new().without(&["bash", "python3", "nc"]);
    fixture.double.image("registry.test/mute:1", mute);
    for (image, kind) in
        [(IMAGE, FailureKind::Unusable), ("registry.test/mute:1", FailureKind::Unsupported)]
    {
        let environment = fixture.provider.create(request(image)).await;
        let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
        assert_eq!(run(environment.as_ref(), ": >/gone").await.0, 0);
        let failure = environment.set_network(&NetworkPolicy::NoNetwork).await;
        let failure = failure.expect_err("nothing can tell");
        assert_eq!(failure.kind, kind, "{image}: {}", failure.chain());
        environment.destroy().await.expect("destroyed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_helper_show_isolation_whatever_the_image_says() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let limit = Duration::from_secs(30);
    let fixture = PodFixture::with(|options| {
        options.helper_image = Some(HELPER.to_owned());
        options.network_probe_timeout_sec = limit.as_secs();
    });
    let helper = ImageFixture::new().file("/usr/local/bin/busybox", BUSYBOX, 0o755);
    fixture.double.image(HELPER, helper.file("/usr/local/bin/nc", NC, 0o755));
    fixture.double.image(LIAR, liar().file("/lies", b"", 0o644));
    fixture.double.faults().delay_network_policies(Duration::from_secs(3));
    let script = connect_script(&fixture.double).replace("bash", "/bin/bash");
    let isolated = CreateRequest { image: Image::found(LIAR), ..closed() };
    let isolated = fixture.provider.create(isolated).await;
    let isolated = isolated.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert_eq!(run(isolated.as_ref(), &script).await.1, b"closed\n");
    let open = fixture.provider.create(request(LIAR)).await;
    let open = open.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    for change in ["rm /.rollout/bin/nc", ": >/.rollout/bin/nc", ": >/.rollout/bin/more"] {
        assert_ne!(run(open.as_ref(), change).await.0, 0, "{change}");
    }
    let begun = std::time::Instant::now();
    open.set_network(&NetworkPolicy::NoNetwork).await.expect("isolated");
    assert!(begun.elapsed() < limit, "the operator's programs have shown it");
    assert_eq!(run(open.as_ref(), &script).await.1, b"closed\n");
    for environment in [isolated, open] {
        environment.destroy().await.expect("destroyed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_phase_without_proof_does_not_begin() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = PodFixture::with(|options| options.network_probe_timeout_sec = 2);
    fixture.double.faults().delay_network_policies(Duration::from_secs(3_600));
    let failure = fixture.provider.create(closed()).await.expect_err("it has a network");
    assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
    assert!(failure.message.contains("still had a network"), "{failure}");
    assert_eq!(fixture.double.pods(), Vec::<Value>::new(), "nothing is left");
    let open = fixture.create().await;
    let failure = open.set_network(&NetworkPolicy::NoNetwork).await.expect_err("not isolated");
    assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
    open.destroy().await.expect("destroyed");

    let mute = ImageFixture::new().without(&["bash", "python3", "nc"]);
    fixture.double.image("registry.test/mute:1", mute);
    let request = CreateRequest { image: Image::found("registry.test/mute:1"), ..closed() };
    let failure = fixture.provider.create(request).await.expect_err("nothing can tell");
    assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.chain());
    assert!(failure.message.contains("helper_image"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_of_enforced_policies_lets_closed_trials_run() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = fixture();
    let made = futures_util::future::join_all((0..4).map(|_| fixture.provider.create(closed())));
    let script = connect_script(&fixture.double);
    for environment in made.await {
        let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
        assert_eq!(run(environment.as_ref(), &script).await.1, b"closed\n");
        environment.set_network(&NetworkPolicy::Public).await.expect("changed");
        assert_eq!(run(environment.as_ref(), &script).await.1, b"open\n");
        environment.destroy().await.expect("destroyed");
    }
    assert_eq!(probes(&fixture.double), 1, "once for the process");
    assert_eq!(policies(&fixture.double).len(), 1);
    assert_eq!(fixture.double.pods(), Vec::<Value>::new(), "nothing is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_of_ignored_policies_makes_closed_trials_unsupported() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = fixture();
    fixture.double.faults().ignore_network_policies();
    for _ in 0..2 {
        let failure = fixture.provider.create(closed()).await.expect_err("not enforced");
        assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.chain());
        assert!(failure.message.contains("ignores network policies"), "{failure}");
    }
    assert_eq!(probes(&fixture.double), 1, "once for the process");
    let open = fixture.create().await;
    let failure = open.set_network(&NetworkPolicy::NoNetwork).await.expect_err("not enforced");
    assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.chain());
    open.destroy().await.expect("destroyed");
    assert_eq!(fixture.double.pods(), Vec::<Value>::new(), "nothing is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_that_cannot_start_is_no_verdict() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = fixture();
    let working = probe_image();
    let missing = working.clone().pull(rollout_tests::kube::PullOutcome::Missing);
    fixture.double.image(PROBE, missing);
    let failure = fixture.provider.create(closed()).await.expect_err("no probe");
    assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
    assert!(failure.message.contains("cannot probe network policies"), "{failure}");
    assert_eq!(fixture.double.pods(), Vec::<Value>::new(), "nothing is left");
    let mute = ImageFixture::new().without(&["bash", "python3", "nc"]);
    fixture.double.image(PROBE, mute);
    let failure = fixture.provider.create(closed()).await.expect_err("nothing can tell");
    assert_eq!(failure.kind, FailureKind::NotPermitted, "{}", failure.chain());
    assert!(failure.message.contains("`probe_image`"), "{failure}");
    fixture.double.image(PROBE, working);
    let environment = fixture.provider.create(closed()).await;
    let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_without_caller_is_removed_and_repeated() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let fixture = fixture();
    let environment = fixture.create().await;
    {
        let mut changing = std::pin::pin!(environment.set_network(&NetworkPolicy::NoNetwork));
        let probing = async || probes(&fixture.double) == 1;
        tokio::select! {
            _ = &mut changing => panic!("the probe takes time"),
            () = wait::until_async(DEADLINE, "a probe", probing) => {}
        }
    }
    environment.set_network(&NetworkPolicy::NoNetwork).await.expect("changed");
    let what = "only the environment is left";
    wait::until_async(DEADLINE, what, async || fixture.double.pods().len() == 1).await;
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn network_policy_of_another_content_is_noticed() {
    let fixture = PodFixture::new();
    let foreign = json!({
        "metadata": {"name": "rollout-no-network", "namespace": NAMESPACE},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    });
    fixture.double.create("networkpolicies", NAMESPACE, foreign).expect("created");
    let failure = fixture.provider.create(closed()).await.expect_err("a foreign policy");
    assert_eq!(failure.kind, FailureKind::NotPermitted, "{}", failure.chain());
    assert!(failure.message.contains("rollout-no-network"), "{failure}");
}
