//! Creation of environments: what a pod needs, the pod, and its preparation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use rollout_base::supervise;
use rollout_environment::{CaBundle, CreateRequest, Failure, FailureKind};
use tokio::sync::oneshot;

use super::cluster::Cluster;
use super::create::CreatedPod;
use super::image_facts::{self, ImageFacts, ImageUser};
use super::labels::{NETWORK, NO_NETWORK};
use super::network::PodNetwork;
use super::pod::KubePod;
use super::pod_environment::PodEnvironment;
use super::service_containers::PodService;
use super::service_images::PreparedServices;
use super::settings::PodSettings;
use super::{Shared, create, lease, manifest, network, remove};

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

/// A pod that was created.
enum Created {
    Environment(Box<PodEnvironment>),
    /// It was removed: these directories must be volumes.
    NeedsVolumes(BTreeSet<String>),
}

/// The caller of a creation.
type Caller = oneshot::Sender<Result<PodEnvironment, Failure>>;

impl Shared {
    /// Creates an environment. Waits before and after the creation of the pod end when the caller
    /// does.
    pub(super) async fn create(
        self: &Arc<Self>,
        request: CreateRequest,
        caller: &mut Caller,
    ) -> Result<PodEnvironment, Failure> {
        let planned = tokio::select! {
            planned = Box::pin(self.plan(&request)) => planned?,
            () = caller.closed() => return Err(cancelled()),
        };
        let key = image_facts::key(&planned.manifest);
        let mut facts = self.known_images.get(&key);
        let mut replaced = 0;
        loop {
            match Box::pin(self.create_once(&planned, &facts, &request, caller)).await {
                Ok(Created::Environment(made)) => return Ok(*made),
                Ok(Created::NeedsVolumes(more)) => {
                    replaced += 1;
                    facts.add_volumes(more, replaced, &planned.manifest)?;
                }
                Err(failure) => {
                    let name = image_facts::named_user(&failure).filter(|_| facts.user.is_none());
                    let Some(name) = name else { return Err(failure) };
                    facts.user = Some(self.user_of(&planned, &request, name, caller).await?);
                }
            }
            self.known_images.set(&key, facts.clone());
        }
    }

    /// Creates the pod of an environment with what is known of its image.
    async fn create_once(
        self: &Arc<Self>,
        planned: &PlannedPod,
        facts: &ImageFacts,
        request: &CreateRequest,
        caller: &mut Caller,
    ) -> Result<Created, Failure> {
        let PlannedPod { cluster, services, settings, open, .. } = planned;
        let pending = tokio::select! {
            permit = cluster.admission.admit() => permit,
            () = caller.closed() => return Err(cancelled()),
        };
        let mut manifest = planned.manifest.clone();
        facts.apply(&mut manifest);
        let made = self.create_pod(cluster, &manifest).await?;
        let env = request.env.clone();
        let pod = self.adopt_with_services(cluster, made, env, services.as_ref());
        let started = tokio::select! {
            started = self.bring_up(&pod, request, facts, (*open, settings), pending) => started,
            () = caller.closed() => Err(cancelled()),
        };
        match started {
            Ok(Started::Ready { workdir }) => {
                Ok(Created::Environment(Box::new(self.environment(pod, workdir, planned, request))))
            }
            Ok(Started::NeedsVolumes(places)) => {
                self.leftovers.remove_or_defer(cluster, pod.id()).await;
                Ok(Created::NeedsVolumes(places))
            }
            Err(failure) => {
                self.leftovers.remove_or_defer(cluster, pod.id()).await;
                Err(failure)
            }
        }
    }

    /// Waits for the container, which ends the place of the pod among those that wait, and for the end of
    /// its network unless `is_open`. Places the files.
    async fn bring_up(
        &self,
        pod: &KubePod,
        request: &CreateRequest,
        facts: &ImageFacts,
        (is_open, settings): (bool, &PodSettings),
        pending: tokio::sync::SemaphorePermit<'_>,
    ) -> Result<Started, Failure> {
        pod.wait_started().await?;
        drop(pending);
        let places = image_facts::places(&request.uploads);
        let prepared = pod.prepare(request.workdir.as_deref(), &places).await?;
        let mut missing = image_facts::possible_volumes(&prepared.closed, &places);
        missing.retain(|place| !facts.volumes.contains(place));
        if !missing.is_empty() {
            return Ok(Started::NeedsVolumes(missing));
        }
        if !is_open {
            let has_connected = self.policies.have_connected(settings);
            // A program of the image may say anything.
            if pod.until_isolated(has_connected).await? && pod.has_helper() {
                self.policies.note_connected(settings);
            }
        }
        if !request.uploads.is_empty() {
            pod.copy_to(request.uploads.clone()).await?;
        }
        Ok(Started::Ready { workdir: prepared.workdir })
    }

