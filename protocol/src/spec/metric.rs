//! Metrics over rewards that a job can ask for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One number computed from the rewards of completed trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// Their sum.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Their average.
    Mean,
}

impl MetricKind {
    /// Every kind.
    pub const ALL: &[Self] = &[Self::Sum, Self::Min, Self::Max, Self::Mean];

    /// The name used in job files and results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Mean => "mean",
        }
    }
}

impl fmt::Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
