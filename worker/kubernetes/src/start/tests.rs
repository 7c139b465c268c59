//! Tests of the start of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::services::ServiceRole;

const LIMITS: StartLimits =
    StartLimits { schedule: Duration::from_secs(600), start: Duration::from_secs(1200) };

fn state(status: impl Into<Value>) -> PodState {
    let status = status.into();
    let pod = json!({"metadata": {"name": "p", "uid": "u"}, "status": status});
    PodState::of(&serde_json::from_value::<Pod>(pod).expect("a pod"))
}

fn scheduled(container: impl Into<Value>) -> PodState {
    let container = container.into();
    state(json!({
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{
            "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": container,
        }],
    }))
}

fn container_waiting(reason: &str, message: &str) -> PodState {
    scheduled(json!({"waiting": {"reason": reason, "message": message}}))
}

fn unschedulable(message: &str) -> PodState {
    state(json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
    }]}))
}

fn at(seconds: u64) -> StartProgress {
    StartProgress { elapsed: Duration::from_secs(seconds), ..StartProgress::default() }
}

fn failed(state: &PodState, progress: &StartProgress) -> Failure {
    match step(Some(state), &[], progress, LIMITS) {
        StartStep::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn is_waiting(state: &PodState, progress: &StartProgress) -> bool {
    matches!(step(Some(state), &[], progress, LIMITS), StartStep::Waiting(_))
}

#[test]
fn pod_that_runs_is_running() {
    let running = state(json!({
        "phase": "Running",
        "containerStatuses": [{
            "name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}},
        }],
    }));
    assert!(matches!(step(Some(&running), &[], &at(1), LIMITS), StartStep::Running));
    let unchecked = PodState { is_checked: false, ..running };
    assert!(is_waiting(&unchecked, &at(1)));
}

#[test]
fn pod_pending_waits_for_its_limits() {
    let pending = state(json!({"phase": "Pending"}));
    assert!(is_waiting(&pending, &at(599)));
    assert_eq!(failed(&pending, &at(600)).kind, FailureKind::Service);
    let creating = container_waiting("ContainerCreating", "");
    let progress = |seconds| StartProgress {
        scheduled_for: Some(Duration::from_secs(seconds)),
        events: vec!["MountVolume.SetUp failed for volume \"x\"".to_owned()],
        ..at(5000)
    };
    assert!(is_waiting(&creating, &progress(1199)));
    let failure = failed(&creating, &progress(1200));
    assert_eq!(failure.kind, FailureKind::Service);
    assert!(failure.message.contains("MountVolume"), "{failure}");
}

#[test]
fn pod_without_fitting_node_fails_after_limit() {
    let cpu = unschedulable("0/3 nodes are available: 3 Insufficient cpu.");
    assert!(is_waiting(&cpu, &at(10)));
    let failure = failed(&cpu, &at(601));
    assert_eq!(failure.kind, FailureKind::Resources);
    assert!(failure.message.contains("does not fit any node"), "{failure}");
    assert!(failure.message.contains("Insufficient cpu"), "{failure}");
    let crowded = StartProgress { others_hold_room: true, ..at(601) };
    assert_eq!(failed(&cpu, &crowded).kind, FailureKind::Service);
    let taint = unschedulable("0/3 nodes are available: 3 node(s) had untolerated taint {x: y}.");
    assert_eq!(failed(&taint, &crowded).kind, FailureKind::Resources);
}

#[test]
fn pod_that_no_empty_node_takes_is_not_tried_again() {
    let crowded = StartProgress { others_hold_room: true, ..at(601) };
    let nodes = "preemption: 0/3 nodes are available:";
    for (cause, preemption, kind) in [
        (
            "3 Insufficient cpu",
            "3 Preemption is not helpful for scheduling",
            FailureKind::Resources,
        ),
        (
            "3 Insufficient cpu",
            "3 No preemption victims found for incoming pod",
            FailureKind::Service,
        ),
        (
            "1 Insufficient cpu, 2 node(s) had untolerated taint {x: y}",
            "1 No preemption victims found for incoming pod, 2 Preemption is not helpful for \
             scheduling",
            FailureKind::Service,
        ),
        (
            "3 node(s) had untolerated taint {x: y}",
            "3 Preemption is not helpful for scheduling",
            FailureKind::Resources,
        ),
        (
            "3 node(s) had untolerated taint {node.kubernetes.io/not-ready: }",
            "3 Preemption is not helpful for scheduling",
            FailureKind::Service,
        ),
    ] {
        let message = format!("0/3 nodes are available: {cause}. {nodes} {preemption}.");
        assert_eq!(failed(&unschedulable(&message), &crowded).kind, kind, "{message}");
    }
}

#[test]
fn image_that_does_not_exist_fails_at_once() {
    let missing = container_waiting(
        "ErrImagePull",
        "failed to pull and unpack image \"r/x:1\": failed to resolve reference: not found",
    );
    assert_eq!(failed(&missing, &at(2)).kind, FailureKind::Refused);
    let invalid = container_waiting("InvalidImageName", "couldn't parse image name");
    assert_eq!(failed(&invalid, &at(2)).kind, FailureKind::Refused);
}

#[test]
fn image_back_off_without_cause_is_explained_by_event() {
    let back_off = container_waiting("ImagePullBackOff", "Back-off pulling image \"r/x:1\"");
    assert!(is_waiting(&back_off, &at(2)));
    let event = "Failed to pull image \"r/x:1\": manifest unknown".to_owned();
    let progress = StartProgress { events: vec![event], ..at(2) };
    let failure = failed(&back_off, &progress);
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(failure.message.contains("manifest unknown"), "{failure}");
}

#[test]
fn registry_without_answer_fails_as_unreachable_after_retries() {
    let down = container_waiting("ErrImagePull", "dial tcp 10.0.0.1:443: connection refused");
    assert!(is_waiting(&down, &at(2)));
    let progress = StartProgress { failing_for: Some(TRANSIENT_FOR), ..at(60) };
    assert_eq!(failed(&down, &progress).kind, FailureKind::Unreachable);
}

#[test]
fn container_that_cannot_be_made_fails_after_retries() {
    for reason in ["CreateContainerError", "RunContainerError", "CreateContainerConfigError"] {
        let broken = container_waiting(reason, "no such device");
        assert!(is_waiting(&broken, &at(2)), "{reason}");
        let progress = StartProgress { failing_for: Some(TRANSIENT_FOR), ..at(60) };
        assert_eq!(failed(&broken, &progress).kind, FailureKind::NotStarted, "{reason}");
    }
    for message in
        ["container has runAsNonRoot and image will run as root", "secret \"registry\" not found"]
    {
        let refused = container_waiting("CreateContainerConfigError", message);
        assert_eq!(failed(&refused, &at(2)).kind, FailureKind::Refused, "{message}");
    }
}

#[test]
fn container_that_ends_at_once_is_not_started() {
    for (message, kind) in [
        ("exec: \"/bin/sh\": stat /bin/sh: no such file or directory", FailureKind::Unsupported),
        (
            "executable file `/bin/sh` not found: No such file or directory",
            FailureKind::Unsupported,
        ),
        ("fork/exec /bin/sh: exec format error", FailureKind::NotStarted),
    ] {
        let ended = json!({"exitCode": 128, "reason": "StartError", "message": message});
        let failure = failed(&scheduled(json!({"terminated": ended})), &at(2));
        assert_eq!(failure.kind, kind, "{message}");
        assert!(failure.message.contains("helper_image"), "{failure}");
    }
    let oom = scheduled(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
    assert!(failed(&oom, &at(2)).message.contains("memory limit"));
}

#[test]
fn pod_evicted_is_lost_or_over_its_storage_limit() {
    let evicted =
        |message: &str| state(json!({"phase": "Failed", "reason": "Evicted", "message": message}));
    let own =
        evicted("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ");
    assert_eq!(failed(&own, &at(2)).kind, FailureKind::StorageExceeded);
    let own = evicted("Container main exceeded its local ephemeral storage limit \"1Gi\". ");
    assert_eq!(failed(&own, &at(2)).kind, FailureKind::StorageExceeded);
    let node = evicted("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi");
    assert_eq!(failed(&node, &at(2)).kind, FailureKind::Gone);
}

#[test]
fn pod_ended_by_cluster_is_gone() {
    for status in [
        json!({"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True",
            "reason": "PreemptionByScheduler", "message": "preempting to accommodate"}]}),
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "Unknown"}]}),
        json!({"phase": "Unknown", "reason": "NodeLost"}),
        json!({"phase": "Failed", "reason": "Preempting", "message": "Preempted in order to admit"}),
        json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active"}),
    ] {
        assert_eq!(failed(&state(status.clone()), &at(2)).kind, FailureKind::Gone, "{status}");
    }
    let gone = step(None, &[], &at(2), LIMITS);
    assert!(matches!(gone, StartStep::Failed(failure) if failure.kind == FailureKind::Gone));
}

