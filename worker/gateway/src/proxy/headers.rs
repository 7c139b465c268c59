//! Headers of calls: which are passed on, and the key that they or the query carry.

use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue,
};
use hyper::{HeaderMap, Request};
use rollout_base::hop_by_hop;
use rollout_protocol::spec::gateway::ModelDialect;

use crate::proxy::dialect;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const GOOGLE_API_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");

/// Name of the parameter in which clients of Gemini send a key.
const KEY_PARAMETER: &str = "key";

/// The key that an agent sent, in any place in which clients of a dialect send it.
pub(super) fn sent_key<B>(request: &Request<B>) -> Option<&str> {
    let headers = request.headers();
    if let Some(key) = headers.get(API_KEY).or_else(|| headers.get(GOOGLE_API_KEY)) {
        return key.to_str().ok();
    }
    let Some(authorization) = headers.get(AUTHORIZATION) else { return query_key(request) };
    let (scheme, key) = authorization.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

fn query_key<B>(request: &Request<B>) -> Option<&str> {
    let (dialect, _) = dialect::split(request.uri().path())?;
    let mut parameters = request.uri().query().filter(|_| has_query_key(dialect))?.split('&');
    let (_, key) = parameters.find(|parameter| is_key(parameter))?.split_once('=')?;
    Some(key)
}

fn has_query_key(dialect: ModelDialect) -> bool {
    dialect == ModelDialect::Gemini
}

/// Whether a parameter of a query is a key, also if its name is written with escapes.
fn is_key(parameter: &str) -> bool {
    let name = parameter.split('=').next().unwrap_or_default();
    let read: Result<Vec<(String, String)>, _> = serde_urlencoded::from_str(name);
    read.is_ok_and(|read| read.iter().any(|(name, _)| name == KEY_PARAMETER))
}

/// A query without keys, for the server and the records; empty or with its `?`.
pub(super) fn query_for_server(dialect: ModelDialect, query: Option<&str>) -> String {
    let parameters = query.into_iter().flat_map(|query| query.split('&'));
    let kept = parameters.filter(|parameter| !has_query_key(dialect) || !is_key(parameter));
    let kept: Vec<_> = kept.collect();
    if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) }
}

/// The header that carries a key of a dialect; the value is never shown.
pub(super) fn key_header(dialect: ModelDialect, key: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, text) = match dialect {
        ModelDialect::Openai => (AUTHORIZATION, format!("Bearer {key}")),
        ModelDialect::Anthropic => (API_KEY, key.to_owned()),
        ModelDialect::Gemini => (GOOGLE_API_KEY, key.to_owned()),
    };
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

/// The headers of the request to the server. The agent's key is not among them, and the reply comes
/// uncompressed.
pub(super) fn for_server(sent: &HeaderMap, key: Option<&(HeaderName, HeaderValue)>) -> HeaderMap {
    let mut headers = end_to_end(sent);
    for name in [AUTHORIZATION, API_KEY, GOOGLE_API_KEY, HOST, CONTENT_LENGTH, EXPECT] {
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
    hop_by_hop::remove(&mut passed);
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

    fn key(uri: &str, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::new(());
        *request.uri_mut() = uri.parse().expect("an address");
        *request.headers_mut() = map(headers);
        sent_key(&request).map(str::to_owned)
    }

    #[test]
    fn key_is_found_in_headers_of_all_dialects() {
        let key = |headers: &[(&str, &str)]| key("/openai/v1/completions?key=q", headers);
        for header in [
            ("authorization", "Bearer k"),
            ("authorization", "bearer k"),
            ("x-api-key", "k"),
            ("x-goog-api-key", "k"),
        ] {
            assert_eq!(key(&[header]).as_deref(), Some("k"), "{header:?}");
        }
        assert_eq!(key(&[("authorization", "Basic k")]), None);
        assert_eq!(key(&[]), None, "the dialect has no key in the query");
    }

    #[test]
    fn gemini_key_is_found_in_query_and_taken_out_of_it() {
        let path = "/gemini/v1beta/models/m:generateContent";
        for (query, left) in [
            ("?key=k", ""),
            ("?alt=sse&key=k", "?alt=sse"),
            ("?%6bey=k&alt=sse&key=other", "?alt=sse"),
        ] {
            assert_eq!(key(&format!("{path}{query}"), &[]).as_deref(), Some("k"), "{query}");
            let query = query.strip_prefix('?');
            assert_eq!(query_for_server(ModelDialect::Gemini, query), left);
        }
        assert_eq!(key(&format!("{path}?keys=k"), &[]), None);
        assert_eq!(key(path, &[]), None);
        assert_eq!(query_for_server(ModelDialect::Openai, Some("key=k&a")), "?key=k&a");
        assert_eq!(query_for_server(ModelDialect::Openai, None), "");
    }

    #[test]
    fn headers_for_server_have_only_its_own_key_and_no_hop_by_hop_ones() {
        let sent = map(&[
            ("authorization", "Bearer try-key"),
            ("x-api-key", "try-key"),
            ("x-goog-api-key", "try-key"),
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
