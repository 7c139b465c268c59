//! The part of a pod's status that decides whether its environment can be used.

use k8s_openapi::api::core::v1::{
    ContainerState as ReportedState, ContainerStatus, Pod, PodCondition,
};
use kube::ResourceExt as _;
use rollout_environment::{Failure, FailureKind, with_words};

use super::manifest::MAIN;
use super::services::is_service;

/// Texts of a kubelet for a pod that used more storage than its own limit.
const OWN_STORAGE_LIMIT: [&str; 3] = [
    "exceeds the total limit of containers",
    "exceeded its local ephemeral storage limit",
    "Usage of EmptyDir volume",
];

/// Reasons of a container's end that are its cause.
const CAUSES: [&str; 3] = ["OOMKilled", "StartError", "ContainerCannotRun"];

/// State of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PodState {
    pub(super) name: String,
    pub(super) uid: String,
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub(super) phase: String,
    /// Reason and message of the pod's end, for instance `Evicted`.
    pub(super) reason: String,
    pub(super) message: String,
    /// Whether somebody has deleted it.
    pub(super) is_deleting: bool,
    /// Whether a node was chosen.
    pub(super) is_scheduled: bool,
    /// Why no node was chosen: reason and message.
    pub(super) unschedulable: Option<(String, String)>,
    /// Why it is being ended by the cluster.
    pub(super) disruption: Option<(String, String)>,
    /// Whether its node has stopped to report.
    pub(super) is_node_lost: bool,
    /// Whether the cluster calls it not ready although its containers are: its node does not report at
    /// present, and may report again.
    pub(super) is_unreported: bool,
    /// State of its container, or of the init container that it waits for.
    pub(super) container: ContainerState,
    /// Whether that is the helper, which has not succeeded.
    pub(super) waits_for_helper: bool,
    /// Whether the check of the environment's own service has succeeded, if it has one.
    pub(super) is_checked: bool,
    /// The containers of services.
    pub(super) services: Vec<ServiceStatus>,
}

/// State of the container of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServiceStatus {
    /// Name of the container.
    pub(super) name: String,
    pub(super) state: ContainerState,
    /// Whether its check has succeeded, if it has one.
    pub(super) has_started: bool,
    /// How it ended before it was restarted.
    pub(super) before: Option<ContainerState>,
}

/// State of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ContainerState {
    /// Not known yet.
    #[default]
    Unknown,
    /// Waiting: reason and message.
    Waiting(String, String),
    /// Running.
    Running,
    /// Ended: exit code, reason and message.
    Ended(i32, String, String),
}