#[test]
fn pod_that_its_node_does_not_report_is_not_lost_at_once() {
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"},
        {"type": "ContainersReady", "status": "True"}]});
    let unreported = state(status.clone());
    assert!(unreported.is_unreported && unreported.lost().is_none());
    // Others decide whether a pod with gates is ready.
    let gated = json!({"metadata": {"name": "p", "uid": "u"}, "status": status,
        "spec": {"containers": [], "readinessGates": [{"conditionType": "lb.example/ready"}]}});
    assert!(!PodState::of(&serde_json::from_value::<Pod>(gated).expect("a pod")).is_unreported);
}

#[test]
fn end_of_container_has_a_cause_or_waits_for_one() {
    let ended = |pod: &str, container: &str| {
        state(json!({"phase": "Failed", "reason": pod, "containerStatuses": [{"name": "main",
            "image": "x", "imageID": "x", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 137, "reason": container}}}]}))
    };
    assert!(ended("", "Error").is_unexplained());
    for (pod, container) in
        [("Evicted", "Error"), ("Preempting", "Error"), ("", "OOMKilled"), ("", "StartError")]
    {
        assert!(!ended(pod, container).is_unexplained(), "{pod} {container}");
    }
    assert_eq!(ended("Preempting", "Error").lost().expect("lost").kind, FailureKind::Gone);
    assert!(!state(json!({"phase": "Running"})).is_unexplained());
}

