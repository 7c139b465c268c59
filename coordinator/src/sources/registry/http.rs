//! HTTP download of registries. A small blocking client: one file is fetched before a run starts.

use std::sync::Arc;
use std::time::Duration;

use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Time limit for fetching a registry.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The body at an `http` or `https` address, of at most `limit` bytes.
pub(super) fn get(url: &str, limit: u64) -> Result<Vec<u8>, String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(REQUEST_TIMEOUT))
        .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(roots()).build())
        .build();
    let agent = ureq::Agent::new_with_config(config);
    let mut response = agent.get(url).call().map_err(|error| error.to_string())?;
    let body = response.body_mut().with_config().limit(limit);
    body.read_to_vec().map_err(|error| error.to_string())
}

/// The certificate roots of this host; the web's roots if it has none.
fn roots() -> RootCerts {
    let native = rustls_native_certs::load_native_certs().certs;
    if native.is_empty() {
        return RootCerts::WebPki;
    }
    let certificates = native.iter().map(|der| Certificate::from_der(der).to_owned());
    RootCerts::Specific(Arc::new(certificates.collect()))
}