impl PodState {
    /// The state of a pod.
    pub(super) fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let condition = |kind: &str| conditions.iter().find(|found| found.type_ == kind);
        let texts = |found: &PodCondition| {
            (found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default())
        };
        let scheduled = condition("PodScheduled");
        let disruption = condition("DisruptionTarget").filter(|found| found.status == "True");
        let is =
            |kind: &str, status: &str| condition(kind).is_some_and(|found| found.status == status);
        // A node reports a pod as ready when its containers are and the conditions of its gates, which
        // others set. What it no longer reports, the cluster changes for it: `Unknown` in the past.
        let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
        let has_gates = gates.is_some_and(|gates| !gates.is_empty());
        let is_unreported = !has_gates && is("Ready", "False") && is("ContainersReady", "True");
        let is_node_lost = is("Ready", "Unknown");
        let init = status.init_container_statuses.unwrap_or_default();
        let own = status.container_statuses.unwrap_or_default();
        let helper = helper_state(&init);
        let reason = status.reason.unwrap_or_default();
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            phase: status.phase.unwrap_or_default(),
            is_node_lost: is_node_lost || reason == "NodeLost",
            is_unreported,
            reason,
            message: status.message.unwrap_or_default(),
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
            is_scheduled: scheduled.is_some_and(|found| found.status == "True"),
            unschedulable: scheduled.filter(|found| found.status == "False").map(texts),
            disruption: disruption.map(texts),
            is_checked: is_checked(&own),
            services: service_states(&init, &own),
            waits_for_helper: helper.is_some(),
            container: helper.unwrap_or_else(|| main_state(&own)),
        }
    }

    /// Whether the environment's container runs.
    pub(super) fn is_running(&self) -> bool {
        self.phase == "Running" && self.container == ContainerState::Running && self.is_checked
    }

    /// Whether the memory limit ended its container.
    pub(super) fn is_oom_killed(&self) -> bool {
        matches!(&self.container, ContainerState::Ended(_, reason, _) if reason == "OOMKilled")
    }

    /// The failure of an environment whose pod can no longer be used; `None` if it can.
    pub(super) fn lost(&self) -> Option<Failure> {
        self.ended_from_outside().or_else(|| self.ended_by_itself())
    }

    /// The failure of a pod that something outside of it ended.
    pub(super) fn ended_from_outside(&self) -> Option<Failure> {
        let name = &self.name;
        let failure = |kind, text: String| Some(Failure::new(kind, text));
        if self.reason == "Evicted" {
            let own = OWN_STORAGE_LIMIT.iter().any(|text| self.message.contains(text));
            // Pressure on the node is no fault of the environment.
            let kind = if own { FailureKind::StorageExceeded } else { FailureKind::Gone };
            return failure(kind, format!("the pod {name} was evicted: {}", self.message));
        }
        if self.reason == "DeadlineExceeded" {
            let text = format!(
                "the cluster ended the pod {name}: it was older than `active_deadline_sec`"
            );
            return failure(FailureKind::Gone, text);
        }
        if let Some((reason, message)) = &self.disruption {
            let text = format!("the cluster ended the pod {name}: {reason}: {message}");
            return failure(FailureKind::Gone, text);
        }
        if self.is_node_lost || self.phase == "Unknown" {
            return Some(self.node_lost());
        }
        if self.is_deleting {
            return failure(FailureKind::Gone, format!("the pod {name} was deleted"));
        }
        if self.phase == "Failed" && !self.reason.is_empty() {
            let text = format!("the pod {name} ended: {} {}", self.reason, self.message);
            return failure(FailureKind::Gone, text.trim_end().to_owned());
        }
        None
    }

    /// The failure of a pod whose node no longer reports.
    pub(super) fn node_lost(&self) -> Failure {
        let text = format!("the node of the pod {} no longer reports", self.name);
        Failure::new(FailureKind::Gone, text)
    }

    /// Whether it has ended, and nothing says why yet.
    pub(super) fn is_unexplained(&self) -> bool {
        let has_ended = match &self.container {
            ContainerState::Ended(_, reason, _) => !CAUSES.contains(&reason.as_str()),
            _ => matches!(self.phase.as_str(), "Failed" | "Succeeded"),
        };
        has_ended && self.ended_from_outside().is_none()
    }

    fn ended_by_itself(&self) -> Option<Failure> {
        let name = &self.name;
        let failure = |kind, text: String| Some(Failure::new(kind, text));
        if self.is_oom_killed() {
            let text = format!("the container of the pod {name} ended at its memory limit");
            return failure(FailureKind::NotStarted, text);
        }
        if let ContainerState::Ended(code, reason, message) = &self.container {
            let why = [reason, message].map(String::as_str).join(" ");
            let text = format!("the container of the pod {name} ended with code {code}");
            return failure(FailureKind::NotStarted, with_words(text, &why));
        }
        if matches!(self.phase.as_str(), "Failed" | "Succeeded") {
            let text = format!("the pod {name} ended as {}", self.phase);
            return failure(FailureKind::Gone, text);
        }
        None
    }
}

/// The state that a status reports.
fn reported(state: Option<&ReportedState>) -> ContainerState {
    let Some(state) = state else { return ContainerState::Unknown };
    if let Some(ended) = &state.terminated {
        let reason = ended.reason.clone().unwrap_or_default();
        let message = ended.message.clone().unwrap_or_default();
        ContainerState::Ended(ended.exit_code, reason, message)
    } else if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.clone().unwrap_or_default();
        ContainerState::Waiting(reason, waiting.message.clone().unwrap_or_default())
    } else if state.running.is_some() {
        ContainerState::Running
    } else {
        ContainerState::Unknown
    }
}

/// Whether no check of the environment's container is outstanding.
fn is_checked(own: &[ContainerStatus]) -> bool {
    own.iter().all(|status| status.name != MAIN || status.started != Some(false))
}

/// The states of the containers of services.
fn service_states(init: &[ContainerStatus], own: &[ContainerStatus]) -> Vec<ServiceStatus> {
    let services = init.iter().chain(own).filter(|status| is_service(&status.name));
    let state = |status: &ContainerStatus| ServiceStatus {
        name: status.name.clone(),
        state: reported(status.state.as_ref()),
        has_started: status.started == Some(true),
        before: (status.restart_count > 0).then(|| reported(status.last_state.as_ref())),
    };
    services.map(state).collect()
}

/// The state of the helper, an init container, unless it runs or has succeeded.
fn helper_state(init: &[ContainerStatus]) -> Option<ContainerState> {
    let helpers = init.iter().filter(|status| !is_service(&status.name));
    helpers.map(|status| reported(status.state.as_ref())).find(|state| {
        let done = matches!(state, ContainerState::Ended(0, ..));
        // A running init container is no running environment.
        !done && *state != ContainerState::Running && *state != ContainerState::Unknown
    })
}

/// The state of the environment's own container.
fn main_state(own: &[ContainerStatus]) -> ContainerState {
    let main = own.iter().find(|status| status.name == MAIN).or(own.first());
    main.map(|status| reported(status.state.as_ref())).unwrap_or_default()
}
