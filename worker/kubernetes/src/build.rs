//! One build of an image for the whole cluster: found in its record, waited for, or made here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use rollout_environment::failed_builds::{FailedBuildLog, ImageFailure};
use rollout_environment::{
    BuildProxies, EnvironmentLabels, ExecCommand, Failure, FailureKind, Image, Upload,
};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::spec::environment::{KubernetesSettings, ProviderSpec};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Shared;
use super::build_files::{dockerfile, pack};
use super::build_log::BuildLog;
use super::build_pod::{
    BUNDLE_FILE, BuildInputs, CONTEXT_DIR, build_command, build_pod, command_failure,
};
use super::cluster::Cluster;
use super::image_record::{BuildClaim, ObservedClaim, RecordKey};
use super::labels::{PodRole, ROLE};
use super::options::BuilderOptions;
use super::pod::KubePod;
use super::remove::PodId;
use super::rights::Right;
use super::settings::PodSettings;

/// Time between two looks at the claim of another worker.
const POLL_PAUSE: Duration = Duration::from_secs(1);

/// Renewals of a claim before it lapses: several may fail in a row.
const RENEWALS: u32 = 6;

/// Ends of the names of hosts in a cluster, which no proxy outside of it knows.
const CLUSTER_HOSTS: [&str; 2] = [".svc", ".cluster.local"];

/// Pods of one build, if the cluster ends them.
const MAX_PODS: u32 = 3;

/// A build that callers wait for.
#[derive(Debug)]
pub(super) struct ImageBuilder {
    pub(super) shared: Arc<Shared>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) options: BuilderOptions,
    pub(super) digest: Digest,
    /// The context.
    pub(super) dir: PathBuf,
    pub(super) reference: String,
    /// The run that asks for a new build.
    pub(super) force: Option<RunId>,
    /// Limit of the build, from the start of its pod, and of each wait before it.
    pub(super) timeout: Duration,
    /// Proxies of the commands of the build, and of the builder itself.
    pub(super) proxies: BuildProxies,
    pub(super) labels: EnvironmentLabels,
}

/// The callers of a build.
pub(super) type BuildCallers = oneshot::Sender<Result<Image, ImageFailure>>;

/// Why a build was stopped.
enum StopReason {
    /// Another worker has the claim.
    ClaimLost,
    /// No caller waits any more.
    Cancelled,
}

/// The result of a claimed build.
enum BuildEnd {
    Stopped(StopReason),
    Ended(Result<(), ImageFailure>),
}

impl ImageBuilder {
    /// Builds the image, unless its record names it or another worker builds it. Leaves no pod.
    pub(super) async fn run(&self, callers: &mut BuildCallers) -> Result<Image, ImageFailure> {
        loop {
            let mut claim = tokio::select! {
                claimed = self.find_or_claim() => match claimed.map_err(builder_failure)? {
                    Some(claim) => claim,
                    None => return Ok(self.image(false)),
                },
                () = sleep(self.timeout) => {
                    return Err(self.waited("another worker builds it"));
                }
                () = callers.closed() => return Err(cancelled().into()),
            };
            let record = self.record();
            let ended = Box::pin(self.build_claimed(&mut claim, callers)).await;
            match ended {
                BuildEnd::Ended(Ok(())) => {
                    let run = self.labels.run;
                    match record.finish(&mut claim, &self.reference, run).await {
                        Ok(true) => return Ok(self.image(true)),
                        Ok(false) => {}
                        Err(failure) => {
                            record.release(&mut claim).await;
                            return Err(builder_failure(failure).into());
                        }
                    }
                }
                BuildEnd::Stopped(StopReason::ClaimLost) => {
                    tracing::warn!("another worker builds the image {}", self.reference);
                }
                BuildEnd::Ended(Err(failure)) => {
                    record.release(&mut claim).await;
                    return Err(failure);
                }
                BuildEnd::Stopped(StopReason::Cancelled) => {
                    record.release(&mut claim).await;
                    return Err(cancelled().into());
                }
            }
        }
    }

