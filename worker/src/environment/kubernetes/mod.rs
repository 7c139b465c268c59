//! Environments as pods of a Kubernetes cluster, through its API.
//!
//! * `options`, `settings`: settings of the operator and of a job; `manifest`, `labels`: pods from
//!   them.
//! * `cluster`, `failure`: the connection, and the classification of the API's errors.
//! * `create`, `start`, `pod_state`, `watch`, `admission`: a pod from its creation until its
//!   container runs. `start` decides, the others observe.
//! * `pod`, `stream`, `frames`, `scripts`: calls to a running pod, and their repetition.
//! * `exec`, `kill`, `copy`: commands, the end of everything they started, files in and out.
//! * `network`: access to the cluster's network.
//! * `images`, `image_record`, `build`, `build_pod`, `build_log`: names of images, and builds, each
//!   once for the cluster.
//! * `services`: compose files; `service_images`, `service_containers`: images and containers of
//!   services.
//! * `remove`, `reap`, `lease`: the end of pods, also of those whose owner is gone; `server_clock`:
//!   the clock of leases.

mod admission;
mod build;
mod build_log;
mod build_pod;
mod cluster;
mod copy;
mod create;
mod exec;
mod failure;
mod frames;
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
mod pod_state;
mod reap;
mod remove;
mod scripts;
mod server_clock;
mod service_containers;
mod service_images;
mod services;
mod settings;
mod start;
mod stream;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use rollout_protocol::record::EnforcedLimits;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::task::NetworkPolicy;
use rollout_protocol::wire::heartbeat::EnvironmentCapacity;
use serde_json::json;
use tokio::sync::oneshot;

use self::cluster::{Cluster, KubeClient};
use self::images::ImageBuilds;
use self::labels::{NETWORK, NO_NETWORK, PRESERVED, PodRole, ROLE};
use self::network::{NetworkPolicies, PodNetwork};
use self::pod::KubePod;
use self::remove::DeferredPods;
use self::service_containers::PodService;
use self::service_images::PreparedServices;
use self::settings::PodSettings;
use self::watch::PodWatch;
use super::{
    ByteStream, CommandExit, CreateRequest, DeadOwners, Environment, EnvironmentLabels,
    ExecCommand, Failure, FailureKind, Image, ImageRequest, ListenerRoute, OutputSink, Provider,
    ReapReport, Upload,
};
use crate::dependency::Dependency;
use crate::supervise::{self, Task};

pub use self::options::{BuilderOptions, KubernetesOptions, NetworkEnforcement, OptionsSource};
pub use self::services::check as check_compose;

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
    leftovers: DeferredPods,
    policies: NetworkPolicies,
    builds: ImageBuilds,
    lease: OnceLock<Task<()>>,
    tasks: BackgroundTasks,
}

/// The watch of each namespace.
#[derive(Debug, Default)]
struct Watches(Mutex<HashMap<String, PodWatch>>);

