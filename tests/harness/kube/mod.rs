//! A double of the Kubernetes API: objects, watches, exec, and nodes whose containers are local
//! processes.
//!
//! It speaks HTTP on a port of 127.0.0.1. Clients of this process and of others reach it through
//! its kubeconfig. A container is a process tree in namespaces of its own; its root has the host's
//! programs and its own files. Nothing of it survives the test process.
//!
//! | Looked for | File |
//! | --- | --- |
//! | paths, verbs | `rest.rs`, `write.rs`, `delete.rs`, `list.rs` (also watches) |
//! | objects, resource versions | `objects.rs` |
//! | validation, defaults, quotas | `pod_admission.rs` |
//! | life of a pod | `scheduler.rs`, `pod_run.rs`, `container_start.rs` |
//! | processes | `container.rs`, `start_container.sh`, `root_directory.rs`, `cgroup.rs` |
//! | exec | `exec.rs`, `exec_session.rs` |
//! | failures on command | `faults.rs`, `fault_plan.rs` |

mod access;
mod cgroup;
mod cluster;
mod container;
mod container_plan;
mod container_start;
mod delete;
mod exec;
mod exec_session;
mod fault_plan;
mod faults;
mod image;
mod jobs;
mod list;
mod logs;
mod network;
mod objects;
mod patch;
mod pod_admission;
mod pod_handle;
mod pod_run;
mod pod_status;
mod port_control;
pub mod quantity;
mod query;
mod resources;
mod rest;
mod root_directory;
mod scheduler;
mod selectors;
mod server;
mod startup_probe;
mod status;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use rollout_base::{open_files, supervise};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;

pub use self::cluster::RecordedRequest;
pub use self::fault_plan::{ExecFault, ExpiredForm, RequestFault, StartFault};
pub use self::faults::KubeFaults;
pub use self::image::{ImageFixture, PullOutcome};
pub use self::status::ApiError;

use self::cluster::Cluster;
use self::port_control::PortControl;

/// Bearer token of its clients.
pub const KUBE_TOKEN: &str = "rollout-test-token";

/// A running double. Dropped, it ends all containers and stops.
#[derive(Debug)]
pub struct KubeDouble {
    directory: TempDir,
    kubeconfig: PathBuf,
    url: String,
    cluster: Arc<Cluster>,
    port: Arc<PortControl>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KubeDouble {
    /// Starts a cluster without images; its namespaces are `default` and `kube-system`.
    ///
    /// # Panics
    /// When the system refuses a port, a directory or a thread.
    pub fn start() -> Self {
        // Clusters of many tests in one process need more than the usual limit of 1,024.
        open_files::raise_limit();
        let directory =
            tempfile::Builder::new().prefix("rollout-kube-").tempdir().expect("creatable");
        root_directory::make_base(&directory.path().join("base")).expect("a root for containers");
        let (listener, address) = server::bind();
        let url = format!("http://{address}");
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, kubeconfig_text(&url)).expect("a file");
        let registry = directory.path().join(cluster::REGISTRY);
        root_directory::make_shared(&registry).expect("creatable");
        let cluster = Cluster::new(directory.path(), address);
        let (port, switch) = PortControl::new();
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&cluster);
        let thread = supervise::thread("kube-double", move || {
            server::run(&served, KUBE_TOKEN.into(), listener, switch, stopped);
        })
        .expect("a thread");
        Self {
            directory,
            kubeconfig,
            url,
            cluster,
            port: Arc::new(port),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// A kubeconfig with its address, the token and the namespace `default`.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds an image or replaces it. Pods that wait for it start.
    ///
    /// # Panics
    /// When its files cannot be written.
    pub fn image(&self, reference: &str, image: ImageFixture) {
        self.cluster.add_image(reference, image);
    }

    /// Directory that images with [`ImageFixture::pushes`] have at `/registry`.
    pub fn registry(&self) -> PathBuf {
        self.directory.path().join(cluster::REGISTRY)
    }

    /// Adds a namespace, unless there is one with the name.
    pub fn namespace(&self, name: &str) {
        self.cluster.add_namespace(name);
    }

    /// Adds an object, such as a quota or a secret, without a request.
    ///
    /// # Errors
    /// When there is one with its name.
    pub fn create(&self, plural: &str, namespace: &str, object: Value) -> Result<(), ApiError> {
        let resource = resources::ResourceType::named(plural);
        self.cluster.with(|state| state.objects.create(resource, namespace, object))?;
        self.cluster.wake();
        Ok(())
    }

    /// Changes the objects of a resource in a namespace, as another client does.
    pub fn change(&self, plural: &str, namespace: &str, change: impl Fn(&mut Value)) {
        let plural = resources::ResourceType::named(plural).plural;
        self.cluster.with(|state| {
            let found = state.objects.list(plural, Some(namespace));
            for key in found.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                state.objects.update(&key, &change);
            }
        });
        self.cluster.wake();
    }

    /// Failures and disturbances on command.
    pub fn faults(&self) -> KubeFaults {
        KubeFaults::new(Arc::clone(&self.cluster), Arc::clone(&self.port))
    }

    /// Whether memory limits have an effect on this host. Without it, they end containers only
    /// on command.
    pub fn can_limit_memory(&self) -> bool {
        cgroup::MemoryGroup::create(&self.directory.path().join("probe"), 1 << 30).is_some()
    }

    /// All pods.
    pub fn pods(&self) -> Vec<Value> {
        self.objects("pods")
    }

    /// All objects of a resource.
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        let plural = resources::ResourceType::named(plural).plural;
        self.cluster.with(|state| {
            state.objects.list(plural, None).map(|(_, object)| (**object).clone()).collect()
        })
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.cluster.with(|state| state.requests.clone())
    }

    /// The most pods that existed at once.
    pub fn peak_pods(&self) -> usize {
        self.cluster.with(|state| state.peak_pods)
    }
}

impl Drop for KubeDouble {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed, and the requests of the test failed.
            drop(thread.join());
        }
    }
}

fn kubeconfig_text(url: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: double\n\
         clusters:\n- name: double\n  cluster: {{server: \"{url}\"}}\n\
         users:\n- name: rollout\n  user: {{token: \"{KUBE_TOKEN}\"}}\n\
         contexts:\n- name: double\n  context: {{cluster: double, user: rollout, namespace: default}}\n"
    )
}
