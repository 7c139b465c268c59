//! Failures and waits for which the operator's `helper_image` is the cause, or its absence.

use std::sync::Once;
use std::time::Duration;

use rollout_environment::{Failure, FailureKind, with_words};

use super::pod_state::{ContainerState, PodState};

/// The image as it should be.
const EXPECTED: &str = "set `helper_image` in the file of `--kubernetes-config` to an image with `sh` and a \
                        static `busybox` that has `nc`, such as `docker.io/library/busybox:1.37-musl`, in a \
                        registry that the nodes reach";

/// The failure of a pod whose helper has ended without success; `None` for another state.
pub(super) fn ended(state: &PodState) -> Option<Failure> {
    let ContainerState::Ended(code, reason, message) = &state.container else { return None };
    let why = [reason, message].map(String::as_str).join(" ");
    let text = format!("the helper of the pod {} ended with code {code}", state.name);
    Some(failure(Failure::new(FailureKind::Service, with_words(text, &why))))
}

/// A failure of a pod for its helper. It is the operator's, not that of a task.
pub(super) fn failure(mut failure: Failure) -> Failure {
    use FailureKind::{NotStarted, Refused, Resources, Unsupported, Unusable};
    if matches!(failure.kind, Refused | Unsupported | NotStarted | Resources | Unusable) {
        failure.kind = FailureKind::Service;
    }
    failure.message.push_str("; ");
    failure.message.push_str(EXPECTED);
    failure
}

/// Warns once of a helper that fails: every pod of this worker has it.
pub(super) fn warn_of_failure(failure: &Failure) {
    static NOTICE: Once = Once::new();
    NOTICE.call_once(|| tracing::warn!("no pod of this worker starts: {failure}"));
}

/// Warns once of phases that begin late for want of a helper.
pub(super) fn warn_of_wait(wait: Duration) {
    static NOTICE: Once = Once::new();
    NOTICE.call_once(|| tracing::warn!("{}", late_phases(wait)));
}

fn late_phases(wait: Duration) -> String {
    format!(
        "phases without network begin {wait:?} late, because only programs of images show in their pods \
         that there is none; {EXPECTED}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_is_named_with_its_setting_and_no_fault_of_a_task() {
        use FailureKind::*;
        for (kind, expected) in [
            (Refused, Service),
            (NotStarted, Service),
            (Unsupported, Service),
            (Unreachable, Unreachable),
            (Gone, Gone),
        ] {
            let failure = failure(Failure::new(kind, "cannot pull"));
            assert_eq!(failure.kind, expected, "{kind:?}");
            assert!(failure.message.starts_with("cannot pull; set `helper_image`"), "{failure}");
        }
        let text = late_phases(Duration::from_secs(30));
        assert!(text.contains("begin 30s late") && text.contains("`helper_image`"), "{text}");
    }
}
