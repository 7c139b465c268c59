//! One watch of all pods of this provider in a namespace.
//!
//! A watch that ends is continued from its last version, and the pods are listed again when the
//! server no longer has that version. A pod that a list lacks is asked for by name before it counts
//! as deleted: the list may be older than the pod.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use rollout_base::supervise::{self, Task};
use rollout_environment::{Failure, FailureKind};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::labels;
use super::pod_state::PodState;
use super::rights::Right;

/// Seconds after which the server ends a watch, and this process a silent one.
const WATCH_SECONDS: u32 = 120;
const SILENT_FOR: Duration = Duration::from_secs(150);

/// A watch that ends earlier was not accepted.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Pods in one page of a list.
const PAGE: u32 = 200;

/// Shortest and longest pause after an error.
const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Time in which the cause of an end is reported: nodes report the end of a container first, and some
/// seconds later that they evicted its pod.
const CAUSE_WITHIN: Duration = Duration::from_secs(5);

/// Time in which a node reports again that restarts, or reaches the API server late.
const REPORTED_WITHIN: Duration = Duration::from_secs(2 * 60);

/// Pods of a namespace by name, watched while there are any.
#[derive(Debug)]
pub(super) struct PodWatch {
    tracked: Arc<TrackedPods>,
    _task: Task<()>,
}

#[derive(Debug, Default)]
struct TrackedPods {
    table: Mutex<PodTable>,
    added: Notify,
}

/// Pods by name.
#[derive(Debug, Default)]
struct PodTable {
    tracked: HashMap<String, TrackedPod>,
    expected: HashMap<String, EarlyState>,
}

/// States of a name whose pod is being created: the scheduler may refuse the pod before the creation
/// is answered, and says so once.
#[derive(Debug, Default)]
struct EarlyState {
    /// Creations without an answer.
    creations: usize,
    /// Identity and state of the pod that was observed last. A deleted pod has no state.
    last: Option<(String, Option<PodState>)>,
}

/// A pod that is observed from before its creation until this is dropped.
#[derive(Debug)]
pub(super) struct ExpectedPod {
    name: String,
    tracked: Arc<TrackedPods>,
}

#[derive(Debug)]
struct TrackedPod {
    uid: String,
    state: watch::Sender<Option<PodState>>,
}

/// A pod that is watched until this is dropped.
#[derive(Debug)]
pub(super) struct WatchedPod {
    name: String,
    uid: String,
    state: watch::Receiver<Option<PodState>>,
    tracked: Arc<TrackedPods>,
    /// When its end was first seen without a cause.
    ended: OnceLock<Instant>,
    /// Since when its node does not report.
    unreported: Mutex<Option<Instant>>,
}

/// Why a watch ended.
enum WatchEnd {
    /// By itself: it continues from this version.
    Continue(String),
    /// There is no pod left to watch.
    Idle,
    /// The version is too old, or the stream broke.
    Relist(Option<String>),
}

impl PodWatch {
    /// A watch of the pods that `cluster`'s creator makes in `namespace`.
    pub(super) fn start(cluster: Arc<Cluster>, namespace: String) -> Self {
        let tracked = Arc::new(TrackedPods::default());
        let watching = run(cluster, namespace, Arc::clone(&tracked));
        Self { tracked, _task: supervise::spawn("kubernetes pod watch", watching) }
    }

    /// Begins to observe a pod that will be created.
    pub(super) fn expect_pod(&self, name: &str) -> ExpectedPod {
        ExpectedPod::new(name, &self.tracked)
    }

    /// Names and identities of the pods that are watched.
    pub(super) fn names(&self) -> Vec<(String, String)> {
        let table = self.tracked.table();
        table.tracked.iter().map(|(name, pod)| (name.clone(), pod.uid.clone())).collect()
    }
}

impl ExpectedPod {
    fn new(name: &str, tracked: &Arc<TrackedPods>) -> Self {
        tracked.table().expected.entry(name.to_owned()).or_default().creations += 1;
        Self { name: name.to_owned(), tracked: Arc::clone(tracked) }
    }

    /// Begins to watch the created pod. Its first state is the last one that was observed.
    pub(super) fn track(self, pod: &Pod) -> WatchedPod {
        let (name, uid) = (self.name.clone(), pod.uid().unwrap_or_default());
        let tracked = Arc::clone(&self.tracked);
        let mut table = tracked.table();
        let early = table.expected.get(&name).and_then(|early| early.last.as_ref());
        let early = early.filter(|(of, _)| *of == uid).map(|(_, state)| state.clone());
        let (sender, state) = watch::channel(early.unwrap_or_else(|| Some(PodState::of(pod))));
        table.tracked.insert(name.clone(), TrackedPod { uid: uid.clone(), state: sender });
        drop(table);
        tracked.added.notify_one();
        let (ended, unreported) = (OnceLock::new(), Mutex::default());
        WatchedPod { name, uid, state, tracked, ended, unreported }
    }
}

