//! Settings of HTTPS clients.

use std::sync::Arc;

use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// TLS with the certificate roots of this host; with the web's roots if it has none.
pub(crate) fn tls_config() -> TlsConfig {
    TlsConfig::builder().root_certs(roots()).build()
}

fn roots() -> RootCerts {
    let native = rustls_native_certs::load_native_certs().certs;
    if native.is_empty() {
        return RootCerts::WebPki;
    }
    let certificates = native.iter().map(|der| Certificate::from_der(der).to_owned());
    RootCerts::Specific(Arc::new(certificates.collect()))
}
