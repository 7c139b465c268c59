//! The connection to the service.

use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Builder, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedHttpClient,
};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};

use super::super::S3Location;

/// Limit on connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit on the first byte of an answer. Completing a large upload takes a service a while.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Attempts of one request, for losses of a single packet or connection. Outages are waited out by
/// the callers, which know how long and say so.
const ATTEMPTS: u32 = 3;

/// A client for `location`, with `credentials` or else those of the environment: variables,
/// profile files, web identity, container or instance.
pub(super) async fn connect(location: &S3Location, credentials: Option<Credentials>) -> Client {
    let http = http_client();
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
    if let Some(credentials) = credentials {
        loader = loader.credentials_provider(credentials);
    }
    if let Some(region) = &location.region {
        loader = loader.region(Region::new(region.clone()));
    }
    let shared = loader.load().await;
    let mut config = Builder::from(&shared)
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(READ_TIMEOUT)
                .build(),
        )
        // Requests carry the SHA-256 of their body, and bodies of answers are compared with the
        // blob's digest. Other checksums are unknown to many services.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .force_path_style(location.path_style);
    if let Some(endpoint) = &location.endpoint {
        config = config.endpoint_url(endpoint);
    }
    if shared.region().is_none() {
        config = config.region(Region::from_static("us-east-1"));
    }
    Client::from_conf(config.build())
}

fn http_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(CryptoMode::Ring))
        .build_https()
}
