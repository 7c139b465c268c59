//! Headers of calls: which are passed on, and the key that they carry.

use hyper::HeaderMap;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName,
    HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use rollout_protocol::spec::gateway::ModelDialect;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers of one connection only.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The key that an agent sent, in any header in which clients of a dialect send it.
pub(super) fn sent_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get(API_KEY) {
        return key.to_str().ok();
    }
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

/// The header that carries a key of a dialect; the value is never shown.
pub(super) fn key_header(dialect: ModelDialect, key: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, text) = match dialect {
        ModelDialect::Openai => (AUTHORIZATION, format!("Bearer {key}")),
        ModelDialect::Anthropic => (API_KEY, key.to_owned()),
    };
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

/// The headers of the request to the server. The agent's key is not among them, and the reply comes
/// uncompressed.
pub(super) fn for_server(sent: &HeaderMap, key: Option<&(HeaderName, HeaderValue)>) -> HeaderMap {
    let mut headers = end_to_end(sent);
    for name in [AUTHORIZATION, API_KEY, HOST, CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some((name, value)) = key {
        headers.insert(name, value.clone());
    }
    headers
}

/// Headers without those of one connection.
pub(super) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut passed = headers.clone();
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        passed.remove(name);
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&str, &str)| {
            let name: HeaderName = name.parse().expect("a name");
            (name, HeaderValue::from_str(value).expect("a value"))
        };
        headers.iter().map(header).collect()
    }

    #[test]
    fn key_is_found_in_headers_of_both_dialects() {
        assert_eq!(sent_key(&map(&[("authorization", "Bearer k")])), Some("k"));
        assert_eq!(sent_key(&map(&[("authorization", "bearer k")])), Some("k"));
        assert_eq!(sent_key(&map(&[("x-api-key", "k")])), Some("k"));
        assert_eq!(sent_key(&map(&[("authorization", "Basic k")])), None);
        assert_eq!(sent_key(&map(&[])), None);
    }

    #[test]
    fn headers_for_server_have_only_its_own_key_and_no_hop_by_hop_ones() {
        let sent = map(&[
            ("authorization", "Bearer try-key"),
            ("x-api-key", "try-key"),
            ("connection", "keep-alive, x-private"),
            ("x-private", "1"),
            ("te", "trailers"),
            ("host", "127.0.0.1:1"),
            ("content-length", "5"),
            ("accept-encoding", "gzip"),
            ("anthropic-beta", "a,b"),
        ]);
        let key = key_header(ModelDialect::Openai, "real");
        let headers = for_server(&sent, key.as_ref());
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept-encoding", "anthropic-beta", "authorization"]);
        assert_eq!(headers["authorization"], "Bearer real");
        assert_eq!(headers["accept-encoding"], "identity");
        assert!(!format!("{headers:?}").contains("real"), "keys are not shown");
    }
}
