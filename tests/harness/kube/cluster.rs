//! State of the cluster, shared by the API server and the nodes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rollout_base::supervise::Task;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::fault_plan::FaultPlan;
use super::image::ImageFixture;
use super::objects::{ObjectKey, Objects, now};
use super::pod_handle::PodHandle;
use super::resources::ResourceType;
use super::{container_plan, root_directory};

/// The nodes.
pub(super) const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// Directory of pushed images.
pub(super) const REGISTRY: &str = "registry";

/// A request that the API server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The verb of the authorisation: `create`, `list`, `watch`, …
    pub verb: &'static str,
    /// The resource, such as `pods` or `pods/exec`.
    pub resource: String,
    /// The namespace; empty if there is none.
    pub namespace: String,
    /// The name; empty for requests about a collection.
    pub name: String,
}

/// The cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    directory: PathBuf,
    /// Address of the API server.
    pub(super) address: SocketAddr,
    state: Mutex<ClusterState>,
    version: watch::Sender<u64>,
    /// Changes whenever a waiting pod could be scheduled or started.
    wake: watch::Sender<u64>,
    /// Number of the time in which connections live; another number ends them.
    epoch: watch::Sender<u64>,
    /// Controllers.
    tasks: Mutex<Vec<Task<()>>>,
}

/// Its variable part.
#[derive(Debug)]
pub(super) struct ClusterState {
    pub(super) objects: Objects,
    pub(super) images: HashMap<String, Arc<ImageFixture>>,
    pub(super) faults: FaultPlan,
    pub(super) requests: Vec<RecordedRequest>,
    /// By uid.
    pub(super) pods: HashMap<String, Arc<PodHandle>>,
    pub(super) peak_pods: usize,
    pub(super) address_count: u32,
    /// Since when a network policy selects a pod, by uid.
    pub(super) isolated_since: HashMap<String, Instant>,
}

