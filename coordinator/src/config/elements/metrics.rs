//! `metrics`: which figures over rewards are shown.

use serde::{Deserialize, Serialize};

use super::super::fields::Field;

/// A figure over the rewards of settled trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// Their sum.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Their mean.
    Mean,
}

const WORDS: &[(&str, MetricKind)] = &[
    ("sum", MetricKind::Sum),
    ("min", MetricKind::Min),
    ("max", MetricKind::Max),
    ("mean", MetricKind::Mean),
];

/// The figures, each once, in the order of the file.
pub(crate) fn read(field: &Field<'_>) -> Vec<MetricKind> {
    let mut metrics = Vec::new();
    for item in field.items().unwrap_or_default() {
        let Some(mut fields) = item.mapping() else { continue };
        let kind = fields.take("type");
        kind.required("one of sum, min, max, mean");
        if let Some(kind) = kind.word(WORDS).filter(|kind| !metrics.contains(kind)) {
            metrics.push(kind);
        }
        fields.finish();
    }
    metrics
}
