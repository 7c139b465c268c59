//! The CA bundle that a host gives to environments.

use std::fmt;

use bytes::Bytes;

use super::{CreateRequest, Upload};

/// The certificates of all authorities that programs in environments trust, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CaBundle(Bytes);

impl CaBundle {
    /// Its path in environments, and for the commands of builds.
    pub const PATH: &str = "/rollout/ca-bundle.pem";

    /// The variables in which programs look for such a path.
    pub const VARIABLES: [&str; 8] = [
        "AWS_CA_BUNDLE",
        "CARGO_HTTP_CAINFO",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "NODE_EXTRA_CA_CERTS",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_FILE",
    ];

    /// A bundle of this content.
    pub fn new(pem: impl Into<Bytes>) -> Self {
        Self(pem.into())
    }

    /// The content.
    pub const fn pem(&self) -> &Bytes {
        &self.0
    }

    /// Adds it to an environment: the file before all others, and the variables that are not set.
    pub fn place(&self, request: &mut CreateRequest) {
        request.uploads.insert(0, self.upload());
        for (name, path) in Self::variables() {
            request.env.entry(name).or_insert(path);
        }
    }

    /// The variables with their value.
    pub fn variables() -> impl Iterator<Item = (String, String)> {
        Self::VARIABLES.into_iter().map(|name| (name.to_owned(), Self::PATH.to_owned()))
    }

    /// The file.
    pub fn upload(&self) -> Upload {
        Upload::File { path: Self::PATH.to_owned(), bytes: self.0.clone(), executable: false }
    }
}

impl fmt::Debug for CaBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaBundle({} bytes)", self.0.len())
    }
}
