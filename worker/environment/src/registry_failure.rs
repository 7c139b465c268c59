//! Classification of errors of image registries, from the text that an engine or a kubelet passes on.

use super::FailureKind;

/// The kind of a registry error, from the text; `None` when the text is
/// about something else.
pub fn kind_for_registry(message: &str) -> Option<FailureKind> {
    const NO_ANSWER: [&str; 18] = [
        "connection refused",
        "connection reset",
        "no such host",
        "server misbehaving",
        "name resolution",
        "i/o timeout",
        "timeout exceeded",
        "deadline exceeded",
        "network is unreachable",
        "no route to host",
        "tls handshake timeout",
        ": eof",
        "broken pipe",
        "unexpected http status: 5",
        "unexpected status: 5",
        "502 bad gateway",
        "503 service unavailable",
        "504 gateway time",
    ];
    const BUSY: [&str; 2] = ["toomanyrequests", "too many requests"];
    const REFUSED: [&str; 8] = [
        "manifest unknown",
        "manifest for",
        "no matching manifest",
        "access denied",
        "access to the resource is denied",
        "unauthorized",
        "no basic auth credentials",
        "repository does not exist",
    ];
    let message = message.to_ascii_lowercase();
    let any = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if any(&NO_ANSWER) {
        Some(FailureKind::Unreachable)
    } else if any(&BUSY) {
        Some(FailureKind::Service)
    } else if any(&REFUSED) {
        Some(FailureKind::Refused)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_error_text_maps_to_failure_kind() {
        use FailureKind::*;
        for (message, kind) in [
            (
                "Get \"http://127.0.0.1:1/v2/\": dial tcp 127.0.0.1:1: connect: connection refused",
                Some(Unreachable),
            ),
            (
                "Get \"https://registry.example/v2/\": dial tcp: lookup registry.example: no such host",
                Some(Unreachable),
            ),
            ("Get \"https://r/v2/\": EOF", Some(Unreachable)),
            ("manifest for r/x:1 not found: manifest unknown: manifest unknown", Some(Refused)),
            (
                "pull access denied for x, repository does not exist or may require 'docker login'",
                Some(Refused),
            ),
            ("no matching manifest for linux/s390x in the manifest list entries", Some(Refused)),
            ("toomanyrequests: You have reached your pull rate limit", Some(Service)),
            ("received unexpected HTTP status: 503 Service Unavailable", Some(Unreachable)),
            ("unexpected status: 502 Bad Gateway", Some(Unreachable)),
            ("The command '/bin/sh -c exit 3' returned a non-zero code: 3", None),
        ] {
            assert_eq!(kind_for_registry(message), kind, "{message}");
        }
    }
}
