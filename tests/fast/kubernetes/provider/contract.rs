//! The contract of providers, on the double and on a real cluster.

use std::path::{Path, PathBuf};

use rollout_environment::contract::{self, CHECKS, ProviderUnderTest};
use rollout_tests::ignored::report_ignored;

use super::*;

/// Kubeconfig, image and namespace of a real cluster. The image has `bash`, coreutils and `tar`.
const KUBECONFIG: &str = "ROLLOUT_TEST_KUBECONFIG";
const CLUSTER_IMAGE: &str = "ROLLOUT_TEST_KUBERNETES_IMAGE";
const CLUSTER_NAMESPACE: &str = "ROLLOUT_TEST_KUBERNETES_NAMESPACE";

/// Checks that a network policy cannot pass: it leaves interfaces and routes in place.
const WITHOUT_POLICIES: [&str; 2] =
    ["network_policy_in_effect_can_be_set_again", "network_disabled_leaves_only_loopback"];

/// The CA bundle of the providers under test.
fn ca_bundle() -> CaBundle {
    CaBundle::new("certificates\n")
}

/// A cluster, and a provider under test with long limits.
fn contract_fixture() -> PodFixture {
    let double = KubeDouble::start();
    double.image(IMAGE, ImageFixture::new());
    let limits =
        KubernetesOptions { schedule_timeout_sec: 60, start_timeout_sec: 60, ..options(&double) };
    PodFixture { provider: provider_with(limits, Some(ca_bundle())), double }
}

fn subject(provider: Arc<KubernetesProvider>, image: &str, scratch: &Path) -> ProviderUnderTest {
    let own = labels();
    ProviderUnderTest {
        provider,
        source: ImageSource::Named(image.to_owned()),
        settings: ProviderSpec::Kubernetes(Box::<KubernetesSettings>::default()),
        resources: Resources { cpus: 1, memory_mb: 256, ..Resources::default() },
        owner: own.owner,
        worker: own.worker,
        scratch: scratch.to_owned(),
        ca_bundle: ca_bundle(),
        real_shell: true,
    }
}

/// Runs the checks that `is_chosen` names, and prints how long each took.
async fn run_checks(subject: &ProviderUnderTest, is_chosen: impl Fn(&str) -> bool) {
    let mut failed = Vec::new();
    for check in CHECKS.iter().filter(|check| is_chosen(check.name)) {
        let began = std::time::Instant::now();
        if let Err(reason) = contract::run_one(subject, *check).await {
            failed.push(format!("{}: {reason}", check.name));
        }
        rollout_tests::print_notice(&format!("{}: {:.1?}", check.name, began.elapsed()));
    }
    assert!(failed.is_empty(), "{} checks failed:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_provider_passes_contract() {
    let scratch = tempfile::tempdir().expect("a directory");
    let fixture = contract_fixture();
    let subject = subject(Arc::clone(&fixture.provider), IMAGE, scratch.path());
    run_checks(&subject, |_| true).await;
    assert_eq!(fixture.double.pods(), Vec::<serde_json::Value>::new(), "nothing is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_provider_passes_contract_over_older_exec_protocol() {
    let scratch = tempfile::tempdir().expect("a directory");
    let fixture = contract_fixture();
    fixture.double.faults().exec_protocols("v4");
    let subject = subject(Arc::clone(&fixture.provider), IMAGE, scratch.path());
    run_checks(&subject, is_about_streams).await;
}

/// Whether a check is about what the exec protocol carries.
fn is_about_streams(name: &str) -> bool {
    ["output", "upload", "reading", "exit_code", "standard_input", "archive"]
        .iter()
        .any(|part| name.contains(part))
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_provider_passes_contract_on_real_cluster() {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(kubeconfig) = variable(KUBECONFIG) else {
        report_ignored(&format!("needs a cluster, named by {KUBECONFIG}"));
        return;
    };
    let image = variable(CLUSTER_IMAGE).unwrap_or_else(|| "docker.io/library/debian:12".to_owned());
    let scratch = tempfile::tempdir().expect("a directory");
    let options = KubernetesOptions {
        kubeconfig: Some(PathBuf::from(kubeconfig)),
        namespace: variable(CLUSTER_NAMESPACE),
        ..KubernetesOptions::default()
    };
    let provider = provider_with(options, Some(ca_bundle()));
    let subject = subject(provider, &image, scratch.path());
    run_checks(&subject, |name| !WITHOUT_POLICIES.contains(&name)).await;
}
