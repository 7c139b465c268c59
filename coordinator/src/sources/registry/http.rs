//! HTTP clients of registries and of repositories without credentials. They block: files are fetched
//! before a run starts.

use std::time::Duration;

use ureq::Proxy;
use ureq::config::ConfigBuilder;
use ureq::http::StatusCode;
use ureq::typestate::AgentScope;

use crate::https;

/// Time limit for fetching a registry.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for connecting, for the head of a reply and between two parts of its body, in a transfer
/// of any length.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// The beginning of a reason that is an answer.
const ANSWERED: &str = "the server answered ";

/// The reason of a server that only redirects, such as a login page that redirects to itself.
const REDIRECTS: &str = "the server redirects too many times";

/// Answers of a server that does not give the body.
const DENIALS: [&str; 5] = ["401", "403", "404", "410", "451"];

/// The body at an `http` or `https` address, of at most `limit` bytes; through the proxy with a URL, if
/// there is one.
pub(super) fn get(url: &str, limit: u64, proxy: Option<&str>) -> Result<Vec<u8>, String> {
    let config = config(proxy).timeout_global(Some(REQUEST_TIMEOUT)).build();
    let agent = ureq::Agent::new_with_config(config);
    let body = agent
        .get(url)
        .call()
        .and_then(|mut response| response.body_mut().with_config().limit(limit).read_to_vec());
    body.map_err(|error| reason(&error))
}

/// A client for transfers of any length through a proxy.
pub(super) fn transfer_agent(proxy: &str) -> ureq::Agent {
    let config = config(Some(proxy))
        .timeout_connect(Some(TRANSFER_TIMEOUT))
        .timeout_recv_response(Some(TRANSFER_TIMEOUT))
        .timeout_per_read(Some(TRANSFER_TIMEOUT))
        .build();
    ureq::Agent::new_with_config(config)
}

fn config(proxy: Option<&str>) -> ConfigBuilder<AgentScope> {
    let config = ureq::Agent::config_builder()
        .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
        .tls_config(https::tls_config());
    match proxy {
        Some(url) => config.proxy(Some(Proxy::new(url).expect("the URL of a local proxy"))),
        None => config,
    }
}

/// The reason why a request failed.
pub(super) fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => {
            format!("no complete answer within {} s", REQUEST_TIMEOUT.as_secs())
        }
        ureq::Error::StatusCode(code) => {
            let status = StatusCode::from_u16(*code).ok();
            let name = status.and_then(|status| status.canonical_reason()).unwrap_or_default();
            format!("{ANSWERED}{code} {name}").trim_end().to_owned()
        }
        ureq::Error::TooManyRedirects => REDIRECTS.to_owned(),
        error => error.to_string(),
    }
}

/// Whether a reason is the answer of a server that does not give the body, as opposed to an outage.
pub(super) fn is_denial(reason: &str) -> bool {
    let answer = reason.strip_prefix(ANSWERED);
    reason == REDIRECTS
        || answer.is_some_and(|answer| DENIALS.iter().any(|status| answer.starts_with(*status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_failure_is_told_in_plain_words() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for (error, expected) in [
            (ureq::Error::Io(refused), "connection refused"),
            (ureq::Error::Timeout(ureq::Timeout::Global), "no complete answer within 60 s"),
            (ureq::Error::StatusCode(404), "the server answered 404 Not Found"),
            (ureq::Error::StatusCode(599), "the server answered 599"),
        ] {
            assert_eq!(reason(&error), expected);
        }
    }

    #[test]
    fn answer_without_body_is_no_outage() {
        let denials = [401, 403, 404, 410, 451].map(|code| (code, true));
        for (code, is_denied) in denials.into_iter().chain([(503, false)]) {
            let reason = reason(&ureq::Error::StatusCode(code));
            assert_eq!(is_denial(&reason), is_denied, "{reason}");
        }
        assert!(is_denial(&reason(&ureq::Error::TooManyRedirects)));
        assert!(!is_denial("connection refused"));
    }
}
