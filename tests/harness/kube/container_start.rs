//! Start of one container: image, configuration, processes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::container::Container;
use super::container_plan::{self, PlanError};
use super::fault_plan::StartFault;
use super::image::{ImageFixture, PullOutcome, is_valid_reference, pull_failure};
use super::network;
use super::pod_run::PodRun;
use super::pod_status::{running, set_container_state, terminated, waiting};

/// Time between two tries to pull an image or to start a container; nodes begin with 10 seconds.
pub(super) const BACK_OFF: Duration = Duration::from_millis(300);

/// A container after its start.
#[derive(Debug)]
pub(super) enum StartedContainer {
    Running(Arc<Container>),
    /// It never ran; with the exit code that is reported.
    Failed(i32),
}

/// Starts a container; waits as long as something is missing.
pub(super) async fn start(run: &PodRun, pod: &Value, spec: &Value) -> StartedContainer {
    let name = spec["name"].as_str().unwrap_or_default();
    let reference = spec["image"].as_str().unwrap_or_default();
    let image = pull(run, pod, name, reference).await;
    loop {
        let fault = run.cluster.with(|state| state.faults.take_start(reference));
        let obstacle = match fault {
            Some(StartFault::Config(message)) => Some(("CreateContainerConfigError", message)),
            Some(StartFault::Create(message)) => Some(("CreateContainerError", message)),
            Some(StartFault::Run(message)) => Some(("RunContainerError", message)),
            None => None,
        };
        let obstacle = match obstacle {
            Some(obstacle) => obstacle,
            None => match container_plan::plan(run, pod, spec, reference, &image) {
                Ok(plan) => return begin(run, pod, &image, Container::new(plan)).await,
                Err(PlanError::Config(message)) => ("CreateContainerConfigError", message),
                Err(PlanError::Create(message)) => ("CreateContainerError", message),
            },
        };
        set_waiting(run, name, obstacle.0, &obstacle.1);
        run.cluster.record_event(pod, "Warning", "Failed", &format!("Error: {}", obstacle.1));
        pause(run).await;
    }
}

async fn begin(
    run: &PodRun,
    pod: &Value,
    image: &ImageFixture,
    container: Arc<Container>,
) -> StartedContainer {
    let name = container.name().to_owned();
    for other in run.handle.containers() {
        if let Some(pid) = other.pid().await.filter(|_| other.exit_code().is_none()) {
            container.join_network_of(pid);
        }
    }
    run.handle.add(&name, &container);
    let mut failure = None;
    if !image.is_lazy {
        let has_network = network::allows_egress(&run.cluster, &run.key);
        failure = container.ensure_started(has_network).await.err();
    }
    if let Some(cause) = failure {
        let message = format!(
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: \
             runc create failed: unable to start container process: error during container init: \
             {cause}: unknown"
        );
        container.stop(Duration::ZERO).await;
        run.update(|pod| {
            let state = terminated(128, "StartError", &message, &Value::Null);
            set_container_state(pod, &name, &state);
        });
        run.cluster.record_event(pod, "Warning", "Failed", &format!("Error: {message}"));
        return StartedContainer::Failed(128);
    }
    run.update(|pod| set_container_state(pod, &name, &running()));
    run.cluster.record_event(pod, "Normal", "Started", &format!("Started container {name}"));
    StartedContainer::Running(container)
}

/// Pulls an image, as often as it takes.
async fn pull(run: &PodRun, pod: &Value, container: &str, reference: &str) -> Arc<ImageFixture> {
    if !is_valid_reference(reference) {
        let message = format!(
            "Failed to apply default image tag \"{reference}\": couldn't parse image name \
             \"{reference}\": invalid reference format"
        );
        set_waiting(run, container, "InvalidImageName", &message);
        run.cluster.record_event(pod, "Warning", "InspectFailed", &message);
        return std::future::pending().await;
    }
    loop {
        let image = run.cluster.find_image(reference);
        let outcome = image.as_ref().map_or(PullOutcome::Missing, |image| image.pull.clone());
        if let PullOutcome::Slow(time) = outcome {
            tokio::time::sleep(time).await;
        }
        let Some((error, back_off)) = pull_failure(reference, &outcome) else {
            let message = format!("Container image \"{reference}\" already present on machine");
            run.cluster.record_event(pod, "Normal", "Pulled", &message);
            return image.unwrap_or_default();
        };
        let message = format!("Failed to pull image \"{reference}\": {error}");
        run.cluster.record_event(pod, "Warning", "Failed", &message);
        set_waiting(run, container, "ErrImagePull", &error);
        pause(run).await;
        set_waiting(run, container, "ImagePullBackOff", &back_off);
        let message = format!("Back-off pulling image \"{reference}\"");
        run.cluster.record_event(pod, "Normal", "BackOff", &message);
        pause(run).await;
    }
}

/// Waits for the back-off, or until something changed that may help.
async fn pause(run: &PodRun) {
    let mut wakes = run.cluster.wakes();
    wakes.mark_unchanged();
    drop(tokio::time::timeout(BACK_OFF, wakes.changed()).await);
}

fn set_waiting(run: &PodRun, container: &str, reason: &str, message: &str) {
    run.update(|pod| set_container_state(pod, container, &waiting(reason, message)));
}

/// When a container was started, from the status of its pod.
pub(super) fn started_at(pod: &Value, container: &str) -> Value {
    ["containerStatuses", "initContainerStatuses"]
        .iter()
        .filter_map(|list| pod["status"][list].as_array())
        .flatten()
        .find(|status| status["name"] == container)
        .map_or(Value::Null, |status| status["state"]["running"]["startedAt"].clone())
}