impl Drop for ExpectedPod {
    fn drop(&mut self) {
        let mut table = self.tracked.table();
        let Some(early) = table.expected.get_mut(&self.name) else { return };
        early.creations -= 1;
        if early.creations == 0 {
            table.expected.remove(&self.name);
        }
    }
}

impl WatchedPod {
    /// The last state; `None` after the pod was deleted.
    pub(super) fn state(&self) -> Option<PodState> {
        self.state.borrow().clone()
    }

    /// A receiver of its states.
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<PodState>> {
        self.state.clone()
    }

    /// Waits until it can no longer be used. An end that nobody asked for counts only when its cause
    /// has had time to be reported, and a node that does not report when it has had time to return.
    pub(super) async fn until_lost(&self) -> LostPod {
        let mut states = self.subscribe();
        loop {
            let state = states.borrow_and_update().clone();
            let Some(state) = state else { return self.gone() };
            let changed = match self.loss(&state) {
                None => states.changed().await,
                Some((failure, from)) => {
                    let lost = LostPod { failure, is_oom_killed: state.is_oom_killed() };
                    let Some(from) = from else { return lost };
                    match tokio::time::timeout_at(from, states.changed()).await {
                        Ok(changed) => changed,
                        Err(_) => return lost,
                    }
                }
            };
            if changed.is_err() {
                // The watch ended with the environment.
                return self.gone();
            }
        }
    }

    /// Why it is lost in a state, and from when on that counts: at once without a time.
    fn loss(&self, state: &PodState) -> Option<(Failure, Option<Instant>)> {
        let unreported = self.unreported_since(state.is_unreported);
        if let Some(failure) = state.lost() {
            let ended = || *self.ended.get_or_init(Instant::now) + CAUSE_WITHIN;
            return Some((failure, state.is_unexplained().then(ended)));
        }
        unreported.map(|since| (state.node_lost(), Some(since + REPORTED_WITHIN)))
    }

    /// Notes whether its node reports. Returns since when it does not.
    fn unreported_since(&self, is_unreported: bool) -> Option<Instant> {
        let mut since = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
        *since = is_unreported.then(|| since.unwrap_or_else(Instant::now));
        *since
    }

    fn gone(&self) -> LostPod {
        LostPod { failure: gone(&self.name), is_oom_killed: false }
    }

    /// Sets a state that was asked for.
    pub(super) fn update(&self, pod: Option<&Pod>) {
        let table = self.tracked.table();
        let found = table.tracked.get(&self.name).filter(|tracked| tracked.uid == self.uid);
        let Some(tracked) = found else { return };
        let state = pod.filter(|pod| pod.uid().as_ref() == Some(&self.uid)).map(PodState::of);
        tracked.set(state);
    }
}

impl Drop for WatchedPod {
    fn drop(&mut self) {
        let mut table = self.tracked.table();
        let pods = &mut table.tracked;
        if pods.get(&self.name).is_some_and(|tracked| tracked.uid == self.uid) {
            pods.remove(&self.name);
        }
    }
}

impl TrackedPod {
    fn set(&self, state: Option<PodState>) {
        self.state.send_if_modified(|old| {
            let changed = *old != state;
            *old = state;
            changed
        });
    }
}

impl TrackedPods {
    fn table(&self) -> MutexGuard<'_, PodTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is no pod to watch. A created pod is listed when it becomes the first one.
    fn is_empty(&self) -> bool {
        self.table().tracked.is_empty()
    }

    /// Records a pod, or its deletion.
    fn observe(&self, pod: &Pod, exists: bool) {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let state = exists.then(|| PodState::of(pod));
        let mut table = self.table();
        match table.tracked.get(&name) {
            Some(tracked) if tracked.uid == uid => tracked.set(state),
            _ => {
                if let Some(early) = table.expected.get_mut(&name) {
                    early.last = Some((uid, state));
                }
            }
        }
    }

    /// Names of the pods that are not among `listed`.
    fn missing(&self, listed: &HashMap<String, String>) -> Vec<String> {
        let table = self.table();
        let gone = |name: &str, pod: &TrackedPod| listed.get(name) != Some(&pod.uid);
        let exists = |pod: &TrackedPod| pod.state.borrow().is_some();
        let missing = table.tracked.iter().filter(|(name, pod)| gone(name, pod) && exists(pod));
        missing.map(|(name, _)| name.clone()).collect()
    }