impl Cluster {
    /// A cluster with the namespaces `default` and `kube-system`, and three nodes.
    pub(super) fn new(directory: &Path, address: SocketAddr) -> Arc<Self> {
        let cluster = Self {
            directory: directory.to_owned(),
            address,
            state: Mutex::new(ClusterState {
                objects: Objects::new(),
                images: HashMap::new(),
                faults: FaultPlan::default(),
                requests: Vec::new(),
                pods: HashMap::new(),
                peak_pods: 0,
                address_count: 0,
                isolated_since: HashMap::new(),
            }),
            version: watch::Sender::new(0),
            wake: watch::Sender::new(0),
            epoch: watch::Sender::new(0),
            tasks: Mutex::default(),
        };
        for name in ["default", "kube-system"] {
            cluster.add_namespace(name);
        }
        for name in NODES {
            let conditions = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
            let node = json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"conditions": conditions, "nodeInfo": {"kubeletVersion": "v1.34.1"}},
            });
            cluster.with(|state| {
                // Its name is new.
                drop(state.objects.create(ResourceType::named("nodes"), "", node));
            });
        }
        Arc::new(cluster)
    }

    /// Directory of the files of pods.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Adds an image or replaces it. Pods that wait for it start.
    pub(super) fn add_image(&self, reference: &str, image: ImageFixture) {
        let name = container_plan::image_directory(reference);
        let directory = self.directory.join("images").join(name);
        root_directory::make_image(&directory, &image).expect("writable");
        self.with(|state| state.images.insert(reference.to_owned(), Arc::new(image)));
        self.wake();
    }

    /// An image by its name. One that was pushed is added first.
    pub(super) fn find_image(&self, reference: &str) -> Option<Arc<ImageFixture>> {
        let find = || self.with(|state| state.images.get(reference).cloned());
        find().or_else(|| {
            let pushed = std::fs::read(self.directory.join(REGISTRY).join(reference)).ok()?;
            let image = ImageFixture::new().file("/built-from", &pushed, 0o644);
            self.add_image(reference, image);
            find()
        })
    }

    /// Reads or changes the state, and wakes watches if objects changed.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut ClusterState) -> T) -> T {
        let mut state = self.lock();
        let value = work(&mut state);
        let version = state.objects.version();
        drop(state);
        self.version.send_if_modified(|seen| std::mem::replace(seen, version) != version);
        value
    }

    fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Lets waiting pods try again.
    pub(super) fn wake(&self) {
        self.wake.send_modify(|number| *number += 1);
    }

    pub(super) fn wakes(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    /// Keeps the task of a controller.
    pub(super) fn own(&self, task: Task<()>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    /// Ends all connections.
    pub(super) fn cut_connections(&self) {
        self.epoch.send_modify(|number| *number += 1);
    }

    pub(super) fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// Adds a namespace, unless there is one with the name.
    pub(super) fn add_namespace(&self, name: &str) {
        let namespace = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        self.with(|state| {
            drop(state.objects.create(ResourceType::named("namespaces"), "", namespace));
        });
    }

    /// Ends all processes.
    pub(super) async fn stop_all_pods(&self) {
        let handles: Vec<Arc<PodHandle>> =
            self.with(|state| state.pods.values().cloned().collect());
        let containers: Vec<_> = handles.iter().flat_map(|handle| handle.containers()).collect();
        let stops = containers.iter().map(|container| container.stop(Duration::ZERO));
        futures_util::future::join_all(stops).await;
        for uid in self.with(|state| state.pods.keys().cloned().collect::<Vec<_>>()) {
            root_directory::remove(&self.directory.join("pods").join(uid));
        }
    }

    /// The object with a key.
    pub(super) fn pod(&self, key: &ObjectKey) -> Option<Arc<Value>> {
        self.with(|state| state.objects.get(key).cloned())
    }

    /// The pod with a uid, unless it was removed or replaced.
    pub(super) fn pod_with_uid(&self, key: &ObjectKey, uid: &str) -> Option<Arc<Value>> {
        self.pod(key).filter(|pod| pod["metadata"]["uid"] == uid)
    }

    /// Changes a pod with a uid, unless it was removed or replaced.
    pub(super) fn update_pod(&self, key: &ObjectKey, uid: &str, change: impl FnOnce(&mut Value)) {
        self.with(|state| {
            let same = state.objects.get(key).is_some_and(|pod| pod["metadata"]["uid"] == uid);
            if same {
                drop(state.objects.update(key, change));
            }
        });
    }

    /// Removes a pod with a uid from the API.
    pub(super) fn remove_pod(&self, key: &ObjectKey, uid: &str) {
        self.with(|state| {
            let same = state.objects.get(key).is_some_and(|pod| pod["metadata"]["uid"] == uid);
            if same {
                drop(state.objects.remove(key));
            }
        });
        self.wake();
    }

    pub(super) fn handle_of(&self, key: &ObjectKey) -> Option<Arc<PodHandle>> {
        self.with(|state| {
            let uid = state.objects.get(key)?["metadata"]["uid"].as_str()?.to_owned();
            state.pods.get(&uid).cloned()
        })
    }

    /// Records an event of a pod.
    pub(super) fn record_event(&self, pod: &Value, kind: &str, reason: &str, message: &str) {
        let metadata = &pod["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let source = if reason == "FailedScheduling" || reason == "Scheduled" {
            "default-scheduler"
        } else {
            "kubelet"
        };
        let now = now();
        let name = metadata["name"].as_str().unwrap_or_default();
        let event = json!({
            "metadata": {"generateName": format!("{name}.")},
            "involvedObject": {
                "kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name,
                "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"],
            },
            "type": kind, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "eventTime": null,
            "source": {"component": source}, "reportingComponent": source, "reportingInstance": "",
        });
        self.with(|state| {
            // Its name is new.
            drop(state.objects.create(ResourceType::named("events"), namespace, event));
        });
    }
}
