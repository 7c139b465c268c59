//! Start of a pod as a step function: from what is known of the pod to whether it can be used.

use std::time::Duration;

use rollout_environment::{Failure, FailureKind};

use super::failure::kind_for_pull;
use super::helper;
use super::pod_state::{ContainerState, PodState};
use super::service_containers::ServiceStart;
use super::services::ServiceContainer;

/// Waiting reasons of a container that end by themselves.
const NORMAL: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// Waiting reasons of an image that is not there.
const IMAGE: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
];

/// Waiting reasons of a container that the node cannot make or run. Kubernetes repeats these
/// attempts; the causes that a repetition cures last for moments.
const CONTAINER: [&str; 6] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PostStartHookError",
    "CrashLoopBackOff",
];

/// How long an error that may pass is watched: the kubelet tries an image again after 10, then 20
/// seconds.
const TRANSIENT_FOR: Duration = Duration::from_secs(45);

/// Limits of a start.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartLimits {
    /// Time for the choice of a node.
    pub(super) schedule: Duration,
    /// Time from there to the start of the container.
    pub(super) start: Duration,
}

/// Observations of a start.
#[derive(Debug, Clone, Default)]
pub(super) struct StartProgress {
    /// Time since the pod was created.
    pub(super) elapsed: Duration,
    /// Time since a node was chosen.
    pub(super) scheduled_for: Option<Duration>,
    /// Time since the container's present error was first seen.
    pub(super) failing_for: Option<Duration>,
    /// Whether other pods of this worker may hold the resources that it waits for.
    pub(super) others_hold_room: bool,
    /// Whether its container runs a process of the task.
    pub(super) runs_by_itself: bool,
    /// Messages of recent events of the pod, newest last.
    pub(super) events: Vec<String>,
}

/// Result of a step.
#[derive(Debug)]
pub(super) enum StartStep {
    /// Not yet, for this reason.
    Waiting(String),
    /// The container runs.
    Running,
    /// It will not, or took too long.
    Failed(Failure),
}

/// Decides about a pod. `state` is `None` when the pod does not exist.
pub(super) fn step(
    state: Option<&PodState>,
    services: &[ServiceContainer],
    progress: &StartProgress,
    limits: StartLimits,
) -> StartStep {
    let Some(state) = state else {
        let text = "the pod was deleted before it started";
        return StartStep::Failed(Failure::new(FailureKind::Gone, text));
    };
    if let Some(failure) = state.ended_from_outside() {
        return StartStep::Failed(failure);
    }
    if let Some(step) = helper_step(state, progress, limits) {
        return step;
    }
    // A service that ends may end its pod.
    let pending = match service_step(state, services, progress, limits) {
        Ok(pending) => pending,
        Err(step) => return step,
    };
    if let Some(failure) = state.lost() {
        let mut failure = at_start(failure, state);
        if failure.kind == FailureKind::NotStarted && progress.runs_by_itself {
            // The task's own process or check would fail the same way again.
            failure.kind = FailureKind::Unusable;
        }
        return StartStep::Failed(failure);
    }
    match pending {
        None if state.is_running() => return StartStep::Running,
        Some(service) if state.is_running() => return unready(state, service, progress, limits),
        _ => {}
    }
    if let Some((reason, message)) = &state.unschedulable {
        return unscheduled(state, reason, message, progress, limits);
    }
    if let ContainerState::Waiting(reason, message) = &state.container
        && !NORMAL.contains(&reason.as_str())
    {
        let subject = format!("the container of the pod {}", state.name);
        if let Some(step) = container_error(&subject, reason, message, progress, limits) {
            return if progress.runs_by_itself { broken_by_task(step) } else { step };
        }
    }
    waiting(state, progress, limits)
}

/// Whether a container reports an error that may pass.
pub(super) fn is_failing(state: &PodState, services: &[ServiceContainer]) -> bool {
    let is_error = |reason: &str| !NORMAL.contains(&reason);
    let of_service = |service: &ServiceContainer| matches!(service.start(state), ServiceStart::Waiting(reason, _) if is_error(&reason));
    matches!(&state.container, ContainerState::Waiting(reason, _) if is_error(reason))
        || services.iter().any(of_service)
}

