//! The provider of pods, on the double of the Kubernetes API.

mod bare_images;
mod commands;
mod contract;
mod image_users;
mod images;
mod leases;
mod losses;
mod many_pods;
mod networks;
mod services;
mod starts;
mod streams;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollout_environment::{
    CaBundle, CreateRequest, Environment, EnvironmentLabels, EnvironmentPurpose, ExecCommand,
    Failure, Image, ImageSource, OutputSink, OutputStream, Owner, Provider as _, ProxyKey,
};
use rollout_kubernetes::{
    KubernetesOptions, KubernetesProvider, NetworkEnforcement, OptionsSource,
};
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::spec::environment::{KubernetesSettings, ProviderSpec};
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;
use rollout_tests::ignored;
use rollout_tests::kube::{ImageFixture, KubeDouble};
use rollout_tests::wait;

/// Image of ordinary pods.
const IMAGE: &str = "registry.test/task:1";

/// Namespace of the pods.
const NAMESPACE: &str = "default";

/// Deadline for anything that should happen at once.
const DEADLINE: Duration = Duration::from_secs(60);

/// A cluster, and a provider that uses it.
struct PodFixture {
    double: KubeDouble,
    provider: Arc<KubernetesProvider>,
}

/// Options for the cluster of a double, with short limits.
fn options(double: &KubeDouble) -> KubernetesOptions {
    KubernetesOptions {
        kubeconfig: Some(double.kubeconfig().to_owned()),
        network_policy_enforced: NetworkEnforcement::Yes,
        schedule_timeout_sec: 3,
        start_timeout_sec: 3,
        network_probe_timeout_sec: 3,
        ..KubernetesOptions::default()
    }
}

fn provider(options: KubernetesOptions) -> Arc<KubernetesProvider> {
    provider_with(options, None)
}

fn provider_with(
    options: KubernetesOptions,
    ca_bundle: Option<CaBundle>,
) -> Arc<KubernetesProvider> {
    let source = OptionsSource::Given(Box::new(options));
    Arc::new(KubernetesProvider::new(source, ca_bundle, ProxyKey::default()))
}

impl PodFixture {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut KubernetesOptions)) -> Self {
        let double = KubeDouble::start();
        double.image(IMAGE, ImageFixture::new());
        let mut options = options(&double);
        change(&mut options);
        Self { provider: provider(options), double }
    }

    async fn create(&self) -> Box<dyn Environment> {
        match self.provider.create(request(IMAGE)).await {
            Ok(environment) => environment,
            Err(failure) => panic!("not created: {}", failure.chain()),
        }
    }

    /// The failure of an environment with an image.
    async fn creation_failure(&self, image: &str) -> Failure {
        let made = tokio::time::timeout(DEADLINE, self.provider.create(request(image))).await;
        let failure = made.expect("it ends").expect_err("not created");
        assert_eq!(self.double.pods(), Vec::<serde_json::Value>::new(), "nothing is left");
        failure
    }
}

/// Labels of an execution of its own.
fn labels() -> EnvironmentLabels {
    EnvironmentLabels {
        run: RunId::from_bytes([1; 16]),
        item: ItemId::for_trial("agent", "dataset", "task", 1),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes(rand::random()),
        worker: "tester".parse().expect("a worker id"),
        owner: Owner::current("/nowhere".into()),
    }
}

fn request(image: &str) -> CreateRequest {
    CreateRequest {
        image: Image::found(image),
        source: ImageSource::Named(image.to_owned()),
        resources: Resources { cpus: 1, memory_mb: 256, ..Resources::default() },
        env: BTreeMap::new(),
        workdir: None,
        network: NetworkPolicy::Public,
        compose: None,
        uploads: Vec::new(),
        settings: ProviderSpec::Kubernetes(Box::<KubernetesSettings>::default()),
        labels: labels(),
        purpose: EnvironmentPurpose::Agent,
    }
}

/// Captured output of a command.
#[derive(Debug, Default)]
struct Captured(Mutex<[Vec<u8>; 2]>);

impl OutputSink for Captured {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        self.0.lock().expect("not poisoned")[stream as usize].extend_from_slice(bytes);
    }
}

impl Captured {
    fn bytes(&self, stream: OutputStream) -> Vec<u8> {
        self.0.lock().expect("not poisoned")[stream as usize].clone()
    }
}

fn shell(script: &str) -> ExecCommand {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    ExecCommand { argv, env: BTreeMap::new(), workdir: None, user: None }
}

/// Runs a script; returns its exit code and its outputs.
async fn run(environment: &dyn Environment, script: &str) -> (i32, Vec<u8>, Vec<u8>) {
    let captured = Arc::new(Captured::default());
    let running = environment.exec(shell(script), captured.clone());
    match tokio::time::timeout(DEADLINE, running).await.expect("it ends") {
        Ok(exit) => {
            let [out, err] = [OutputStream::Stdout, OutputStream::Stderr];
            (exit.code, captured.bytes(out), captured.bytes(err))
        }
        Err(failure) => panic!("`{script}`: {}", failure.chain()),
    }
}

/// The failure of a script.
async fn failure(environment: &dyn Environment, script: &str) -> Failure {
    let running = environment.exec(shell(script), Arc::new(Captured::default()));
    let ended = tokio::time::timeout(DEADLINE, running).await.expect("it ends");
    ended.expect_err("it cannot end")
}

/// Waits until a script succeeds.
async fn eventually(environment: &dyn Environment, script: &str) {
    wait::until_async(DEADLINE, script, async || run(environment, script).await.0 == 0).await;
}
