//! Whether a sweep has a good row for every configuration.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// How complete a sweep is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completeness {
    /// Configurations that were asked for; nothing when no number was.
    pub expected_count: Option<u64>,
    /// Different configurations among the rows that count.
    pub observed_unique_config_ids: u64,
    /// Rows that count and succeeded.
    pub ok_count: u64,
    /// Rows that count and did not succeed.
    pub error_count: u64,
}

impl Completeness {
    /// Whether every configuration that was asked for has exactly one row, which succeeded. Without
    /// a number nothing can be missing.
    pub fn is_complete(&self) -> bool {
        self.error_count == 0
            && self.expected_count.is_none_or(|expected| {
                self.observed_unique_config_ids == expected && self.ok_count == expected
            })
    }

    /// The share of rows that succeeded; nothing without rows.
    pub fn ok_rate(&self) -> Option<f64> {
        let rows = self.ok_count + self.error_count;
        (rows > 0).then(|| self.ok_count as f64 / rows as f64)
    }
}

/// Counts rows.
pub(super) struct Counter {
    limit: Option<u64>,
    seen: HashSet<u64>,
    ok: u64,
    errors: u64,
}

impl Counter {
    pub(super) fn new(limit: Option<u64>) -> Self {
        Self { limit, seen: HashSet::new(), ok: 0, errors: 0 }
    }

    /// A row. With a limit only those of the configurations below it count.
    pub(super) fn add(&mut self, config: Option<u64>, ok: bool) {
        let counts = match (self.limit, config) {
            (Some(limit), Some(config)) => config < limit,
            (Some(_), None) => false,
            (None, _) => true,
        };
        if !counts {
            return;
        }
        self.seen.extend(config);
        if ok {
            self.ok += 1;
        } else {
            self.errors += 1;
        }
    }

    pub(super) fn finish(self) -> Completeness {
        Completeness {
            expected_count: self.limit,
            observed_unique_config_ids: self.seen.len() as u64,
            ok_count: self.ok,
            error_count: self.errors,
        }
    }
}
