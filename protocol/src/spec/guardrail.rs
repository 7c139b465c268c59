//! Guardrails of an experiment: bounds that its results are meant to keep.

use serde::{Deserialize, Serialize};

/// A guardrail. It is metadata: it is carried into documents, and nothing enforces it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Guardrail {
    /// The metric, for instance `cost_usd`; at most
    /// [`HARNESS_NAME_BYTES`](crate::limits::HARNESS_NAME_BYTES).
    pub metric_id: String,
    /// The largest value that is accepted, in the unit of the metric. A finite number. Without it, the
    /// metric is only to be watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}
