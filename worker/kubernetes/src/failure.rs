//! Classification of the API server's errors and missing answers.

use std::error::Error as StdError;

use kube::Error;
use kube::client::UpgradeConnectionError;
use rollout_base::shortage::Shortage;
use rollout_environment::{Failure, FailureKind, registry_failure};

/// The failure of `what`.
pub(super) fn call_failure(server: &str, what: &str, error: Error) -> Failure {
    match error {
        Error::Api(status) => {
            let kind = kind_for_status(status.code, &status.reason, &status.message);
            let message = if status.message.is_empty() { &status.reason } else { &status.message };
            let mut text = format!("{what}: {message}");
            if let Some(hint) = hint(kind, &status.message) {
                text = format!("{text}; {hint}");
            }
            Failure::new(kind, text)
        }
        Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => {
            let kind = kind_for_status(status.as_u16(), "", "");
            Failure::new(kind, format!("{what}: the API server answered {status}"))
        }
        Error::UpgradeConnection(error) => {
            let text = format!(
                "{what}: the API server at {server} speaks neither v5.channel.k8s.io nor \
                 v4.channel.k8s.io"
            );
            Failure::new(FailureKind::Service, text).with_source(error)
        }
        Error::Auth(error) => {
            let text = format!("{what}: cannot get credentials for the API server at {server}");
            Failure::new(FailureKind::Service, text).with_source(error)
        }
        Error::SerdeError(error) => {
            let text = format!("{what}: the answer of the API server cannot be read");
            Failure::new(FailureKind::Service, text).with_source(error)
        }
        error => no_answer(server, what, &error),
    }
}

/// The failure of `what` without any answer within a limit.
pub(super) fn timeout(server: &str, what: &str, limit: std::time::Duration) -> Failure {
    let text =
        format!("{what}: the Kubernetes API at {server} does not answer: timeout after {limit:?}");
    Failure::new(FailureKind::Unreachable, text)
}

fn no_answer(server: &str, what: &str, error: &Error) -> Failure {
    if let Some(kind) = FailureKind::from_shortage(Shortage::from_error(error)) {
        let text = format!("{what}: no request was sent to {server}: {}", last_cause(error));
        return Failure::new(kind, text);
    }
    let cause = last_cause(error);
    let text = format!("{what}: the Kubernetes API at {server} does not answer: {cause}");
    Failure::new(FailureKind::Unreachable, text)
}

/// The text of the last cause: those before it name parts of the client library.
pub(super) fn last_cause(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

/// Whether the API server answered with `code`.
pub(super) fn has_code(error: &Error, code: u16) -> bool {
    matches!(error, Error::Api(status) if status.code == code)
}

/// Whether an answer says that this process lacks a right, or is not known.
pub(super) fn lacks_right(error: &Error) -> bool {
    let kind = match error {
        Error::Api(status) => kind_for_status(status.code, &status.reason, &status.message),
        Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => {
            kind_for_status(status.as_u16(), "", "")
        }
        _ => return false,
    };
    kind == FailureKind::NotPermitted
}

/// Whether an error comes from behind the check of rights.
pub(super) fn shows_right(error: &Error) -> bool {
    match error {
        Error::Api(status) => status.code < 500 && status.code != 429 && !lacks_right(error),
        _ => false,
    }
}

/// Whether an answer says that a quota is used up at present.
pub(super) fn is_quota_exceeded(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 403 && is_quota_text(&status.message))
}

fn is_quota_text(message: &str) -> bool {
    message.contains("exceeded quota")
}

/// The kind of an error answer.
pub(super) fn kind_for_status(code: u16, reason: &str, message: &str) -> FailureKind {
    match code {
        401 => FailureKind::NotPermitted,
        403 => kind_for_forbidden(message),
        404 if message.contains("namespaces ") => FailureKind::Refused,
        404 => FailureKind::Gone,
        // Another request or a stale version; or the object is being deleted.
        409 | 410 | 429 => FailureKind::Service,
        400..500 if message.contains("is not running") || reason == "Expired" => {
            FailureKind::Service
        }
        400..500 => FailureKind::Refused,
        502..=504 => FailureKind::Unreachable,
        _ => FailureKind::Service,
    }
}

