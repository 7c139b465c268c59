//! The controller of jobs: one pod for a job, and the job's status from it.

use std::sync::Arc;

use rollout_base::supervise;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::objects::{ObjectKey, now};
use super::pod_status::set_condition;
use super::resources::ResourceType;
use super::{pod_admission, pod_run};

/// Starts the pod of a new job, and follows it until the job ends or is deleted.
pub(super) fn start(cluster: &Arc<Cluster>, job: &Value) {
    let follow = follow(Arc::clone(cluster), job.clone());
    cluster.own(supervise::spawn("job", follow));
}

async fn follow(cluster: Arc<Cluster>, job: Value) {
    let text = |field: &str| job["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
    let key = ObjectKey::new("jobs", &namespace, &name);
    let limit = job["spec"]["backoffLimit"].as_u64().unwrap_or(6);
    let mut failures = 0;
    let mut wakes = cluster.versions();
    while let Some(pod_key) = create_pod(&cluster, &job, &namespace, &name, &uid) {
        cluster.with(|state| {
            state.objects.update(&key, |job| {
                job["status"]["active"] = 1.into();
                job["status"]["startTime"] = now().into();
            });
        });
        let phase = loop {
            wakes.mark_unchanged();
            let is_same =
                cluster.pod(&key).is_some_and(|job| job["metadata"]["uid"] == uid.as_str());
            if !is_same {
                return;
            }
            let pod = cluster.pod(&pod_key);
            match pod.as_ref().and_then(|pod| pod["status"]["phase"].as_str()) {
                Some(phase @ ("Succeeded" | "Failed")) => break phase.to_owned(),
                Some(_) => {}
                None => break "Failed".to_owned(),
            }
            if wakes.changed().await.is_err() {
                return;
            }
        };
        failures += u64::from(phase == "Failed");
        let is_over = phase == "Succeeded" || failures > limit;
        cluster.with(|state| {
            state.objects.update(&key, |job| settle(job, &phase, failures, is_over));
        });
        if is_over {
            return;
        }
    }
}

fn settle(job: &mut Value, phase: &str, failures: u64, is_over: bool) {
    job["status"]["active"] = 0.into();
    if failures > 0 {
        job["status"]["failed"] = failures.into();
    }
    if phase == "Succeeded" {
        job["status"]["succeeded"] = 1.into();
        job["status"]["completionTime"] = now().into();
        set_condition(job, "Complete", "True", "CompletionsReached", "");
    } else if is_over {
        let message = "Job has reached the specified backoff limit";
        set_condition(job, "Failed", "True", "BackoffLimitExceeded", message);
    }
}

fn create_pod(
    cluster: &Arc<Cluster>,
    job: &Value,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Option<ObjectKey> {
    let mut pod = job["spec"]["template"].clone();
    let metadata = &mut pod["metadata"];
    if !metadata.is_object() {
        *metadata = json!({});
    }
    metadata["generateName"] = format!("{name}-").into();
    metadata["labels"]["job-name"] = name.into();
    metadata["labels"]["batch.kubernetes.io/job-name"] = name.into();
    metadata["ownerReferences"] = json!([{
        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": true,
        "blockOwnerDeletion": true,
    }]);
    let pod = cluster.with(|state| {
        pod_admission::admit(state, namespace, &mut pod).ok()?;
        state.objects.create(ResourceType::named("pods"), namespace, pod).ok()
    })?;
    pod_run::start(cluster, &pod);
    Some(ObjectKey::pod(namespace, pod["metadata"]["name"].as_str()?))
}