    fn set_missing(&self, name: &str, found: Option<&Pod>) {
        let table = self.table();
        let Some(tracked) = table.tracked.get(name) else { return };
        let same = found.filter(|pod| pod.uid().as_ref() == Some(&tracked.uid));
        tracked.set(same.map(PodState::of));
    }
}

/// Watches forever.
async fn run(cluster: Arc<Cluster>, namespace: String, tracked: Arc<TrackedPods>) {
    let mut pause = MIN_PAUSE;
    let mut version = None;
    loop {
        while tracked.is_empty() {
            version = None;
            tracked.added.notified().await;
        }
        let began = Instant::now();
        let continues = version.is_some();
        let result = match version.take() {
            Some(version) => Ok(watch(&cluster, &namespace, &tracked, version).await),
            None => list(&cluster, &namespace, &tracked).await.map(WatchEnd::Continue),
        };
        match result {
            Ok(WatchEnd::Continue(from)) => {
                version = Some(from);
                // A server that ends every watch at once is not asked in a tight loop.
                if !continues || began.elapsed() > SHORT_WATCH {
                    pause = MIN_PAUSE;
                    continue;
                }
            }
            Ok(WatchEnd::Idle) => {
                pause = MIN_PAUSE;
                continue;
            }
            Ok(WatchEnd::Relist(None)) => {}
            Ok(WatchEnd::Relist(Some(why))) => {
                tracing::debug!(namespace, "the watch of pods broke: {why}");
            }
            Err(failure) => {
                tracing::debug!(namespace, "cannot list pods: {}", failure.chain());
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Lists the pods; returns the version of the list.
async fn list(
    cluster: &Cluster,
    namespace: &str,
    tracked: &TrackedPods,
) -> Result<String, Failure> {
    let (what, pods) = ("cannot list the pods of this worker", cluster.pods(namespace));
    let mut listed = HashMap::new();
    let mut params = ListParams::default().labels(&selector(cluster)).limit(PAGE);
    let version = loop {
        let page = cluster.call(Right::to("list", &pods), what, || pods.list(&params)).await?;
        for pod in &page.items {
            listed.insert(pod.name_any(), pod.uid().unwrap_or_default());
            tracked.observe(pod, true);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break page.metadata.resource_version.unwrap_or_default(),
        }
    };
    for name in tracked.missing(&listed) {
        let found = cluster.call(Right::to("get", &pods), what, || pods.get_opt(&name)).await?;
        tracked.set_missing(&name, found.as_ref());
    }
    Ok(version)
}

async fn watch(
    cluster: &Cluster,
    namespace: &str,
    tracked: &TrackedPods,
    mut version: String,
) -> WatchEnd {
    let params = WatchParams::default().labels(&selector(cluster)).timeout(WATCH_SECONDS);
    let what = "cannot watch the pods of this worker";
    let pods = cluster.pods(namespace);
    let watching = || pods.watch(&params, &version);
    let events = match cluster.call(Right::to("watch", &pods), what, watching).await {
        Ok(events) => events.boxed(),
        Err(failure) => return WatchEnd::Relist(Some(failure.chain())),
    };
    let mut events = events.into_stream();
    loop {
        let event = match tokio::time::timeout(SILENT_FOR, events.next()).await {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) => {
                return WatchEnd::Relist(Some(cluster.failure(what, error).chain()));
            }
            Ok(None) => return WatchEnd::Continue(version),
            Err(_) => return WatchEnd::Relist(Some(format!("silent for {SILENT_FOR:?}"))),
        };
        let pod = match &event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                tracked.observe(pod, true);
                pod
            }
            WatchEvent::Deleted(pod) => {
                tracked.observe(pod, false);
                pod
            }
            WatchEvent::Bookmark(mark) => {
                version.clone_from(&mark.metadata.resource_version);
                continue;
            }
            WatchEvent::Error(status) if status.code == 410 => return WatchEnd::Relist(None),
            WatchEvent::Error(status) => return WatchEnd::Relist(Some(status.message.clone())),
        };
        version = pod.resource_version().unwrap_or(version);
        if tracked.is_empty() {
            return WatchEnd::Idle;
        }
    }
}

fn selector(cluster: &Cluster) -> String {
    format!("{}={}", labels::INSTANCE, cluster.creator.instance)
}

/// A pod that can no longer be used.
#[derive(Debug)]
pub(super) struct LostPod {
    pub(super) failure: Failure,
    pub(super) is_oom_killed: bool,
}

/// The failure of a pod that does not exist.
pub(super) fn gone(name: &str) -> Failure {
    Failure::new(FailureKind::Gone, format!("the pod {name} no longer exists"))
}

#[cfg(test)]
mod tests;
