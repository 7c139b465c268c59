//! Labels and annotations that identify the owner of a pod.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use rollout_environment::{EnvironmentLabels, EnvironmentPurpose, Failure, FailureKind, Owner};

/// On everything that this program creates.
pub(super) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "rollout";

/// Kind of a pod, see [`PodRole`].
pub(super) const ROLE: &str = "rollout.dev/role";

/// Execution.
pub(super) const EXEC: &str = "rollout.dev/exec";

/// The provider object that created a pod. It watches only its own pods.
pub(super) const INSTANCE: &str = "rollout.dev/instance";

/// Set to [`NO_NETWORK`] on a pod that the network policy selects.
pub(super) const NETWORK: &str = "rollout.dev/network";
pub(super) const NO_NETWORK: &str = "none";

/// On preserved pods, which reapers skip.
pub(super) const PRESERVED: &str = "rollout.dev/preserved";

/// Annotation: the owner as JSON.
pub(super) const OWNER: &str = "rollout.dev/owner";

/// Annotation: seconds since the epoch, on the clock of the API server, until which the pod has an
/// owner without further proof.
pub(super) const ALIVE_UNTIL: &str = "rollout.dev/alive-until";

/// Longest value of a label.
const LABEL_BYTES: usize = 63;

/// Roles of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodRole {
    /// Runs a trial.
    Environment,
    /// Builds an image.
    Build,
    /// Finds something out: about network policies, or an image.
    Probe,
}

impl PodRole {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Build => "build",
            Self::Probe => "probe",
        }
    }
}

/// Name of an execution's pod: readable, and unique by the execution and the purpose.
pub(super) fn pod_name(labels: &EnvironmentLabels, purpose: EnvironmentPurpose) -> String {
    let suffix = match purpose {
        EnvironmentPurpose::Agent => "",
        EnvironmentPurpose::Verifier => "-verifier",
    };
    format!("rollout-{}-{}{suffix}", labels.item.short(), labels.exec).to_ascii_lowercase()
}

/// The labels of a pod.
pub(super) fn labels(
    owner: &EnvironmentLabels,
    instance: &str,
    role: PodRole,
) -> BTreeMap<String, String> {
    let labels = [
        (MANAGED_BY, MANAGER.to_owned()),
        (ROLE, role.as_str().to_owned()),
        ("rollout.dev/run", label_value(&owner.run.to_string())),
        ("rollout.dev/item", label_value(&owner.item.to_string())),
        ("rollout.dev/try", label_value(&owner.try_id.to_string())),
        (EXEC, label_value(&owner.exec.to_string())),
        ("rollout.dev/worker", label_value(&owner.worker.to_string())),
        (INSTANCE, instance.to_owned()),
    ];
    labels.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The annotations of a pod that counts as owned for `lease`.
pub(super) fn annotations(
    owner: &EnvironmentLabels,
    now: SystemTime,
    lease: Duration,
) -> Result<BTreeMap<String, String>, Failure> {
    let json = owner.owner.to_label().map_err(|error| {
        let text = "cannot describe the owner of a pod: its directory is not UTF-8";
        Failure::new(FailureKind::Refused, text).with_source(error)
    })?;
    let until = alive_until(now, lease);
    Ok([(OWNER.to_owned(), json), (ALIVE_UNTIL.to_owned(), until)].into())
}

/// The value of [`ALIVE_UNTIL`].
pub(super) fn alive_until(now: SystemTime, lease: Duration) -> String {
    let until = now + lease;
    until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().to_string()
}

/// The owner that a pod names.
pub(super) fn owner(pod: &Pod) -> Option<Owner> {
    pod.annotations().get(OWNER).and_then(|json| Owner::from_label(json))
}

/// Until when a pod has an owner without further proof.
pub(super) fn owned_until(pod: &Pod) -> Option<SystemTime> {
    let seconds = pod.annotations().get(ALIVE_UNTIL)?.parse().ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Text as the value of a label: other characters become `_`, and long text is cut.
fn label_value(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let text: String = text.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    let text = text.get(..LABEL_BYTES.min(text.len())).unwrap_or_default();
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_value_has_allowed_form() {
        assert_eq!(label_value("a/b c"), "a_b_c");
        assert_eq!(label_value("-.x.-"), "x");
        assert_eq!(label_value(&"y".repeat(200)).len(), LABEL_BYTES);
        assert_eq!(label_value("///"), "");
    }

    #[test]
    fn pod_lease_is_read_back() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mut pod = Pod::default();
        let until = alive_until(now, Duration::from_secs(60));
        pod.annotations_mut().insert(ALIVE_UNTIL.to_owned(), until);
        assert_eq!(owned_until(&pod), Some(now + Duration::from_secs(60)));
        assert_eq!(owned_until(&Pod::default()), None);
    }
}