    fn record(&self) -> RecordKey<'_> {
        RecordKey { cluster: &self.cluster, digest: &self.digest }
    }

    fn image(&self, made: bool) -> Image {
        let reference = self.cluster.options.mirrored(&self.reference);
        Image { reference, made, build: None }
    }

    fn late(&self) -> ImageFailure {
        let text = format!("the build took longer than {:?}", self.timeout);
        Failure::new(FailureKind::TimedOut, text).into()
    }

    /// The failure of a wait for a build that did not begin here.
    fn waited(&self, why: &str) -> ImageFailure {
        let text = format!("waited {:?} for the build of an image: {why}", self.timeout);
        let failure = Failure::new(FailureKind::Service, text);
        ImageFailure { before_build: true, ..failure.into() }
    }

    /// The claim of this worker, or `None` if the image is there.
    async fn find_or_claim(&self) -> Result<Option<BuildClaim>, Failure> {
        let record = self.record();
        let lapses_after = Duration::from_secs(self.options.takeover_after_sec);
        let mut observed = ObservedClaim::default();
        loop {
            let found = record.find().await?;
            if found.as_ref().is_some_and(|found| found.names(&self.reference, self.force)) {
                return Ok(None);
            }
            let is_free = found
                .as_ref()
                .is_none_or(|found| !found.is_claimed() || observed.is_lapsed(found, lapses_after));
            if is_free && let Some(claim) = record.claim(found.as_ref()).await? {
                return Ok(Some(claim));
            }
            sleep(POLL_PAUSE.min(lapses_after / 2)).await;
        }
    }

    /// Builds with a claim, and renews it.
    async fn build_claimed(&self, claim: &mut BuildClaim, callers: &mut BuildCallers) -> BuildEnd {
        if let Some(name) = claim.replaced_pod.take() {
            self.remove_replaced(&name).await;
        }
        let name = claim.pod.clone();
        let mut stop = pin!(self.until_stopped(claim, callers));
        for pods in 1.. {
            let built = match Box::pin(self.build_in_pod(&name, stop.as_mut())).await {
                Ok(BuildEnd::Ended(built)) => built,
                Ok(stopped) => return stopped,
                Err(failure) => Err(failure.into()),
            };
            match built {
                Err(failure) if failure.kind == FailureKind::Gone && pods < MAX_PODS => {
                    tracing::info!("building the image again: {}", failure.message);
                }
                built => return BuildEnd::Ended(built),
            }
        }
        unreachable!("the last pod ends the loop")
    }

    /// Renews the claim until the build has to stop.
    async fn until_stopped(
        &self,
        claim: &mut BuildClaim,
        callers: &mut BuildCallers,
    ) -> StopReason {
        let record = self.record();
        let lapses_after = Duration::from_secs(self.options.takeover_after_sec);
        let renewing = async {
            loop {
                sleep(lapses_after / RENEWALS).await;
                match record.renew(claim).await {
                    Ok(true) => {}
                    Ok(false) => return StopReason::ClaimLost,
                    Err(failure) => tracing::debug!("{}", failure.chain()),
                }
            }
        };
        tokio::select! {
            reason = renewing => reason,
            () = callers.closed() => StopReason::Cancelled,
        }
    }

    /// Runs the build in a pod, which is removed.
    async fn build_in_pod(
        &self,
        name: &str,
        mut stop: std::pin::Pin<&mut impl Future<Output = StopReason>>,
    ) -> Result<BuildEnd, Failure> {
        let cluster = &self.cluster;
        // The settings of a job are not those of other jobs, which use the same image.
        let defaults = ProviderSpec::Kubernetes(Box::<KubernetesSettings>::default());
        let settings = PodSettings::resolve(&defaults, &cluster.options);
        let settings = settings.map_err(builder_failure)?;
        let (labels, now) = (&self.labels, cluster.now().await);
        let manifest = build_pod(cluster, &self.options, labels, name.to_owned(), &settings, now)?;
        let pending = tokio::select! {
            permit = cluster.admission.admit() => permit,
            reason = &mut stop => return Ok(BuildEnd::Stopped(reason)),
            () = sleep(self.timeout) => {
                let failure = self.waited("too many pods of this worker wait for their start");
                return Ok(BuildEnd::Ended(Err(failure)));
            }
        };
        // Not interrupted: the cluster may have created the pod.
        let mut creating = pin!(self.shared.create_pod(cluster, &manifest));
        let (made, stopped) = tokio::select! {
            made = &mut creating => (made, None),
            reason = &mut stop => (creating.await, Some(reason)),
        };
        let (made, stopped) = match (made, stopped) {
            (Ok(made), stopped) => (made, stopped),
            (Err(_), Some(reason)) => return Ok(BuildEnd::Stopped(reason)),
            (Err(failure), None) => {
                return Ok(BuildEnd::Ended(Err(start_failure(failure, false))));
            }
        };
        let pod = self.shared.adopt_pod(cluster, made, BTreeMap::new(), "/bin/sh");
        let ended = match stopped {
            Some(reason) => BuildEnd::Stopped(reason),
            None => tokio::select! {
                built = self.build_with(&pod, pending) => BuildEnd::Ended(built),
                reason = &mut stop => BuildEnd::Stopped(reason),
            },
        };
        self.shared.leftovers.remove_or_defer(cluster, pod.id()).await;
        Ok(ended)
    }

    async fn build_with(
        &self,
        pod: &KubePod,
        pending: tokio::sync::SemaphorePermit<'_>,
    ) -> Result<(), ImageFailure> {
        if let Err(failure) = pod.wait_started().await {
            let is_placed = pod.watched.state().is_some_and(|state| state.is_scheduled);
            return Err(start_failure(failure, is_placed));
        }
        drop(pending);
        let built = tokio::time::timeout(self.timeout, self.build_started(pod)).await;
        built.unwrap_or_else(|_| Err(self.late()))
    }

    /// Builds in a pod that runs.
    async fn build_started(&self, pod: &KubePod) -> Result<(), ImageFailure> {
        let workdir = pod.prepare(None, &[]).await.map_err(builder_failure)?.workdir;
        let packed = pack(self.dir.clone()).await?;
        let context =
            Upload::Archive { path: CONTEXT_DIR.to_owned(), tar: packed.path().to_owned() };
        let mut uploads = vec![context];
        let (options, no_cache) = (&self.options, self.force.is_some());
        let registry = format!("https://{}", options.registry);
        let proxies = &self.proxies.beside(&CLUSTER_HOSTS);
        // It fetches base images, and reaches what the operator names without a proxy.
        let named = [registry.as_str(), self.cluster.server.as_str()].into_iter();
        let mut env = proxies.of_builder(named.chain(options.buildkit.as_deref()));
        let bundle = self.shared.ca_bundle.as_ref();
        let has_bundle = bundle.is_some();
        let sent = dockerfile(self.dir.clone(), has_bundle, options).await?;
        if let Some(bundle) = bundle {
            let (path, bytes) = (BUNDLE_FILE.to_owned(), bundle.pem().clone());
            uploads.push(Upload::File { path, bytes, executable: false });
            env.insert("SSL_CERT_FILE".to_owned(), BUNDLE_FILE.to_owned());
        }
        uploads.extend(sent.uploads.iter().cloned());
        pod.copy_to(uploads).await.map_err(builder_failure)?;
        drop(packed);
        let reference = self.reference.as_str();
        let proxy_key = &self.shared.proxy_key;
        let dockerfile = &sent;
        let inputs =
            BuildInputs { reference, no_cache, proxies, proxy_key, has_bundle, dockerfile };
        let argv = build_command(options, inputs);
        let command = ExecCommand { argv, env, workdir: None, user: None };
        let log = Arc::new(BuildLog::default());
        let exit = pod.exec(command, &workdir, log.clone()).await.map_err(builder_failure)?;
        if exit.code == 0 {
            return Ok(());
        }
        let mut failure = ImageFailure::from(command_failure(exit.code, &log));
        if pod.is_oom_killed() {
            failure.kind = FailureKind::Service;
            failure.message.push_str("\nThe memory limit ended the build: raise `resources`");
        }
        failure.log = FailedBuildLog::save(log.bytes()).await;
        Err(failure)
    }

    /// Removes the pod of a build whose worker is gone.
    async fn remove_replaced(&self, name: &str) {
        let namespace = &self.cluster.namespace;
        let pods = self.cluster.pods(namespace);
        let what = format!("cannot look for the pod {name}");
        match self.cluster.call(Right::to("get", &pods), &what, || pods.get_opt(name)).await {
            Ok(Some(pod))
                if pod.labels().get(ROLE).map(String::as_str) == Some(PodRole::Build.as_str()) =>
            {
                let id = PodId::of(&pod, namespace);
                self.shared.leftovers.remove_or_defer(&self.cluster, id).await;
            }
            Ok(_) => {}
            // Its lease ends, too.
            Err(failure) => tracing::debug!("{}", failure.chain()),
        }
    }
}

/// A builder or a record that cannot be used is the operator's fault, not that of a task.
fn builder_failure(mut failure: Failure) -> Failure {
    use FailureKind::{NotStarted, Refused, Resources, Unsupported, Unusable};
    if matches!(failure.kind, Refused | Unsupported | NotStarted | Resources | Unusable) {
        failure.kind = FailureKind::Service;
    }
    failure.message = format!("cannot use the builder of images: {}", failure.message);
    failure
}

/// The failure of a builder's pod that did not start. Room that others hold at present, in a quota
/// or on the nodes, is no fault of the builder.
fn start_failure(failure: Failure, is_placed: bool) -> ImageFailure {
    let before_build = !is_placed && failure.kind == FailureKind::Service;
    ImageFailure { before_build, ..builder_failure(failure).into() }
}

fn cancelled() -> Failure {
    Failure::new(FailureKind::Bug, "the build of an image was cancelled")
}