#[test]
fn helper_that_cannot_be_pulled_is_named() {
    let blocked = state(json!({
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "initContainerStatuses": [{
            "name": "helper", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull", "message": "busybox: not found"}},
        }],
        "containerStatuses": [{
            "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "PodInitializing"}},
        }],
    }));
    let failure = failed(&blocked, &at(2));
    assert_eq!(failure.kind, FailureKind::Service, "no fault of a task");
    for text in ["the helper of the pod p", "busybox: not found", "`helper_image`"] {
        assert!(failure.message.contains(text), "{failure}");
    }
}

#[test]
fn helper_that_fails_is_no_fault_of_a_task() {
    let helper = |status: &Value, own: &Value| {
        state(json!({
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "initContainerStatuses": [{
                "name": "helper", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": status,
            }],
            "containerStatuses": [{
                "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": own,
            }],
        }))
    };
    let waits = json!({"waiting": {"reason": "PodInitializing"}});
    let time = Some(TRANSIENT_FOR);
    let progress = StartProgress { failing_for: time, runs_by_itself: true, ..at(60) };
    let no_program = "exec: \"sh\": executable file not found in $PATH";
    for status in [
        json!({"terminated": {"exitCode": 1, "reason": "Error"}}),
        json!({"terminated": {"exitCode": 128, "reason": "StartError", "message":
            "exec: \"/bin/sh\": stat /bin/sh: no such file or directory"}}),
        json!({"waiting": {"reason": "RunContainerError", "message": no_program}}),
        json!({"waiting": {"reason": "CreateContainerConfigError", "message":
            "container has runAsNonRoot and image will run as root"}}),
    ] {
        let failure = failed(&helper(&status, &waits), &progress);
        assert_eq!(failure.kind, FailureKind::Service, "{status}");
        assert!(failure.message.contains("`helper_image`"), "{failure}");
    }
    for status in [json!({"running": {}}), json!({"waiting": {"reason": "PodInitializing"}})] {
        assert!(is_waiting(&helper(&status, &waits), &at(2)), "{status}");
    }
    // Containers after it belong to the task.
    let done = json!({"terminated": {"exitCode": 0}});
    let missing = json!({"waiting": {"reason": "ErrImagePull", "message": "r/x: not found"}});
    let failure = failed(&helper(&done, &missing), &at(2));
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    assert!(!failure.message.contains("helper"), "{failure}");
}

/// A pod whose environment runs, with one service in a state.
fn with_service(status: &Value) -> PodState {
    let mut service = json!({"name": "service-db", "image": "", "imageID": "", "ready": false,
        "restartCount": 0});
    let fields = status.as_object().expect("a table").clone();
    service.as_object_mut().expect("a table").extend(fields);
    state(json!({
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{
            "name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}},
        }, service],
    }))
}

fn service(role: ServiceRole, restarts: bool) -> [ServiceContainer; 1] {
    let (service, container) = ("db".to_owned(), "service-db".to_owned());
    [ServiceContainer { service, container, role, restarts, own_lists: BTreeMap::new() }]
}

