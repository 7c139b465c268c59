//! Pods of the provider's own that find something out.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rollout_base::supervise;
use rollout_environment::{EnvironmentLabels, Failure, FailureKind};
use tokio::sync::oneshot;

use super::cluster::Cluster;
use super::image_facts::ImageUser;
use super::labels::{PodRole, ROLE};
use super::pod::KubePod;
use super::settings::PodSettings;
use super::{Shared, manifest, network, scripts};

/// The user of pods that only look at an image: it owns nothing.
const NOBODY: i64 = 65_534;

impl Shared {
    /// Makes sure that pods with the label have no network in the namespace of `settings`.
    pub(super) async fn require_policies(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        labels: &EnvironmentLabels,
        settings: &PodSettings,
    ) -> Result<(), Failure> {
        let namespace = settings.namespace.as_ref().unwrap_or(&cluster.namespace);
        let probe = || self.probe_policies(cluster, labels, settings, namespace);
        Box::pin(self.policies.require(cluster, namespace, settings, probe)).await
    }

    /// Probes network policies.
    async fn probe_policies(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        labels: &EnvironmentLabels,
        settings: &PodSettings,
        namespace: &str,
    ) -> Result<bool, Failure> {
        let options = &cluster.options;
        let settings = &network::probe_settings(settings, options)?;
        let metadata = metadata(cluster, labels, "probe", namespace).await?;
        let container = manifest::small_container(&options.probe_image, settings, options);
        let pod = manifest::bare_pod(metadata, container, settings);
        let probe = |pod: Arc<KubePod>| async move { network::probe_in(&pod).await };
        let probed = self.find_out(cluster, pod, "/bin/sh", probe).await;
        probed.map_err(network::probe_failure)
    }

    /// The numbers of a user that an image names. The pod runs as another user, so that it is allowed
    /// where no user may be root.
    pub(super) async fn find_user(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        labels: &EnvironmentLabels,
        settings: &PodSettings,
        image: &str,
        name: &str,
    ) -> Result<ImageUser, Failure> {
        let options = &cluster.options;
        let settings = &PodSettings { run_as_user: Some(NOBODY), ..settings.clone() };
        let namespace = settings.namespace.as_ref().unwrap_or(&cluster.namespace);
        let metadata = metadata(cluster, labels, "user", namespace).await?;
        let shell = manifest::shell(options);
        let container = Container {
            image: Some(image.to_owned()),
            command: Some([shell, "-c", manifest::KEEP_ALIVE].map(str::to_owned).to_vec()),
            ..manifest::small_container(image, settings, options)
        };
        let mut pod = manifest::bare_pod(metadata, container, settings);
        manifest::add_helper(&mut pod, settings, options);
        let user = name.to_owned();
        let look = move |pod: Arc<KubePod>| async move {
            let script = |mark: &str| scripts::user(pod.shell, &user, mark);
            Ok::<_, Failure>(pod.run_script(script).await?.frame)
        };
        let found = self.find_out(cluster, pod, shell, look).await.map_err(|mut failure| {
            let why = &failure.message;
            failure.message = format!("cannot find the user {name} of the image {image}: {why}");
            failure
        })?;
        let refused = |why: &str| {
            let text = format!("the user {name} of the image {image} {why}: set `run_as_user`");
            Failure::new(FailureKind::Refused, text)
        };
        match parse_user(&found) {
            Some(ImageUser { user: 0, .. }) => Err(refused("is root")),
            Some(user) => Ok(user),
            None => Err(refused("is not in its /etc/passwd")),
        }
    }

    /// Calls `find` with a pod of its own, in a task that removes the pod also when the caller is gone.
    async fn find_out<T, F>(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        manifest: Pod,
        shell: &'static str,
        find: impl FnOnce(Arc<KubePod>) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let (shared, cluster) = (Arc::clone(self), Arc::clone(cluster));
        let (answer, answered) = oneshot::channel();
        self.tasks.track(supervise::spawn("kubernetes probe", async move {
            let result = match shared.create_pod(&cluster, &manifest).await {
                Ok(made) => {
                    let pod = shared.adopt_pod(&cluster, made, BTreeMap::new(), shell);
                    let pod = Arc::new(pod);
                    let found = match Box::pin(pod.wait_started()).await {
                        Ok(()) => Box::pin(find(Arc::clone(&pod))).await,
                        Err(failure) => Err(failure),
                    };
                    shared.leftovers.remove_or_defer(&cluster, pod.id()).await;
                    found
                }
                Err(failure) => Err(failure),
            };
            // Without a caller, a later one tries again.
            drop(answer.send(result));
        }));
        answered.await.unwrap_or_else(|_| {
            Err(Failure::new(FailureKind::Bug, "the pod of a probe was interrupted"))
        })
    }
}

/// The metadata of a pod of this kind.
async fn metadata(
    cluster: &Cluster,
    labels: &EnvironmentLabels,
    what: &str,
    namespace: &str,
) -> Result<ObjectMeta, Failure> {
    let (options, creator) = (&cluster.options, &cluster.creator);
    let name = format!("rollout-{what}-{}-{:08x}", creator.instance, rand::random::<u32>());
    let now = cluster.now().await;
    let mut metadata = manifest::metadata(labels, name, options, creator, namespace, now)?;
    let role = PodRole::Probe.as_str().to_owned();
    metadata.labels.get_or_insert_default().insert(ROLE.to_owned(), role);
    Ok(metadata)
}

/// Parses the frame of a found user.
fn parse_user(frame: &str) -> Option<ImageUser> {
    let (user, group) = frame.strip_prefix("u ")?.split_once(' ')?;
    Some(ImageUser { user: user.parse().ok()?, group: group.parse().ok()? })
}
