//! The life of a pod: placement, containers one after another, end, deletion.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rollout_base::supervise::{self, Task};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::cluster::Cluster;
use super::container::Container;
use super::container_start::{self, StartedContainer};
use super::delete::delete_dependents;
use super::objects::ObjectKey;
use super::pod_handle::{Disruption, PodControl, PodHandle};
use super::pod_status::{
    is_sidecar, set_condition, set_container_state, set_restarting, terminate_all, terminated,
};
use super::{root_directory, scheduler, startup_probe};

/// Runs a new pod.
pub(super) fn start(cluster: &Arc<Cluster>, pod: &Value) {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    let key = ObjectKey::pod(&text("namespace"), &text("name"));
    let handle = Arc::new(PodHandle::new());
    cluster.with(|state| {
        state.pods.insert(text("uid"), Arc::clone(&handle));
        let pods = state.objects.list("pods", None).count();
        state.peak_pods = state.peak_pods.max(pods);
    });
    let run =
        PodRun { cluster: Arc::clone(cluster), key, uid: text("uid"), handle: Arc::clone(&handle) };
    handle.own(supervise::spawn("pod", run.run()));
}

/// A pod that runs.
#[derive(Debug, Clone)]
pub(super) struct PodRun {
    pub(super) cluster: Arc<Cluster>,
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    pub(super) handle: Arc<PodHandle>,
}

impl PodRun {
    async fn run(self) {
        let mut controls = self.handle.controls();
        tokio::select! {
            biased;
            () = stopped(&mut controls) => {}
            () = self.live() => {}
        }
        stopped(&mut controls).await;
        let control = controls.borrow().clone();
        if control.deletion.is_none()
            && let Some(disruption) = control.disruption
        {
            self.disrupted(&disruption).await;
        }
        self.delete(&mut controls).await;
        self.cluster.with(|state| state.pods.remove(&self.uid));
        let directory = self.directory();
        // The files belong to the test's directory, which is removed later.
        supervise::blocking(move || root_directory::remove(&directory)).await;
    }

    /// Directory of the pod's files.
    pub(super) fn directory(&self) -> std::path::PathBuf {
        self.cluster.directory().join("pods").join(&self.uid)
    }