    fn environment(
        self: &Arc<Self>,
        pod: KubePod,
        workdir: String,
        planned: &PlannedPod,
        request: &CreateRequest,
    ) -> PodEnvironment {
        let network = PodNetwork {
            is_denied: planned.denied,
            is_open: tokio::sync::Mutex::new(Some(planned.open)),
            service_with_networks: planned
                .services
                .as_ref()
                .and_then(|services| services.plan.service_with_networks.clone()),
        };
        PodEnvironment {
            services: PodService::all(&pod),
            pod: Arc::new(pod),
            shared: Arc::clone(self),
            workdir,
            limits: manifest::enforced_limits(&request.resources),
            network,
            labels: request.labels.clone(),
            settings: planned.settings.clone(),
        }
    }

    /// The numbers of the user that the image of a planned pod names.
    async fn user_of(
        self: &Arc<Self>,
        planned: &PlannedPod,
        request: &CreateRequest,
        name: &str,
        caller: &mut Caller,
    ) -> Result<ImageUser, Failure> {
        let image = image_facts::image(&planned.manifest).unwrap_or_default();
        let PlannedPod { cluster, settings, .. } = planned;
        let finding = self.find_user(cluster, &request.labels, settings, image, name);
        tokio::select! {
            found = Box::pin(finding) => found,
            () = caller.closed() => Err(cancelled()),
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
            network::warn_of_closing(named.filter(|_| !denied));
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

    /// Adopts the pod of an environment, whose services may have variables for it. Those of the CA bundle
    /// give way to all others.
    fn adopt_with_services(
        &self,
        cluster: &Arc<Cluster>,
        made: CreatedPod,
        env: BTreeMap<String, String>,
        services: Option<&PreparedServices>,
    ) -> KubePod {
        let main = services.map(|services| &services.plan.main);
        let of_bundle = self.ca_bundle.iter().flat_map(|_| CaBundle::variables());
        let of_file = main.map(|main| main.env.clone()).unwrap_or_default();
        let mut env: BTreeMap<String, String> = of_bundle.chain(of_file).chain(env).collect();
        let hosts = services.map(|services| services.plan.service_hosts()).unwrap_or_default();
        hosts.exempt(&mut env);
        let mut pod = self.adopt_pod(cluster, made, env, manifest::shell(&cluster.options));
        pod.service_hosts = Arc::new(hosts);
        let (Some(services), Some(main)) = (services, main) else { return pod };
        pod.services = services.plan.containers().into();
        pod.has_own_process = main.has_own_process();
        pod.runs_by_itself = main.runs_by_itself();
        pod
    }

    /// Creates a pod, and observes it from before its creation on.
    pub(super) async fn create_pod(
        &self,
        cluster: &Arc<Cluster>,
        manifest: &Pod,
    ) -> Result<CreatedPod, Failure> {
        let namespace = manifest.namespace().unwrap_or_else(|| cluster.namespace.clone());
        let name = manifest.name_any();
        let expected = self.watches.with(cluster, &namespace, |watch| watch.expect_pod(&name));
        let pod = Box::pin(create::create_pod(cluster, manifest)).await?;
        Ok(CreatedPod { pod, expected })
    }

    /// Begins to watch a pod of this worker, and to renew its lease. Its removal is repeated if it
    /// fails.
    pub(super) fn adopt_pod(
        &self,
        cluster: &Arc<Cluster>,
        made: CreatedPod,
        env: BTreeMap<String, String>,
        shell: &'static str,
    ) -> KubePod {
        self.lease.get_or_init(|| {
            let renewing = lease::run(Arc::clone(cluster), Arc::clone(&self.watches));
            supervise::spawn("kubernetes lease renewal", renewing)
        });
        self.removals.get_or_init(|| {
            let repeating = remove::repeat(Arc::clone(cluster), Arc::clone(&self.leftovers));
            supervise::spawn("kubernetes removals", repeating)
        });
        KubePod::new(Arc::clone(cluster), made, env, shell)
    }
}

/// A pod that runs.
enum Started {
    /// Its files are in place.
    Ready { workdir: String },
    /// Its user cannot place files there.
    NeedsVolumes(BTreeSet<String>),
}

fn cancelled() -> Failure {
    Failure::new(FailureKind::Bug, "the creation of a pod was cancelled")
}
