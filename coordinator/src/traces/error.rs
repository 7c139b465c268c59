//! Mistakes in the settings of traces.

use std::io;

/// Why no traces are exported. The values of settings may be secrets and are not part of it, unless
/// they come from a short list.
#[derive(Debug, thiserror::Error)]
pub enum TraceExportError {
    /// The endpoint is no address.
    #[error("cannot export traces: `{0}` is no `http` or `https` address")]
    Endpoint(&'static str),
    /// A protocol that the exporter does not speak.
    #[error(
        "cannot export traces: the protocol `{0}` is not supported; set \
         `OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf` and the collector's port for it, usually 4318"
    )]
    Protocol(String),
    /// A time limit that is no number.
    #[error("cannot export traces: `{0}` is no number of milliseconds")]
    Timeout(&'static str),
    /// An unknown sampler.
    #[error(
        "cannot export traces: unknown sampler `{0}`; use `always_on`, `always_off`, \
         `traceidratio`, or one of them with the prefix `parentbased_`"
    )]
    Sampler(String),
    /// An argument of the sampler that is no share.
    #[error("cannot export traces: `{0}` is no number from 0 to 1")]
    SamplerArgument(&'static str),
    /// The program has no exporter.
    #[error(
        "cannot export traces: this program was built without them; build it with \
         `--features otel`, or unset `OTEL_EXPORTER_OTLP_ENDPOINT`"
    )]
    NotBuilt,
    /// The exporter refuses its settings.
    #[cfg(feature = "otel")]
    #[error("cannot export traces")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The system has no thread left.
    #[error("cannot export traces: cannot start a thread")]
    Thread(#[source] io::Error),
}