    pub(super) fn pod(&self) -> Option<Arc<Value>> {
        self.cluster.pod_with_uid(&self.key, &self.uid)
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Value)) {
        self.cluster.update_pod(&self.key, &self.uid, change);
    }

    async fn live(&self) {
        scheduler::place(&self.cluster, &self.key, &self.uid).await;
        let Some(pod) = self.pod() else { return };
        let deadline = pod["spec"]["activeDeadlineSeconds"].as_u64().map(Duration::from_secs);
        let life = self.run_containers(&pod);
        match deadline {
            None => life.await,
            Some(deadline) => {
                if tokio::time::timeout(deadline, life).await.is_err() {
                    self.handle.disrupt(Disruption::DeadlineExceeded);
                }
            }
        }
    }

    async fn run_containers(&self, pod: &Value) {
        let mut sidecars = Vec::new();
        for spec in pod["spec"]["initContainers"].as_array().into_iter().flatten() {
            if is_sidecar(spec) {
                sidecars.push(self.start_sidecar(pod, spec).await);
                continue;
            }
            let started = container_start::start(self, pod, spec).await;
            if self.wait(&started).await != 0 {
                return self.end(sidecars, "Failed").await;
            }
        }
        self.update(|pod| set_condition(pod, "Initialized", "True", "", ""));
        let specs = pod["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice);
        let mut started = Vec::new();
        for spec in specs {
            started.push(container_start::start(self, pod, spec).await);
        }
        self.update(|pod| pod["status"]["phase"] = "Running".into());
        let becoming_ready = async {
            let probes = started.iter().zip(specs).map(|(started, spec)| async move {
                match started {
                    StartedContainer::Running(container) => {
                        startup_probe::wait_until_started(self, spec, container).await
                    }
                    StartedContainer::Failed(_) => false,
                }
            });
            if join_all(probes).await.into_iter().all(|is_ready| is_ready) {
                self.update(|pod| {
                    set_condition(pod, "Ready", "True", "", "");
                    set_condition(pod, "ContainersReady", "True", "", "");
                });
            }
        };
        let ends = join_all(started.iter().map(|started| self.wait(started)));
        let (exits, ()) = tokio::join!(ends, becoming_ready);
        let phase = if exits.iter().all(|code| *code == 0) { "Succeeded" } else { "Failed" };
        self.end(sidecars, phase).await;
    }

    /// Starts an init container that goes on, and waits until it has started.
    async fn start_sidecar(&self, pod: &Value, spec: &Value) -> Task<()> {
        let (starting, mut started) = watch::channel(false);
        let (run, pod, spec) = (self.clone(), pod.clone(), spec.clone());
        let task = supervise::spawn("sidecar", async move {
            loop {
                let container = container_start::start(&run, &pod, &spec).await;
                if let StartedContainer::Running(container) = &container
                    && startup_probe::wait_until_started(&run, &spec, container).await
                {
                    starting.send_replace(true);
                }
                run.wait(&container).await;
                run.restart_after_pause(&container).await;
            }
        });
        // The task ends only with the pod.
        drop(started.wait_for(|is_started| *is_started).await);
        task
    }

    async fn restart_after_pause(&self, ended: &StartedContainer) {
        let StartedContainer::Running(container) = ended else {
            return tokio::time::sleep(container_start::BACK_OFF).await;
        };
        self.update(|pod| set_restarting(pod, container.name()));
        tokio::time::sleep(container_start::BACK_OFF).await;
        self.handle.remove(container.name());
        for own in ["upper", "usr-upper"] {
            // It has no file if its root was copied.
            drop(std::fs::remove_dir_all(container.directory().join(own)));
        }
    }

    /// Ends the init containers that go on, and the pod.
    async fn end(&self, sidecars: Vec<Task<()>>, phase: &str) {
        let has_sidecars = !sidecars.is_empty();
        drop(sidecars);
        if has_sidecars {
            let exits = self.stop(Duration::from_secs(1)).await;
            self.update(|pod| terminate_all(pod, &exits, ""));
        }
        self.finish(phase);
    }

    /// Waits for the end of a container and records it.
    async fn wait(&self, started: &StartedContainer) -> i32 {
        let container = match started {
            StartedContainer::Running(container) => container,
            StartedContainer::Failed(code) => return *code,
        };
        let code = container.ended().await;
        let reason = if code == 137 && container.was_out_of_memory() { "OOMKilled" } else { "" };
        self.update(|pod| {
            let start = container_start::started_at(pod, container.name());
            set_container_state(pod, container.name(), &terminated(code, reason, "", &start));
        });
        code
    }

    fn finish(&self, phase: &str) {
        let reason = if phase == "Succeeded" { "PodCompleted" } else { "PodFailed" };
        self.update(|pod| {
            pod["status"]["phase"] = phase.into();
            set_condition(pod, "Ready", "False", reason, "");
            set_condition(pod, "ContainersReady", "False", reason, "");
        });
        self.cluster.wake();
    }

    /// Ends all containers; returns their exit codes.
    async fn stop(&self, grace: Duration) -> Vec<(String, i32)> {
        let containers = self.handle.containers();
        let stops = containers.iter().map(|container: &Arc<Container>| async move {
            (container.name().to_owned(), container.stop(grace).await)
        });
        join_all(stops).await
    }

    async fn disrupted(&self, disruption: &Disruption) {
        let exits = self.stop(Duration::ZERO).await;
        let delay = self.cluster.with(|state| state.faults.reason_delay);
        if !delay.is_zero() {
            self.update(|pod| {
                terminate_all(pod, &exits, "");
                pod["status"]["phase"] = "Failed".into();
            });
            tokio::time::sleep(delay).await;
        }
        self.update(|pod| {
            let (pod_reason, message, container_reason) = match disruption {
                Disruption::Evicted(message) => {
                    let cause = "TerminationByKubelet";
                    set_condition(pod, "DisruptionTarget", "True", cause, message);
                    ("Evicted", message.as_str(), "")
                }
                Disruption::OutOfMemory => ("", "", "OOMKilled"),
                Disruption::DeadlineExceeded => {
                    let message = "Pod was active on the node longer than the specified deadline";
                    ("DeadlineExceeded", message, "")
                }
            };
            terminate_all(pod, &exits, container_reason);
            pod["status"]["phase"] = "Failed".into();
            for (field, text) in [("reason", pod_reason), ("message", message)] {
                if !text.is_empty() {
                    pod["status"][field] = text.into();
                }
            }
        });
        if let (Disruption::Evicted(message), Some(pod)) = (disruption, self.pod()) {
            self.cluster.record_event(&pod, "Warning", "Evicted", message);
        }
        self.cluster.wake();
    }

    /// Waits for the wish to delete the pod and fulfils it.
    async fn delete(&self, controls: &mut watch::Receiver<PodControl>) {
        reached(controls, |control| control.deletion.is_some()).await;
        let grace = controls.borrow().deletion.unwrap_or(0);
        // A lost node learns of the deletion only when its pod is removed by force.
        if self.handle.is_lost() {
            reached(controls, |control| control.deletion == Some(0)).await;
        }
        let exits = tokio::select! {
            exits = self.stop(Duration::from_secs(grace)) => exits,
            () = reached(controls, |control| grace > 0 && control.deletion == Some(0)) => {
                self.stop(Duration::ZERO).await
            }
        };
        self.update(|pod| {
            if pod["status"]["startTime"].is_string() {
                terminate_all(pod, &exits, "");
            }
        });
        self.cluster.remove_pod(&self.key, &self.uid);
        delete_dependents(&self.cluster, &json!({"metadata": {"uid": self.uid}}));
    }
}

/// Waits until the pod has to end.
async fn stopped(controls: &mut watch::Receiver<PodControl>) {
    reached(controls, |control| control.deletion.is_some() || control.disruption.is_some()).await;
}

/// Waits until a wish is there. The handle, which has the wishes, lives as long as the pod.
async fn reached(
    controls: &mut watch::Receiver<PodControl>,
    wish: impl FnMut(&PodControl) -> bool,
) {
    drop(controls.wait_for(wish).await);
}