fn kind_for_forbidden(message: &str) -> FailureKind {
    let any = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if is_quota_text(message) {
        // Others leave the quota again.
        FailureKind::Service
    } else if any(&["is being terminated"]) {
        FailureKind::Service
    } else if any(&["maximum cpu usage", "maximum memory usage", "maximum ephemeral-storage usage"])
    {
        // A limit range.
        FailureKind::Resources
    } else if any(&["must specify", "denied the request", "violates PodSecurity", "minimum "]) {
        FailureKind::Refused
    } else {
        // The rights of the worker.
        FailureKind::NotPermitted
    }
}

fn hint(kind: FailureKind, message: &str) -> Option<&'static str> {
    match kind {
        FailureKind::NotPermitted => {
            Some("docs/kubernetes.md lists the rights that a worker needs")
        }
        FailureKind::Refused if message.contains("must specify") => {
            Some("set `cpu_request` and `memory_request`, and do not lift the limits of resources")
        }
        FailureKind::Refused if message.contains("namespaces ") => {
            Some("create the namespace, or set `namespace` in the operator's file")
        }
        _ => None,
    }
}

/// The kind of a failed image pull, from the kubelet's text.
pub(super) fn kind_for_pull(reason: &str, message: &str) -> FailureKind {
    match reason {
        "InvalidImageName" | "ErrImageNeverPull" => FailureKind::Refused,
        "RegistryUnavailable" => FailureKind::Unreachable,
        _ => {
            let text = message.to_ascii_lowercase();
            const REFUSED: [&str; 5] = [
                "not found",
                "failed to authorize",
                "403 forbidden",
                "401 unauthorized",
                "insufficient_scope",
            ];
            registry_failure::kind_for_registry(message).unwrap_or(
                if REFUSED.iter().any(|refused| text.contains(refused)) {
                    FailureKind::Refused
                } else {
                    FailureKind::Service
                },
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_error_maps_to_failure_kind() {
        use FailureKind::*;
        for (code, message, kind) in [
            (401, "Unauthorized", NotPermitted),
            (
                403,
                "pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, \
                 limited: pods=5",
                Service,
            ),
            (
                403,
                "pods \"x\" is forbidden: failed quota: q: must specify limits.cpu for: main",
                Refused,
            ),
            (
                403,
                "pods \"x\" is forbidden: maximum memory usage per Container is 1Gi, but limit is \
                 2Gi",
                Resources,
            ),
            (
                403,
                "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": \
                 runAsNonRoot != true",
                Refused,
            ),
            (
                403,
                "pods is forbidden: User \"w\" cannot create resource \"pods\" in API group \"\"",
                NotPermitted,
            ),
            (
                403,
                "pods \"x\" is forbidden: unable to create new content in namespace n because it \
                 is being terminated",
                Service,
            ),
            (400, "admission webhook \"policy.x\" denied the request: no", Refused),
            (404, "pods \"x\" not found", Gone),
            (404, "namespaces \"x\" not found", Refused),
            (409, "pods \"x\" already exists", Service),
            (410, "too old resource version: 1 (2)", Service),
            (422, "Pod \"x\" is invalid: spec.containers[0].image: Required value", Refused),
            (429, "the server has received too many requests", Service),
            (500, "etcdserver: request timed out", Service),
            (503, "apiserver not ready", Unreachable),
        ] {
            assert_eq!(kind_for_status(code, "", message), kind, "{code} {message}");
        }
    }

    #[test]
    fn image_pull_error_maps_to_failure_kind() {
        use FailureKind::*;
        for (reason, message, kind) in [
            ("InvalidImageName", "couldn't parse image name \"A B\"", Refused),
            (
                "ErrImagePull",
                "failed to pull and unpack image \"docker.io/x:1\": failed to resolve reference \
                 \"docker.io/x:1\": docker.io/x:1: not found",
                Refused,
            ),
            (
                "ImagePullBackOff",
                "Back-off pulling image \"r/x:1\": ErrImagePull: pull access denied, repository \
                 does not exist or may require authorization",
                Refused,
            ),
            (
                "ErrImagePull",
                "failed to do request: Head \"https://r/v2/x\": dial tcp 10.0.0.1:443: i/o timeout",
                Unreachable,
            ),
            ("ErrImagePull", "toomanyrequests: You have reached your pull rate limit", Service),
            ("ImagePullBackOff", "Back-off pulling image \"r/x:1\"", Service),
        ] {
            assert_eq!(kind_for_pull(reason, message), kind, "{message}");
        }
    }
}
