//! Settings of traces, from the environment.
//!
//! The exporter reads addresses, headers, resource and sampler itself. They are checked here,
//! because it ignores values that it does not know.

use std::time::Duration;

use ureq::http::Uri;

use super::error::TraceExportError;
use crate::config::env_vars::{
    EnvVar, OTEL_SDK_DISABLED, OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG, OTLP_ENDPOINT,
    OTLP_PROTOCOL, OTLP_TIMEOUT, OTLP_TRACES_ENDPOINT,
};

/// The only protocol of the exporter.
const PROTOCOL: &str = "http/protobuf";

/// Time limit of an export by the specification of OTLP exporters.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Samplers without their prefix.
const SAMPLERS: [&str; 3] = ["always_on", "always_off", "traceidratio"];

/// Settings of an export that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceSettings {
    /// Time limit of an export, its retries included.
    pub timeout: Duration,
}

impl TraceSettings {
    /// Reads the settings; `None` when no traces are wanted.
    ///
    /// # Errors
    /// [`TraceExportError`] for values that mean nothing.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TraceExportError> {
        let value = |of: EnvVar| variable(of.name).filter(|value| !value.is_empty());
        let endpoint = [OTLP_TRACES_ENDPOINT, OTLP_ENDPOINT]
            .into_iter()
            .find_map(|of| value(of).map(|text| (of.name, text)));
        let is_disabled = value(OTEL_SDK_DISABLED).is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let Some((name, endpoint)) = endpoint.filter(|_| !is_disabled) else { return Ok(None) };
        if !is_http(&endpoint) {
            return Err(TraceExportError::Endpoint(name));
        }
        if let Some(protocol) = value(OTLP_PROTOCOL).filter(|protocol| protocol != PROTOCOL) {
            return Err(TraceExportError::Protocol(protocol));
        }
        let timeout = match value(OTLP_TIMEOUT).map(|text| text.parse()) {
            Some(Ok(milliseconds)) => Duration::from_millis(milliseconds),
            Some(Err(_)) => return Err(TraceExportError::Timeout(OTLP_TIMEOUT.name)),
            None => DEFAULT_TIMEOUT,
        };
        check_sampler(value(OTEL_TRACES_SAMPLER), value(OTEL_TRACES_SAMPLER_ARG))?;
        Ok(Some(Self { timeout }))
    }
}

fn is_http(endpoint: &str) -> bool {
    let scheme =
        |uri: Uri| uri.scheme_str().is_some_and(|scheme| ["http", "https"].contains(&scheme));
    endpoint.parse().is_ok_and(scheme)
}

fn check_sampler(
    sampler: Option<String>,
    argument: Option<String>,
) -> Result<(), TraceExportError> {
    let Some(sampler) = sampler else { return Ok(()) };
    let base = sampler.strip_prefix("parentbased_").unwrap_or(&sampler);
    if !SAMPLERS.contains(&base) {
        return Err(TraceExportError::Sampler(sampler));
    }
    let is_share = |text: String| text.parse().is_ok_and(|share: f64| (0.0..=1.0).contains(&share));
    if base == "traceidratio" && !argument.is_none_or(is_share) {
        return Err(TraceExportError::SamplerArgument(OTEL_TRACES_SAMPLER_ARG.name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

    fn read(variables: &[(&str, &str)]) -> Result<Option<TraceSettings>, TraceExportError> {
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        TraceSettings::read(|name| variables.get(name).map(|&value| value.to_owned()))
    }

    #[test]
    fn traces_need_an_endpoint_and_can_be_disabled() {
        let timeout = |milliseconds| TraceSettings { timeout: Duration::from_millis(milliseconds) };
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector/v1/traces");
        let sampler = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
        for (variables, expected) in [
            (&[][..], None),
            (&[sampler], None),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], None),
            (&[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")], None),
            (&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")], Some(timeout(10_000))),
            (&[own], Some(timeout(10_000))),
            (&[ENDPOINT, ("OTEL_EXPORTER_OTLP_TIMEOUT", "250")], Some(timeout(250))),
            (&[ENDPOINT, sampler, ("OTEL_TRACES_SAMPLER_ARG", "0.1")], Some(timeout(10_000))),
        ] {
            assert_eq!(read(variables).expect("valid"), expected, "{variables:?}");
        }
    }

    #[test]
    fn unknown_value_is_refused_without_showing_secrets() {
        for (name, value, expected) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "user:secret@collector", "is no `http` or `https`"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "the protocol `grpc` is not supported"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "is no number of milliseconds"),
            ("OTEL_TRACES_SAMPLER", "xray", "unknown sampler `xray`"),
        ] {
            let error = read(&[ENDPOINT, (name, value)]).expect_err("refused").to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
        let sampler = ("OTEL_TRACES_SAMPLER", "traceidratio");
        let error = read(&[ENDPOINT, sampler, ("OTEL_TRACES_SAMPLER_ARG", "2")]);
        assert!(matches!(error, Err(TraceExportError::SamplerArgument(_))), "{error:?}");
    }
}
