//! Environments as pods of a Kubernetes cluster, through its API.
//!
//! * `options`, `settings`: settings of the operator and of a job; `manifest`, `labels`: pods from
//!   them.
//! * `cluster`, `rights`, `failure`: the connection, the rights that the API has granted, and the
//!   classification of its errors.
//! * `creation`, `create`, `start`, `pod_state`, `watch`, `admission`: an environment, and its pod
//!   from the creation until the container runs. `start` decides, the last three observe.
//! * `pod_environment`, `probe_pod`, `image_facts`: pods as environments, pods that find something out,
//!   and what pods have shown of their images. `helper`: failures for the operator's programs in pods.
//! * `pod`, `stream`, `frames`, `scripts`: calls to a running pod, and their repetition.
//! * `exec`, `kill`, `copy`: commands, the end of everything they started, files in and out.
//! * `network`: access to the cluster's network.
//! * `images`, `image_record`, `build`, `build_pod`, `build_files`, `build_log`: names of images, and
//!   builds, each once for the cluster.
//! * `services`: compose files; `service_images`, `service_containers`: images and containers of
//!   services.
//! * `remove`, `reap`, `lease`: the end of pods, also of those whose owner is gone; `server_clock`:
//!   the clock of leases.

mod admission;
mod build;
mod build_files;
mod build_log;
mod build_pod;
mod cluster;
mod copy;
mod create;
mod creation;
mod exec;
mod failure;
mod frames;
mod helper;
mod image_facts;
mod image_record;
mod images;
mod kill;
mod labels;
mod lease;
mod manifest;
mod marked_output;
mod network;
mod options;
mod pod;
mod pod_environment;
mod pod_state;
mod probe_pod;
mod reap;
mod remove;
mod rights;
mod scripts;
mod server_clock;
mod service_containers;
mod service_images;
mod services;
mod settings;
mod start;
mod stream;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::dependency::Dependency;
use rollout_base::supervise::{self, Task};
use rollout_environment::descriptor::BuiltProvider;
use rollout_environment::{
    CaBundle, CreateRequest, DeadOwners, Environment, Failure, FailureKind, Image, ImageRequest,
    Provider, ProxyKey, ReapReport,
};
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::heartbeat::EnvironmentCapacity;
use tokio::sync::oneshot;

use self::cluster::{Cluster, KubeClient};
use self::image_facts::KnownImages;
use self::images::ImageBuilds;
use self::network::NetworkPolicies;
use self::remove::DeferredPods;
use self::rights::Right;
use self::watch::PodWatch;

pub use self::options::{BuilderOptions, KubernetesOptions, NetworkEnforcement, OptionsSource};

/// The provider, for the table of a program.
pub static PROVIDER: BuiltProvider = BuiltProvider {
    kind: ProviderKind::Kubernetes,
    make: |paths| {
        let options = OptionsSource::of_file(paths.kubernetes_config);
        let proxy_key = ProxyKey::in_directory(paths.image_locks);
        Arc::new(KubernetesProvider::new(options, paths.ca_bundle.cloned(), proxy_key))
    },
    check_services: Some(services::check),
    check_dockerfile: None,
};

/// Creates environments as pods. The first call connects, so that an API server may come up after
/// its worker.
#[derive(Debug)]
pub struct KubernetesProvider {
    shared: Arc<Shared>,
}

/// Creations, builds and probes, which continue without their callers until they have cleaned up.
#[derive(Debug, Default)]
struct BackgroundTasks(Mutex<Vec<Task<()>>>);

impl BackgroundTasks {
    fn track(&self, task: Task<()>) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }
}

/// State that tasks in the background share with the provider.
#[derive(Debug)]
struct Shared {
    client: KubeClient,
    watches: Arc<Watches>,
    leftovers: Arc<DeferredPods>,
    policies: NetworkPolicies,
    builds: ImageBuilds,
    known_images: KnownImages,
    /// The CA bundle of environments and builds.
    ca_bundle: Option<CaBundle>,
    /// The key of the digests of the proxies of builds.
    proxy_key: ProxyKey,
    lease: OnceLock<Task<()>>,
    removals: OnceLock<Task<()>>,
    tasks: BackgroundTasks,
}

/// The watch of each namespace.
#[derive(Debug, Default)]
struct Watches(Mutex<HashMap<String, PodWatch>>);