/// The step for a pod whose helper has failed; `None` while it only takes its time.
fn helper_step(
    state: &PodState,
    progress: &StartProgress,
    limits: StartLimits,
) -> Option<StartStep> {
    if !state.waits_for_helper {
        return None;
    }
    let step = match &state.container {
        ContainerState::Waiting(reason, message) => {
            let subject = format!("the helper of the pod {}", state.name);
            container_error(&subject, reason, message, progress, limits)?
        }
        _ => return helper::ended(state).map(StartStep::Failed),
    };
    Some(match step {
        StartStep::Failed(failure) => StartStep::Failed(helper::failure(failure)),
        other => other,
    })
}

/// Decides about the services: the first that has not started, or the failure of one.
fn service_step<'a>(
    state: &PodState,
    services: &'a [ServiceContainer],
    progress: &StartProgress,
    limits: StartLimits,
) -> Result<Option<&'a ServiceContainer>, StartStep> {
    let mut pending = None;
    for service in services {
        let name = &service.service;
        match service.start(state) {
            ServiceStart::Done => continue,
            ServiceStart::Pending => {}
            ServiceStart::Waiting(reason, _) if NORMAL.contains(&reason.as_str()) => {}
            ServiceStart::Waiting(reason, message) => {
                let subject = format!("the service `{name}` of the pod {}", state.name);
                let step = container_error(&subject, &reason, &message, progress, limits);
                if let Some(step) = step {
                    return Err(broken_by_task(step));
                }
            }
            ServiceStart::Ended(how) => {
                let text = format!("the service `{name}` of the pod {} {how}", state.name);
                return Err(StartStep::Failed(Failure::new(FailureKind::Unusable, text)));
            }
        }
        pending.get_or_insert(service);
    }
    Ok(pending)
}

/// A process of the task whose program the image does not have is broken by the task. Other reasons
/// why a node cannot run it may pass.
fn broken_by_task(step: StartStep) -> StartStep {
    match step {
        StartStep::Failed(failure)
            if failure.kind == FailureKind::NotStarted && names_program(&failure.message) =>
        {
            StartStep::Failed(Failure { kind: FailureKind::Unusable, ..failure })
        }
        other => other,
    }
}

/// Whether a container runtime says that it cannot run the program of a container.
fn names_program(message: &str) -> bool {
    const ACTION: [&str; 2] = ["exec: ", "executable file"];
    const CAUSE: [&str; 4] = ["not found", "no such file", "permission denied", "format error"];
    let text = message.to_ascii_lowercase();
    let names = |words: &[&str]| words.iter().any(|word| text.contains(word));
    names(&ACTION) && names(&CAUSE)
}

/// The step for an environment that waits only for a service.
fn unready(
    state: &PodState,
    service: &ServiceContainer,
    progress: &StartProgress,
    limits: StartLimits,
) -> StartStep {
    let (name, pod) = (&service.service, &state.name);
    let seconds = limits.start.as_secs();
    if progress.scheduled_for.is_none_or(|since| since < limits.start) {
        return StartStep::Waiting(format!("the service `{name}` starts"));
    }
    let text = format!("the service `{name}` of the pod {pod} did not start within {seconds} s");
    StartStep::Failed(Failure::new(FailureKind::Unusable, text))
}

/// The failure of a pod that ended while it started.
fn at_start(mut failure: Failure, state: &PodState) -> Failure {
    if let ContainerState::Ended(..) = state.container
        && !state.is_oom_killed()
        && failure.kind == FailureKind::NotStarted
    {
        let text = failure.message.to_ascii_lowercase();
        if text.contains("/bin/sh") && text.contains("no such file") {
            // It would be missing the next time, too.
            failure.kind = FailureKind::Unsupported;
        }
        failure
            .message
            .push_str("; the image needs `/bin/sh`, or the operator must set `helper_image`");
    }
    // It has no files of a task yet that could be too large.
    failure
}

