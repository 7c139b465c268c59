//! The location of a store in S3, as a URL.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest prefix: keys may have 1,024 bytes, and the longest path of a document has to fit.
const MAX_PREFIX_BYTES: usize = 256;

/// A bucket of a service that speaks the S3 protocol, and the prefix of the store's keys:
/// `s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1&path_style=true`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct S3Location {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of every key, without a slash at either end; may be empty.
    pub prefix: String,
    /// URL of the service; that of AWS, or of the environment, when absent.
    pub endpoint: Option<String>,
    /// Region; that of the environment, or `us-east-1`, when absent.
    pub region: Option<String>,
    /// Whether the bucket is named in the path and not in the host name.
    pub path_style: bool,
}

/// Parameters of the URL.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct S3Parameters {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    /// By default if an endpoint is named: few services have a host name for each bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_style: Option<bool>,
}

/// Text that is not the location of a store in S3.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidS3Location {
    /// No bucket, or not a name of one.
    #[error("`{0}` is not the name of a bucket: expected `s3://bucket/prefix`")]
    Bucket(String),
    /// The prefix has other characters than names of blobs and documents.
    #[error(
        "`{0}` is not a prefix of keys: expected letters, digits, `.`, `_`, `-` between single `/`"
    )]
    Prefix(String),
    /// A parameter is unknown or has a bad value.
    #[error("{0}: the parameters of an S3 store are `endpoint`, `region` and `path_style`")]
    Parameters(String),
    /// The endpoint is not a URL of HTTP.
    #[error("`{0}` is not an endpoint: expected `http://host:port` or `https://host`")]
    Endpoint(String),
    /// The endpoint, or the bucket, has a user or password, which is not repeated.
    #[error(
        "the URL of an S3 store has no user and no password: set `AWS_ACCESS_KEY_ID` and \
         `AWS_SECRET_ACCESS_KEY`, or a profile"
    )]
    Credentials,
}

impl FromStr for S3Location {
    type Err = InvalidS3Location;

    /// Parses the text after `s3://`.
    fn from_str(text: &str) -> Result<Self, InvalidS3Location> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let prefix = prefix.trim_end_matches('/');
        if path.contains('@') {
            return Err(InvalidS3Location::Credentials);
        }
        if !is_bucket(bucket) {
            return Err(InvalidS3Location::Bucket(bucket.to_owned()));
        }
        if !(prefix.is_empty() || is_prefix(prefix)) {
            return Err(InvalidS3Location::Prefix(prefix.to_owned()));
        }
        let parameters: S3Parameters = serde_urlencoded::from_str(query)
            .map_err(|error| InvalidS3Location::Parameters(error.to_string()))?;
        let S3Parameters { endpoint, region, path_style } = parameters;
        if let Some(endpoint) = endpoint.as_ref().filter(|endpoint| !is_endpoint(endpoint)) {
            if endpoint.contains('@') {
                return Err(InvalidS3Location::Credentials);
            }
            return Err(InvalidS3Location::Endpoint(endpoint.clone()));
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            path_style: path_style.unwrap_or(endpoint.is_some()),
            endpoint,
            region,
        })
    }
}

impl fmt::Display for S3Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        let parameters = S3Parameters {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            path_style: (self.path_style != self.endpoint.is_some()).then_some(self.path_style),
        };
        match serde_urlencoded::to_string(&parameters).map_err(|_| fmt::Error)? {
            text if text.is_empty() => Ok(()),
            text => write!(f, "?{text}"),
        }
    }
}

impl S3Location {
    /// The key of an object of the store.
    #[cfg(feature = "s3")]
    pub(super) fn key(&self, path: &str) -> String {
        match self.prefix.as_str() {
            "" => path.to_owned(),
            prefix => format!("{prefix}/{path}"),
        }
    }
}

fn is_bucket(text: &str) -> bool {
    (3..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

fn is_prefix(text: &str) -> bool {
    text.len() <= MAX_PREFIX_BYTES && super::check_document_path(text).is_ok()
}

/// An endpoint has no user and no password: it is written to files and logs.
fn is_endpoint(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.contains(['@', '?', '#', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> S3Location {
        text.parse().expect(text)
    }

    #[test]
    fn location_written_and_parsed_is_the_same() {
        let all = [
            "bucket",
            "bucket/a/b.c",
            "bucket/a?endpoint=http%3A%2F%2F127.0.0.1%3A9000&region=eu",
            "bucket?endpoint=https%3A%2F%2Fs3.example.org&path_style=false",
            "bucket?path_style=true",
        ];
        for text in all {
            assert_eq!(parsed(text).to_string(), format!("s3://{text}"));
        }
        assert_eq!(parsed("bucket/a/"), parsed("bucket/a"));
        let plain = "bucket?endpoint=http://127.0.0.1:9000";
        assert_eq!(parsed(plain).endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert!(parsed(plain).path_style && !parsed("bucket").path_style);
    }

    #[test]
    fn location_malformed_is_refused() {
        let all = [
            "",
            "/prefix",
            "ab",
            "bu cket",
            "bucket/a//b",
            "bucket/../b",
            "bucket//a",
            "bucket?acl=public",
            "bucket?path_style=maybe",
            "bucket?endpoint=127.0.0.1:9000",
            "bucket?endpoint=http://user:secret@host",
        ];
        for text in all {
            assert!(text.parse::<S3Location>().is_err(), "{text}");
        }
    }

    #[test]
    fn location_with_password_is_refused_without_repeating_it() {
        let all = [
            "bucket?endpoint=http://user:secret@host",
            "bucket?endpoint=http%3A%2F%2Fuser%3Asecret%40host",
            "bucket?endpoint=secret@host:9000",
            "user:secret@bucket/prefix",
            "user:secret@host:9000/bucket",
        ];
        for text in all {
            let error = text.parse::<S3Location>().expect_err(text);
            assert_eq!(error, InvalidS3Location::Credentials, "{text}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
