//! Control of a running pod.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::supervise::Task;
use tokio::sync::watch;

use super::container::Container;

/// Why the processes of a pod are ended without a request to delete it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Disruption {
    /// The node evicts it, with a message.
    Evicted(String),
    /// A container used more memory than its limit.
    OutOfMemory,
    /// It ran longer than `activeDeadlineSeconds`.
    DeadlineExceeded,
}

/// Wishes about a pod.
#[derive(Debug, Clone, Default)]
pub(super) struct PodControl {
    /// Seconds of grace, once it is to be deleted.
    pub(super) deletion: Option<u64>,
    pub(super) disruption: Option<Disruption>,
}

/// Handle of a pod.
#[derive(Debug)]
pub(super) struct PodHandle {
    control: watch::Sender<PodControl>,
    containers: Mutex<BTreeMap<String, Arc<Container>>>,
    task: Mutex<Option<Task<()>>>,
    is_lost: AtomicBool,
}

impl PodHandle {
    pub(super) fn new() -> Self {
        Self {
            control: watch::Sender::default(),
            containers: Mutex::default(),
            task: Mutex::default(),
            is_lost: AtomicBool::new(false),
        }
    }

    pub(super) fn controls(&self) -> watch::Receiver<PodControl> {
        self.control.subscribe()
    }

    /// Deletes the pod's processes; a shorter grace replaces a longer one.
    pub(super) fn delete(&self, grace: u64) {
        self.control.send_modify(|control| {
            control.deletion = Some(control.deletion.map_or(grace, |old| old.min(grace)));
        });
    }

    pub(super) fn disrupt(&self, disruption: Disruption) {
        self.control.send_modify(|control| control.disruption = Some(disruption));
    }

    /// Keeps the task that runs the pod.
    pub(super) fn own(&self, task: Task<()>) {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    pub(super) fn add(&self, name: &str, container: &Arc<Container>) {
        let mut containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        containers.insert(name.to_owned(), Arc::clone(container));
    }

    /// Forgets a container that has ended.
    pub(super) fn remove(&self, name: &str) {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub(super) fn container(&self, name: &str) -> Option<Arc<Container>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn containers(&self) -> Vec<Arc<Container>> {
        let containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        containers.values().cloned().collect()
    }

    /// Marks its node as lost: nothing reaches its containers any more.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}
