//! Connections to model servers. Redirects are never followed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::GatewayError;

/// Longest time to connect. It bounds how long an unreachable server is not noticed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an unused connection is kept: less than servers and load balancers keep it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A client with a pool of connections.
pub(super) type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The client of all calls, made when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Clients {
    client: Mutex<Option<HttpClient>>,
}

impl Clients {
    /// The client.
    ///
    /// # Errors
    /// [`GatewayError::Certificates`], only if `https` is needed.
    pub(super) fn get(&self, https: bool) -> Result<HttpClient, GatewayError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        match connect_https() {
            Ok(made) => Ok(client.insert(made).clone()),
            Err(error) if https => Err(error),
            // A host without certificates can still use servers in its own network.
            Err(_) => Ok(build(plain())),
        }
    }
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(Duration::from_secs(60)));
    tcp.enforce_http(false);
    tcp
}

fn connect_https() -> Result<HttpClient, GatewayError> {
    let provider = rustls::crypto::ring::default_provider();
    let tls = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider);
    let tls = tls.map_err(GatewayError::Certificates)?;
    Ok(build(tls.https_or_http().enable_http1().wrap_connector(tcp())))
}

/// A connector that trusts no certificate.
fn plain() -> HttpsConnector<HttpConnector> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let settings = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions of TLS")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let tls = HttpsConnectorBuilder::new().with_tls_config(settings);
    tls.https_or_http().enable_http1().wrap_connector(tcp())
}

fn build(connector: HttpsConnector<HttpConnector>) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .build(connector)
}
