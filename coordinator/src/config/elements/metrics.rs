//! `metrics`: metrics over rewards to show.

use rollout_protocol::spec::metric::MetricKind;

use super::super::reader::Field;

keys! {
    /// The keys of a metric.
    pub(crate) table MetricKeys {
        kind as "type": Value("sum|min|max|mean"), "required", "The metric.";
    }
}

/// The metrics, each once, in file order.
pub(crate) fn read(field: &Field<'_>) -> Vec<MetricKind> {
    let words: Vec<_> = MetricKind::ALL.iter().map(|kind| (kind.as_str(), *kind)).collect();
    let mut metrics = Vec::new();
    for item in field.items().unwrap_or_default() {
        let Some(mut fields) = item.mapping() else { continue };
        let kind = fields.take(MetricKeys::kind);
        kind.required("one of sum, min, max, mean");
        if let Some(kind) = kind.keyword(&words).filter(|kind| !metrics.contains(kind)) {
            metrics.push(kind);
        }
        fields.finish();
    }
    metrics
}