fn service_kind(
    status: &Value,
    services: &[ServiceContainer],
    seconds: u64,
) -> Option<FailureKind> {
    let time = Some(Duration::from_secs(seconds));
    let progress = StartProgress { scheduled_for: time, failing_for: time, ..at(seconds) };
    match step(Some(&with_service(status)), services, &progress, LIMITS) {
        StartStep::Failed(failure) => {
            assert!(failure.message.contains("`db`"), "{failure}");
            Some(failure.kind)
        }
        StartStep::Waiting(_) => None,
        StartStep::Running => panic!("{status}"),
    }
}

#[test]
fn pod_runs_when_its_services_have_started() {
    let (running, ended) = (json!({"running": {}}), json!({"terminated": {"exitCode": 0}}));
    for (status, role) in [
        (json!({"state": running, "started": true}), ServiceRole::Beside),
        (json!({"state": running, "started": true}), ServiceRole::Sidecar),
        (json!({"state": ended}), ServiceRole::Init),
    ] {
        let step = step(Some(&with_service(&status)), &service(role, false), &at(1), LIMITS);
        assert!(matches!(step, StartStep::Running), "{status}: {step:?}");
    }
    let unhealthy = json!({"state": running, "started": false});
    let beside = service(ServiceRole::Beside, false);
    assert_eq!(service_kind(&unhealthy, &beside, 1199), None);
    assert_eq!(service_kind(&unhealthy, &beside, 1200), Some(FailureKind::Unusable));
}

#[test]
fn service_that_fails_decides_the_kind() {
    let ended = |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error"}});
    let waiting = |reason: &str, message: &str| json!({"state": {"waiting": {"reason": reason, "message": message}}});
    let [beside, sidecar, init] = [ServiceRole::Beside, ServiceRole::Sidecar, ServiceRole::Init]
        .map(|role| service(role, false));
    let again = service(ServiceRole::Sidecar, true);
    let restarted = json!({"state": {"running": {}}, "started": true, "restartCount": 1,
        "lastState": ended(1)});
    let back_off = json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2,
        "lastState": ended(1)});
    let missing = waiting("ErrImagePull", "x: not found");
    for (status, services, kind) in [
        (json!({"state": ended(0)}), &beside, Some(FailureKind::Unusable)),
        (json!({"state": ended(137)}), &beside, Some(FailureKind::Unusable)),
        (json!({"state": ended(1)}), &init, Some(FailureKind::Unusable)),
        (restarted, &sidecar, Some(FailureKind::Unusable)),
        (back_off.clone(), &sidecar, Some(FailureKind::Unusable)),
        (back_off, &again, None),
        (json!({"state": ended(1)}), &again, None),
        (missing, &beside, Some(FailureKind::Refused)),
        (waiting("CreateContainerError", "busy"), &beside, Some(FailureKind::NotStarted)),
        (waiting("ContainerCreating", ""), &beside, None),
    ] {
        assert_eq!(service_kind(&status, services, 60), kind, "{status}");
    }
}

#[test]
fn pod_evicted_while_services_start_is_gone() {
    let mut evicted = with_service(&json!({"state": {"terminated": {"exitCode": 137}}}));
    evicted.reason = "Evicted".to_owned();
    let services = service(ServiceRole::Beside, false);
    match step(Some(&evicted), &services, &at(1), LIMITS) {
        StartStep::Failed(failure) => assert_eq!(failure.kind, FailureKind::Gone),
        other => panic!("{other:?}"),
    }
}

#[test]
fn process_of_task_is_broken_by_missing_program_alone() {
    let time = Some(TRANSIENT_FOR);
    let progress = |runs_by_itself| StartProgress { failing_for: time, runs_by_itself, ..at(60) };
    let missing = "failed to create shim task: OCI runtime create failed: runc create failed: unable \
                   to start container process: exec: \"serve\": executable file not found in $PATH";
    let node = "failed to create containerd container: no space left on device";
    let slow = "context deadline exceeded";
    for (message, kind) in [
        (missing, FailureKind::Unusable),
        (node, FailureKind::NotStarted),
        (slow, FailureKind::NotStarted),
    ] {
        let waiting = container_waiting("RunContainerError", message);
        assert_eq!(failed(&waiting, &progress(true)).kind, kind, "{message}");
        assert_eq!(failed(&waiting, &progress(false)).kind, FailureKind::NotStarted);
        let status =
            json!({"state": {"waiting": {"reason": "RunContainerError", "message": message}}});
        let beside = service(ServiceRole::Beside, false);
        assert_eq!(service_kind(&status, &beside, 60), Some(kind), "{message}");
    }
}
