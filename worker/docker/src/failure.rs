//! Classification of the engine's errors and missing answers.

use std::error::Error as StdError;
use std::io::ErrorKind;

use bollard::errors::Error;
use rollout_base::shortage::Shortage;
use rollout_environment::{Failure, FailureKind};

/// The operation in the messages of connections that failed.
pub(super) const CONNECT: &str = "cannot connect to Docker";

const NO_SOCKET: &str = "the socket does not exist";

/// The failure of `what` at the engine of `host`.
pub(super) fn call_failure(host: &str, what: &str, error: Error) -> Failure {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            let message = message.trim();
            Failure::new(kind_for_status(status_code, message), format!("{what}: {message}"))
        }
        Error::DockerStreamError { error } => {
            let error = error.trim();
            Failure::new(
                kind_for_text(error).unwrap_or(FailureKind::Service),
                format!("{what}: {error}"),
            )
        }
        error => no_answer(host, what, error),
    }
}

/// Whether the engine answered with `status`.
pub(super) fn has_status(error: &Error, status: u16) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code, .. } if *status_code == status)
}

/// Whether the engine's answer contains `text`.
pub(super) fn says(error: &Error, text: &str) -> bool {
    matches!(error, Error::DockerResponseServerError { message, .. } if message.contains(text))
}

fn kind_for_status(status: u16, message: &str) -> FailureKind {
    if let Some(kind) = kind_for_text(message) {
        return kind;
    }
    match status {
        404 if message.contains("No such container") || message.contains("No such exec") => {
            FailureKind::Gone
        }
        // A conflict is caused by other work in progress, not by the request.
        409 => FailureKind::Service,
        400..500 => FailureKind::Refused,
        _ => FailureKind::Service,
    }
}

/// Kinds recognised by the text, whatever the status is.
fn kind_for_text(message: &str) -> Option<FailureKind> {
    const RESOURCES: [&str; 2] = ["Range of CPUs", "Minimum memory limit"];
    // No GPUs, and images of another system.
    const UNSUPPORTED: [&str; 2] =
        ["could not select device driver", "cannot be used on this platform"];
    const NOT_STARTED: [&str; 4] = [
        "OCI runtime create failed",
        "failed to create shim",
        "failed to create task",
        // With status 409 or 500, depending on how far the engine was when the container ended.
        "is not running",
    ];
    // The engine is shutting down, or its runtime has exited: no answer to the request.
    const NO_ANSWER: [&str; 4] = [
        "containerd.sock",
        "transport is closing",
        "grpc: the client connection is closing",
        "ttrpc: closed",
    ];
    if NO_ANSWER.iter().any(|text| message.contains(text)) {
        return Some(FailureKind::Unreachable);
    }
    if let Some(kind) = FailureKind::from_shortage(Shortage::from_text(message)) {
        Some(kind)
    } else if message.contains("unable to find user") || message.contains("unable to find group") {
        Some(FailureKind::Refused)
    } else if UNSUPPORTED.iter().any(|text| message.contains(text)) {
        Some(FailureKind::Unsupported)
    } else if RESOURCES.iter().any(|text| message.contains(text)) {
        Some(FailureKind::Resources)
    } else if NOT_STARTED.iter().any(|text| message.contains(text)) {
        Some(FailureKind::NotStarted)
    } else {
        None
    }
}

/// The kind of a failed start of services, from the error text.
pub(super) fn kind_for_services(message: &str) -> FailureKind {
    // Resources in use by others at present.
    const TAKEN: [&str; 5] = [
        "port is already allocated",
        "address already in use",
        "Pool overlaps with other one",
        "could not find an available",
        "address pools have been fully subnetted",
    ];
    // A service's own command, health check or files.
    const BROKEN: [&str; 6] = [
        "dependency failed to start",
        "is unhealthy",
        "exited (",
        "didn't complete successfully",
        "executable file not found",
        ": exec: ",
    ];
    let any = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if any(&TAKEN) {
        FailureKind::Service
    } else if any(&["Cannot connect to the Docker daemon", "error during connect"]) {
        FailureKind::Unreachable
    } else if any(&["No such image"]) {
        // It existed when it was prepared.
        FailureKind::Service
    } else if any(&BROKEN) {
        FailureKind::Unusable
    } else if let Some(kind) = kind_for_text(message) {
        kind
    } else if any(&["invalid", "unknown", "not supported"]) {
        FailureKind::Refused
    } else {
        FailureKind::Unusable
    }
}

fn no_answer(host: &str, what: &str, error: Error) -> Failure {
    if let Some(kind) = FailureKind::from_shortage(Shortage::from_error(&error)) {
        return Failure::new(kind, format!("{what}: no request was sent to the engine at {host}"))
            .with_source(error);
    }
    let cause = outage_cause(&error);
    let message = format!("{what}: the Docker engine at {host} does not answer: {cause}");
    Failure::new(FailureKind::Unreachable, message)
}