fn unscheduled(
    state: &PodState,
    reason: &str,
    message: &str,
    progress: &StartProgress,
    limits: StartLimits,
) -> StartStep {
    let name = &state.name;
    let why = if message.is_empty() { reason } else { message };
    if reason == "SchedulingGated" || progress.elapsed < limits.schedule {
        return StartStep::Waiting(format!("no node yet: {why}"));
    }
    let waited = progress.elapsed.as_secs();
    if progress.others_hold_room && !never_fits(message) {
        let text = format!("the pod {name} got no node within {waited} s: {why}");
        return StartStep::Failed(Failure::new(FailureKind::Service, text));
    }
    let text = format!("the pod {name} does not fit any node (waited {waited} s): {why}");
    StartStep::Failed(Failure::new(FailureKind::Resources, text))
}

/// Whether the scheduler names only causes that the end of other pods does not change.
fn never_fits(message: &str) -> bool {
    // Others leave the node, or the node comes back.
    const PASSING: [&str; 2] = ["Insufficient", "Too many pods"];
    const RETURNING: [&str; 2] = ["were unschedulable", "node.kubernetes.io/"];
    let (cause, preemption) = message.split_once("preemption: ").unwrap_or((message, ""));
    let names = |texts: &[&str]| texts.iter().any(|text| cause.contains(text));
    if cause.is_empty() || names(&RETURNING) || preemption.contains("No preemption victims") {
        return false;
    }
    // A request that is larger than a node is `Insufficient`, too.
    preemption.contains("Preemption is not helpful") || !names(&PASSING)
}

/// The step for a container that waits because of an error; `None` if it only takes its time.
fn container_error(
    subject: &str,
    reason: &str,
    message: &str,
    progress: &StartProgress,
    limits: StartLimits,
) -> Option<StartStep> {
    let limit = TRANSIENT_FOR.min(limits.start);
    let lasting = progress.failing_for.is_some_and(|time| time >= limit);
    // The message of a back-off names no cause; an event does.
    let cause = pull_cause(message, &progress.events);
    let (kind, what) = if IMAGE.contains(&reason) {
        (kind_for_pull(reason, cause), "cannot pull the image of")
    } else if CONTAINER.contains(&reason) {
        let kind = if reason == "CreateContainerConfigError" {
            config_error_kind(message)
        } else {
            FailureKind::NotStarted
        };
        (kind, "cannot start")
    } else {
        return None;
    };
    let text = format!("{what} {subject}: {reason}: {cause}");
    if kind == FailureKind::Refused || lasting {
        return Some(StartStep::Failed(Failure::new(kind, text)));
    }
    Some(StartStep::Waiting(text))
}

/// The text with the cause of a failed pull.
fn pull_cause<'a>(message: &'a str, events: &'a [String]) -> &'a str {
    let names_cause = message.contains(": ") && !message.ends_with('"');
    if names_cause {
        return message;
    }
    let failed = |event: &&String| event.starts_with("Failed to pull image");
    events.iter().rev().find(failed).map_or(message, String::as_str)
}

/// The kind of an error in a container's configuration: what the manifest names and the cluster
/// does not have, or an image that does not fit the settings.
fn config_error_kind(message: &str) -> FailureKind {
    const REFUSED: [&str; 3] = ["runAsNonRoot", "not found", "couldn't find key"];
    if REFUSED.iter().any(|text| message.contains(text)) {
        FailureKind::Refused
    } else {
        FailureKind::NotStarted
    }
}

fn waiting(state: &PodState, progress: &StartProgress, limits: StartLimits) -> StartStep {
    let (since, limit, what) = match progress.scheduled_for {
        Some(since) => (since, limits.start, "did not start on its node"),
        None => (progress.elapsed, limits.schedule, "got no node"),
    };
    let last = progress.events.last().map(String::as_str).unwrap_or_default();
    if since < limit {
        let text = if state.is_scheduled { "the container is made" } else { "no node yet" };
        return StartStep::Waiting(format!("{text} {last}").trim_end().to_owned());
    }
    let seconds = limit.as_secs();
    let text = format!("the pod {} {what} within {seconds} s: {last}", state.name);
    StartStep::Failed(Failure::new(FailureKind::Service, text.trim_end_matches(": ")))
}

#[cfg(test)]
mod tests;
