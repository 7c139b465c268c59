//! HTTP download of registries. A small blocking client: one file is fetched before a run starts.

use std::time::Duration;

use ureq::http::StatusCode;

use crate::https;

/// Time limit for fetching a registry.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The body at an `http` or `https` address, of at most `limit` bytes.
pub(super) fn get(url: &str, limit: u64) -> Result<Vec<u8>, String> {
    fetch(url, limit).map_err(|error| reason(&error))
}

fn fetch(url: &str, limit: u64) -> Result<Vec<u8>, ureq::Error> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(REQUEST_TIMEOUT))
        .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
        .tls_config(https::tls_config())
        .build();
    let agent = ureq::Agent::new_with_config(config);
    let mut response = agent.get(url).call()?;
    response.body_mut().with_config().limit(limit).read_to_vec()
}

/// The reason why a registry could not be fetched.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => {
            format!("no complete answer within {} s", REQUEST_TIMEOUT.as_secs())
        }
        ureq::Error::StatusCode(code) => {
            let status = StatusCode::from_u16(*code).ok();
            let name = status.and_then(|status| status.canonical_reason()).unwrap_or_default();
            format!("the server answered {code} {name}").trim_end().to_owned()
        }
        error => error.to_string(),
    }
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
}