/// Why the engine did not answer, without its address.
pub(super) fn outage_cause(error: &Error) -> String {
    let cause = match error {
        Error::DockerResponseServerError { message, .. } => message.trim(),
        Error::DockerStreamError { error } => error.trim(),
        Error::SocketNotFoundError(_) => NO_SOCKET,
        Error::RequestTimeoutError => "timeout",
        _ => match io_kind(error) {
            Some(ErrorKind::NotFound) => NO_SOCKET,
            Some(ErrorKind::ConnectionRefused) => "nothing listens there",
            Some(ErrorKind::PermissionDenied) => {
                "permission denied; add this user to the group `docker` \
                 (`usermod -aG docker USER`), then log in again"
            }
            _ => return last_cause(error),
        },
    };
    cause.to_owned()
}

/// The text of the last cause: those before it name parts of the client library.
fn last_cause(error: &Error) -> String {
    let mut last: &(dyn StdError + 'static) = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

fn io_kind(error: &Error) -> Option<ErrorKind> {
    if let Error::IOError { err } = error {
        return Some(err.kind());
    }
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status_code: u16, message: &str) -> FailureKind {
        let error = Error::DockerResponseServerError { status_code, message: message.to_owned() };
        call_failure("unix:///x", "trying", error).kind
    }

    #[test]
    fn engine_error_text_maps_to_failure_kind() {
        use FailureKind::*;
        for (status, message, kind) in [
            (400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs", Resources),
            (400, "Minimum memory limit allowed is 6MB", Resources),
            (400, "invalid reference format", Refused),
            (404, "No such container: abc", Gone),
            (404, "No such image: nope:1", Refused),
            (409, "Container abc is not running", NotStarted),
            (409, "removal of container abc is already in progress", Service),
            (500, "could not select device driver \"\" with capabilities: [[gpu]]", Unsupported),
            (
                400,
                "image operating system \"windows\" cannot be used on this platform",
                Unsupported,
            ),
            (400, "unable to find user nobodyy: no matching entries in passwd file", Refused),
            (500, "OCI runtime create failed: runc did not terminate", NotStarted),
            (500, "mkdir /var/lib/docker/x: no space left on device", DiskFull),
            (500, "fork/exec /usr/bin/runc: cannot allocate memory", Exhausted),
            (500, "OCI runtime create failed: too many open files", Exhausted),
            (500, "something broke", Service),
            (500, "transport is closing: unavailable", Unreachable),
            (
                500,
                "connection error: dial unix:///var/run/docker/containerd/containerd.sock: timeout",
                Unreachable,
            ),
            (500, "failed to create task for container: ttrpc: closed: unknown", Unreachable),
        ] {
            assert_eq!(answered(status, message), kind, "{message}");
        }
    }

    #[test]
    fn compose_error_text_maps_to_failure_kind() {
        use FailureKind::*;
        for (message, kind) in [
            ("dependency failed to start: container x-db-1 is unhealthy", Unusable),
            ("container x-db-1 exited (3)", Unusable),
            (
                "Error response from daemon: OCI runtime create failed: runc create failed: exec: \
                 \"nope\": executable file not found in $PATH: unknown",
                Unusable,
            ),
            ("Error response from daemon: driver failed: port is already allocated", Service),
            ("Error response from daemon: mkdir /x: no space left on device", DiskFull),
            ("Error response from daemon: OCI runtime create failed: cgroup: busy", NotStarted),
            ("Cannot connect to the Docker daemon at unix:///x", Unreachable),
            ("invalid mount config", Refused),
        ] {
            assert_eq!(kind_for_services(message), kind, "{message}");
        }
    }

    #[test]
    fn engine_unreachable_message_names_socket_and_cause_once() {
        let host = "unix:///run/d.sock";
        let aborted = Failure::new(FailureKind::Bug, "client error").with_source("aborted");
        for (error, cause) in [
            (Error::SocketNotFoundError("/run/d.sock".to_owned()), "the socket does not exist"),
            (Error::IOError { err: ErrorKind::NotFound.into() }, "the socket does not exist"),
            (Error::IOError { err: ErrorKind::ConnectionRefused.into() }, "nothing listens there"),
            (Error::RequestTimeoutError, "timeout"),
            (Error::IOError { err: std::io::Error::other(aborted) }, "aborted"),
        ] {
            let failure = call_failure(host, "cannot start x", error);
            assert_eq!(failure.kind, FailureKind::Unreachable);
            let expected =
                format!("cannot start x: the Docker engine at {host} does not answer: {cause}");
            assert_eq!(failure.chain(), expected);
        }
        let denied = Error::IOError { err: ErrorKind::PermissionDenied.into() };
        assert!(call_failure("h", "w", denied).message.contains("group `docker`"));
    }
}