impl KubernetesProvider {
    /// A provider with the operator's options; reads and sends nothing yet.
    pub fn new(source: OptionsSource) -> Self {
        let instance = format!("{:016x}", rand::random::<u64>());
        let shared = Shared {
            client: KubeClient::new(source, instance),
            watches: Arc::default(),
            leftovers: DeferredPods::default(),
            policies: NetworkPolicies::default(),
            builds: ImageBuilds::default(),
            lease: OnceLock::new(),
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
        cluster.call("cannot list pods", pods.list(&first)).await?;
        Ok(EnvironmentCapacity::default())
    }

    fn dependency(&self) -> Option<&Dependency> {
        Some(self.shared.client.service())
    }

    async fn remove_deferred(&self) {
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
    async fn create(&self, request: CreateRequest) -> Result<Box<dyn Environment>, Failure> {
        let shared = Arc::clone(&self.shared);
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
        if !self.shared.client.names_cluster()? {
            return Ok(ReapReport::default());
        }
        let cluster = self.shared.client.cluster().await?;
        self.shared.leftovers.retry_all(cluster).await;
        reap::reap(cluster, dead).await
    }
}

/// A pod that is not created yet.
struct PlannedPod {
    cluster: Arc<Cluster>,
    settings: PodSettings,
    services: Option<PreparedServices>,
    manifest: Pod,
    /// Whether it has a network at first.
    open: bool,
    /// Whether it never has one.
    denied: bool,
}

/// The caller of a creation.
type Caller = oneshot::Sender<Result<PodEnvironment, Failure>>;

impl Shared {
    /// Creates an environment. Waits before and after the creation of the pod end when the caller
    /// does.
    async fn create(
        self: &Arc<Self>,
        request: CreateRequest,
        caller: &mut Caller,
    ) -> Result<PodEnvironment, Failure> {
        let planned = tokio::select! {
            planned = Box::pin(self.plan(&request)) => planned?,
            () = caller.closed() => return Err(cancelled()),
        };
        let PlannedPod { cluster, settings, services, manifest, open, denied } = planned;
        let pending = tokio::select! {
            permit = cluster.admission.admit() => permit,
            () = caller.closed() => return Err(cancelled()),
        };
        let made = create::create_pod(&cluster, &manifest).await?;
        let pod = self.adopt_with_services(&cluster, &made, request.env, services.as_ref());
        let started = tokio::select! {
            started = bring_up(&pod, request.workdir.as_deref(), request.uploads, pending) => started,
            () = caller.closed() => Err(cancelled()),
        };
        match started {
            Ok(workdir) => {
                let limits = manifest::enforced_limits(&request.resources);
                let is_open = tokio::sync::Mutex::new(Some(open));
                let service_with_networks =
                    services.and_then(|services| services.plan.service_with_networks);
                let network = PodNetwork { is_denied: denied, is_open, service_with_networks };
                let services = PodService::all(&pod);
                let (pod, shared) = (Arc::new(pod), Arc::clone(self));
                let labels = request.labels;
                Ok(PodEnvironment {
                    pod,
                    services,
                    shared,
                    workdir,
                    limits,
                    network,
                    labels,
                    settings,
                })
            }
            Err(failure) => {
                self.leftovers.remove_or_defer(&cluster, pod.id()).await;
                Err(failure)
            }
        }
    }

    /// Finds out all that the pod of an environment needs, and builds the images of its services.
    async fn plan(self: &Arc<Self>, request: &CreateRequest) -> Result<PlannedPod, Failure> {
        let cluster = Arc::clone(self.client.cluster().await?);
        let settings = PodSettings::resolve(&request.settings, &cluster.options)?;
        let services = self.prepare_services(&cluster, request).await?;
        let denied = settings.network_denied
            || services.as_ref().is_some_and(|services| services.plan.has_no_network);
        let open = network::is_open(&request.network)? && !denied;
        let namespace = settings.namespace.clone().unwrap_or_else(|| cluster.namespace.clone());
        if !open {
            let named = services.as_ref().and_then(|s| s.plan.service_with_networks.as_ref());
            network::refuse_partial_closing(named.filter(|_| !denied))?;
            self.require_policies(&cluster, &request.labels, &settings).await?;
        }
        let now = cluster.now().await;
        let mut manifest = manifest::pod(
            request,
            &settings,
            &cluster.options,
            &cluster.creator,
            &namespace,
            now,
            services.as_ref().map(|services| services.setup(&settings, &cluster.options)),
        )?;
        if !open {
            let labels = manifest.metadata.labels.get_or_insert_default();
            labels.insert(NETWORK.to_owned(), NO_NETWORK.to_owned());
        }
        Ok(PlannedPod { cluster, settings, services, manifest, open, denied })
    }

    /// Adopts the pod of an environment, whose services may have variables for it.
    fn adopt_with_services(
        &self,
        cluster: &Arc<Cluster>,
        made: &Pod,
        env: BTreeMap<String, String>,
        services: Option<&PreparedServices>,
    ) -> KubePod {
        let shell = manifest::shell(&cluster.options);
        let Some(services) = services else { return self.adopt_pod(cluster, made, env, shell) };
        let main = &services.plan.main;
        let env = main.env.clone().into_iter().chain(env).collect();
        let mut pod = self.adopt_pod(cluster, made, env, shell);
        pod.services = services.plan.containers().into();
        pod.has_own_process = main.has_own_process();
        pod.runs_by_itself = main.runs_by_itself();
        pod
    }

    /// Begins to watch a pod of this worker, and to renew its lease.
    fn adopt_pod(
        &self,
        cluster: &Arc<Cluster>,
        made: &Pod,
        env: BTreeMap<String, String>,
        shell: &'static str,
    ) -> KubePod {
        self.lease.get_or_init(|| {
            let renewing = lease::run(Arc::clone(cluster), Arc::clone(&self.watches));
            supervise::spawn("kubernetes lease renewal", renewing)
        });
        let namespace = made.metadata.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| cluster.namespace.clone());
        self.watches.with(cluster, &namespace, |watch| {
            KubePod::new(Arc::clone(cluster), watch, made, env, shell)
        })
    }

    /// Makes sure that pods with the label have no network in the namespace of `settings`.
    async fn require_policies(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        labels: &EnvironmentLabels,
        settings: &PodSettings,
    ) -> Result<(), Failure> {
        let namespace = settings.namespace.as_ref().unwrap_or(&cluster.namespace);
        let probe = || self.probe_policies(cluster, labels, settings, namespace);
        Box::pin(self.policies.require(cluster, namespace, settings, probe)).await
    }

    /// Probes network policies in a task of its own, which removes its pod also when the caller is
    /// gone.
    async fn probe_policies(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        labels: &EnvironmentLabels,
        settings: &PodSettings,
        namespace: &str,
    ) -> Result<bool, Failure> {
        let (options, creator) = (&cluster.options, &cluster.creator);
        let settings = &network::probe_settings(settings, options)?;
        let name = format!("rollout-probe-{}-{:08x}", creator.instance, rand::random::<u32>());
        let now = cluster.now().await;
        let mut metadata = manifest::metadata(labels, name, options, creator, namespace, now)?;
        let role = PodRole::Probe.as_str().to_owned();
        metadata.labels.get_or_insert_default().insert(ROLE.to_owned(), role);
        let container = manifest::small_container(&options.probe_image, settings, options);
        let pod = manifest::bare_pod(metadata, container, settings);
        let (shared, cluster) = (Arc::clone(self), Arc::clone(cluster));
        let (answer, answered) = oneshot::channel();
        self.tasks.track(supervise::spawn("kubernetes network probe", async move {
            let result = Box::pin(shared.probe_with(&cluster, &pod)).await;
            // A later caller probes again.
            drop(answer.send(result));
        }));
        answered.await.unwrap_or_else(|_| {
            Err(Failure::new(FailureKind::Bug, "the probe of network policies was interrupted"))
        })
    }

    async fn probe_with(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        manifest: &Pod,
    ) -> Result<bool, Failure> {
        let made = create::create_pod(cluster, manifest).await.map_err(network::probe_failure)?;
        let pod = self.adopt_pod(cluster, &made, BTreeMap::new(), "/bin/sh");
        let result = match pod.wait_started().await {
            Ok(()) => network::probe_in(&pod).await,
            Err(failure) => Err(network::probe_failure(failure)),
        };
        self.leftovers.remove_or_defer(cluster, pod.id()).await;
        result
    }
}

/// Waits for the container, which ends the place of the pod among those that wait, and places the
/// files. Returns the working directory.
async fn bring_up(
    pod: &KubePod,
    workdir: Option<&str>,
    uploads: Vec<Upload>,
    pending: tokio::sync::SemaphorePermit<'_>,
) -> Result<String, Failure> {
    pod.wait_started().await?;
    drop(pending);
    let workdir = pod.prepare(workdir).await?;
    if !uploads.is_empty() {
        pod.copy_to(uploads).await?;
    }
    Ok(workdir)
}

fn cancelled() -> Failure {
    Failure::new(FailureKind::Bug, "the creation of a pod was cancelled")
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

/// One pod.
#[derive(Debug)]
struct PodEnvironment {
    pod: Arc<KubePod>,
    services: Vec<PodService>,
    shared: Arc<Shared>,
    workdir: String,
    limits: EnforcedLimits,
    network: PodNetwork,
    labels: EnvironmentLabels,
    settings: PodSettings,
}

#[async_trait]
impl Environment for PodEnvironment {
    fn id(&self) -> &str {
        &self.pod.name
    }

    fn workdir(&self) -> &str {
        &self.workdir
    }

    fn limits(&self) -> EnforcedLimits {
        self.limits
    }

    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        self.pod.copy_to(uploads).await
    }

    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        self.pod.copy_from(path).await
    }

    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        self.pod.exec(command, &self.workdir, output).await
    }

    async fn kill_processes(&self) -> Result<(), Failure> {
        self.pod.kill_processes().await
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        let open = network::is_open(policy)?;
        if self.network.is_denied {
            return Ok(());
        }
        let mut now = self.network.is_open.lock().await;
        if *now == Some(open) {
            return Ok(());
        }
        if !open {
            network::refuse_partial_closing(self.network.service_with_networks.as_ref())?;
            let cluster = &self.pod.cluster;
            self.shared.require_policies(cluster, &self.labels, &self.settings).await?;
        }
        // If this future is dropped, the state stays unknown.
        *now = None;
        self.pod.set_network_label(open).await?;
        *now = Some(open);
        drop(now);
        Ok(())
    }

    fn dependency(&self) -> Option<&Dependency> {
        Some(self.pod.cluster.service())
    }

    fn service(&self, name: &str) -> Option<&dyn Environment> {
        let service = self.services.iter().find(|service| service.service == name)?;
        Some(service)
    }

    async fn listener_route(&self) -> Result<ListenerRoute, Failure> {
        let given = self.pod.cluster.options.gateway_address;
        let own = || manifest::own_address(|name| std::env::var(name).ok());
        given.or_else(own).map(ListenerRoute::HostAddress).ok_or_else(|| {
            let text = "pods know no address of the worker: set `ROLLOUT_POD_IP` in the worker's pod, \
                        or `gateway_address` in the file of `--kubernetes-config`";
            Failure::new(FailureKind::Unsupported, text)
        })
    }

    /// The processes of images do not run in pods, only those that the task's file names.
    fn has_own_programs(&self) -> bool {
        self.pod.has_own_process
    }

    async fn oom_killed(&self) -> bool {
        self.pod.is_oom_killed()
    }

    async fn check_storage(&self) -> Result<(), Failure> {
        match self.pod.watched.state().and_then(|state| state.lost()) {
            Some(failure) if failure.kind == FailureKind::StorageExceeded => Err(failure),
            _ => Ok(()),
        }
    }

    async fn stop(&self) -> Result<(), Failure> {
        self.pod.stop().await
    }

    async fn destroy(&self) -> Result<(), Failure> {
        remove::remove(&self.pod.cluster, &self.pod.id()).await?;
        self.pod.watched.update(None);
        Ok(())
    }

    /// The cluster still ends it at its active deadline, which cannot be lifted.
    async fn preserve(&self) -> Result<String, Failure> {
        let pod = &self.pod;
        let what = format!("cannot preserve the pod {}", pod.name);
        let patch = json!({"metadata": {
            "uid": pod.uid,
            "labels": {PRESERVED: "true"},
            "annotations": {labels::ALIVE_UNTIL: null},
            "ownerReferences": null,
        }});
        let pods = pod.cluster.pods(&pod.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patching = pods.patch(&pod.name, &params, &patch);
        let _patched: Pod = pod.cluster.call(&what, patching).await?;
        let (namespace, name, shell) = (&pod.namespace, &pod.name, pod.shell);
        Ok(format!("kubectl exec -it -n {namespace} {name} -c {} -- {shell}", manifest::MAIN))
    }
}
