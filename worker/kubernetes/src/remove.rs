//! Removal of pods, at once or when the API server answers again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use rollout_environment::{Failure, FailureKind};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::cluster::Cluster;
use super::failure::has_code;
use super::rights::Right;

/// Time for a deleted pod to disappear.
const REMOVED_WITHIN: Duration = Duration::from_secs(120);

/// Seconds that the processes of a deleted pod have to end by themselves. With 0 the cluster removes
/// the object at once, and its node may still run the processes.
const GRACE_SECONDS: u32 = 1;

/// Shortest and longest pause before a removal is repeated.
const MIN_RETRY_PAUSE: Duration = Duration::from_secs(1);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// Concurrent repetitions.
const AT_ONCE: usize = 8;

/// A pod to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodId {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl PodId {
    /// The identity of a pod in `namespace`.
    pub(super) fn of(pod: &Pod, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
        }
    }
}

/// Removes a pod and waits until it no longer exists. Another pod of its name is not touched.
pub(super) async fn remove(cluster: &Cluster, id: &PodId) -> Result<(), Failure> {
    delete(cluster, id, GRACE_SECONDS, None).await?;
    wait_or_force(cluster, id).await
}

/// Removes a pod that still has this version. Returns false for one that has changed.
pub(super) async fn remove_unchanged(
    cluster: &Cluster,
    id: &PodId,
    version: String,
) -> Result<bool, Failure> {
    let deleted = delete(cluster, id, GRACE_SECONDS, Some(version)).await?;
    if deleted {
        wait_or_force(cluster, id).await?;
    }
    Ok(deleted)
}

/// Waits until a deleted pod no longer exists.
async fn wait_or_force(cluster: &Cluster, id: &PodId) -> Result<(), Failure> {
    let confirmed_within = Duration::from_secs(cluster.options.removal_timeout_sec);
    if is_gone_within(cluster, id, confirmed_within).await? {
        return Ok(());
    }
    delete(cluster, id, 0, None).await?;
    if is_gone_within(cluster, id, REMOVED_WITHIN).await? {
        return Ok(());
    }
    let text = format!("cannot remove the pod {}: it still exists", id.name);
    Err(Failure::new(FailureKind::LeftBehind, text))
}

/// Deletes a pod. Returns false if its identity or its version is another one by now.
async fn delete(
    cluster: &Cluster,
    id: &PodId,
    grace_seconds: u32,
    version: Option<String>,
) -> Result<bool, Failure> {
    let what = format!("cannot remove the pod {}", id.name);
    let preconditions = Preconditions { uid: Some(id.uid.clone()), resource_version: version };
    let params = DeleteParams {
        grace_period_seconds: Some(grace_seconds),
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    let pods = cluster.pods(&id.namespace);
    let right = Right::to("delete", &pods);
    match cluster.answer(right, &what, || pods.delete(&id.name, &params)).await? {
        Ok(_) => Ok(true),
        // It is gone.
        Err(error) if has_code(&error, 404) => Ok(true),
        Err(error) if has_code(&error, 409) => Ok(false),
        Err(error) => Err(cluster.failure(&what, error)),
    }
}

/// Whether a pod disappears in time.
async fn is_gone_within(cluster: &Cluster, id: &PodId, time: Duration) -> Result<bool, Failure> {
    let what = format!("cannot remove the pod {}", id.name);
    let pods = cluster.pods(&id.namespace);
    let deadline = Instant::now() + time;
    let mut pause = Duration::from_millis(50);
    loop {
        let right = Right::to("get", &pods);
        let found = cluster.call(right, &what, || pods.get_opt(&id.name)).await?;
        if found.and_then(|pod| pod.uid()).as_ref() != Some(&id.uid) {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Pods whose removal failed. Their owner is alive, so no reaper would remove them.
#[derive(Debug, Default)]
pub(super) struct DeferredPods {
    pending: Mutex<Vec<PodId>>,
    added: Notify,
}

impl DeferredPods {
    /// Removes it now, or later in [`repeat`].
    pub(super) async fn remove_or_defer(&self, cluster: &Cluster, id: PodId) {
        if let Err(failure) = self.try_remove(cluster, &id).await {
            let error = failure.chain();
            tracing::warn!(error, "cannot remove the pod {} now, retrying later", id.name);
        }
    }

    /// Removes it now. A removal that fails, or that its caller gives up, is repeated in [`repeat`].
    ///
    /// # Errors
    /// Why it was not removed now.
    pub(super) async fn try_remove(&self, cluster: &Cluster, id: &PodId) -> Result<(), Failure> {
        let mut unfinished = UnfinishedRemoval { pods: self, id: Some(id) };
        remove(cluster, id).await?;
        unfinished.id = None;
        self.forget(id);
        Ok(())
    }

    fn defer(&self, id: &PodId) {
        let mut pending = self.pending();
        if !pending.contains(id) {
            pending.push(id.clone());
        }
        drop(pending);
        self.added.notify_one();
    }

    fn forget(&self, id: &PodId) {
        self.pending().retain(|pending| pending != id);
    }

    fn pending(&self) -> MutexGuard<'_, Vec<PodId>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every removal has succeeded.
    pub(super) fn is_empty(&self) -> bool {
        self.pending().is_empty()
    }

    /// Tries every removal that has not succeeded once more.
    pub(super) async fn retry_all(&self, cluster: &Cluster) {
        let waiting = self.pending().clone();
        let removals = waiting.into_iter().map(|id| async move {
            match remove(cluster, &id).await {
                Ok(()) => self.forget(&id),
                Err(failure) => {
                    tracing::debug!("the pod {} is still there: {}", id.name, failure.chain());
                }
            }
        });
        futures_util::stream::iter(removals)
            .buffer_unordered(AT_ONCE)
            .for_each(|()| std::future::ready(()))
            .await;
    }
}

/// A removal that is repeated unless it succeeds.
struct UnfinishedRemoval<'a> {
    pods: &'a DeferredPods,
    id: Option<&'a PodId>,
}

impl Drop for UnfinishedRemoval<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.pods.defer(id);
        }
    }
}

/// Repeats removals that failed until they succeed, forever.
pub(super) async fn repeat(cluster: Arc<Cluster>, leftovers: Arc<DeferredPods>) {
    loop {
        let mut pause = MIN_RETRY_PAUSE;
        while !leftovers.is_empty() {
            sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
            leftovers.retry_all(&cluster).await;
        }
        leftovers.added.notified().await;
    }
}
