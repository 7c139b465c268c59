//! Encoding of gauges that are computed when they are asked for.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;

/// Encodes a gauge without labels.
///
/// # Errors
/// That of the encoder.
pub fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeGaugeValue + Copy,
) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

/// Encodes gauges that differ by one label.
///
/// # Errors
/// That of the encoder.
pub fn gauges<'v, V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    values: impl IntoIterator<Item = (&'v str, V)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (of, value) in values {
        family.encode_family(&[(label, of)])?.encode_gauge(&value)?;
    }
    Ok(())
}

/// Encodes facts as the labels of a gauge that is always 1.
///
/// # Errors
/// That of the encoder.
pub fn info(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    labels: &[(&str, &str)],
) -> fmt::Result {
    encoder
        .encode_descriptor(name, help, None, MetricType::Gauge)?
        .encode_family(&labels)?
        .encode_gauge(&1_u64)
}