impl KubernetesProvider {
    /// A provider with the operator's options, a CA bundle for environments and the key of the digests of
    /// the proxies of builds; reads and sends nothing yet.
    pub fn new(source: OptionsSource, ca_bundle: Option<CaBundle>, proxy_key: ProxyKey) -> Self {
        let instance = format!("{:016x}", rand::random::<u64>());
        let shared = Shared {
            client: KubeClient::new(source, instance),
            watches: Arc::default(),
            leftovers: Arc::default(),
            policies: NetworkPolicies::default(),
            builds: ImageBuilds::default(),
            known_images: KnownImages::default(),
            ca_bundle,
            proxy_key,
            lease: OnceLock::new(),
            removals: OnceLock::new(),
            tasks: BackgroundTasks::default(),
        };
        Self { shared: Arc::new(shared) }
    }
}

#[async_trait]
impl Provider for KubernetesProvider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Kubernetes
    }

    fn check_settings(&self) -> Result<(), Failure> {
        self.shared.client.check_options()
    }

    /// A cluster can grow, so no size is too large for it. Fails if the worker may not use it.
    async fn capacity(&self) -> Result<EnvironmentCapacity, Failure> {
        let cluster = self.shared.client.cluster().await?;
        let pods = cluster.pods(&cluster.namespace);
        let first = kube::api::ListParams::default().limit(1);
        let right = Right::to("list", &pods);
        cluster.call(right, "cannot list pods", || pods.list(&first)).await?;
        Ok(EnvironmentCapacity::default())
    }

    fn dependency(&self) -> Option<&Dependency> {
        Some(self.shared.client.service())
    }

    async fn remove_deferred(&self) {
        if self.shared.leftovers.is_empty() {
            return;
        }
        if let Ok(cluster) = self.shared.client.cluster().await {
            self.shared.leftovers.retry_all(cluster).await;
        }
    }

    fn start_limit(&self) -> Duration {
        self.shared.client.start_limit()
    }

    /// Another worker may build it first, and fail.
    fn prepare_limit(&self, build: Duration) -> Duration {
        build.saturating_mul(2)
    }

    async fn prepare_services(&self, request: &CreateRequest) -> Result<(), Failure> {
        if request.compose.is_none() {
            return Ok(());
        }
        let cluster = Arc::clone(self.shared.client.cluster().await?);
        let preparing = self.shared.prepare_services(&cluster, request);
        Box::pin(preparing).await.map(drop)
    }

    async fn prepare(&self, request: ImageRequest) -> Result<Image, Failure> {
        self.shared.prepare_image(request).await
    }

    /// A cancelled creation continues in the background and is undone there, because the cluster may
    /// have created the pod.
    async fn create(&self, mut request: CreateRequest) -> Result<Box<dyn Environment>, Failure> {
        let shared = Arc::clone(&self.shared);
        if let Some(bundle) = &shared.ca_bundle {
            request.uploads.insert(0, bundle.upload());
            if request.compose.is_some() {
                report_services_without_bundle();
            }
        }
        let (mut answer, answered) = oneshot::channel();
        let creation = supervise::spawn("kubernetes create", async move {
            let made = Box::pin(shared.create(request, &mut answer)).await;
            if let Err(Ok(unwanted)) = answer.send(made) {
                let id = unwanted.pod.id();
                shared.leftovers.remove_or_defer(&unwanted.pod.cluster, id).await;
            }
        });
        self.shared.tasks.track(creation);
        match answered.await {
            Ok(made) => Ok(Box::new(made?)),
            Err(_) => Err(Failure::new(FailureKind::Bug, "pod creation was interrupted")),
        }
    }

    async fn reap(&self, dead: &dyn DeadOwners) -> Result<ReapReport, Failure> {
        if !self.shared.client.names_cluster().await? {
            return Ok(ReapReport::default());
        }
        let cluster = self.shared.client.cluster().await?;
        self.shared.leftovers.retry_all(cluster).await;
        reap::reap(cluster, dead).await
    }
}

/// The services of a pod start before files can be placed.
fn report_services_without_bundle() {
    static NOTICE: Once = Once::new();
    NOTICE.call_once(|| {
        tracing::warn!("the services of pods do not have the CA bundle: only their `main` has it");
    });
}

impl Watches {
    /// Calls `use_watch` with the watch of a namespace.
    fn with<T>(
        &self,
        cluster: &Arc<Cluster>,
        namespace: &str,
        use_watch: impl FnOnce(&PodWatch) -> T,
    ) -> T {
        let mut watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = || PodWatch::start(Arc::clone(cluster), namespace.to_owned());
        use_watch(watches.entry(namespace.to_owned()).or_insert_with(start))
    }

    /// Names and identities of all watched pods by namespace.
    fn names(&self) -> Vec<(String, Vec<(String, String)>)> {
        let watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().map(|(namespace, watch)| (namespace.clone(), watch.names())).collect()
    }
}
