//! Whether a sweep has a good row for every configuration.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

/// How complete a sweep is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCompleteness {
    /// Configurations that were asked for; nothing when no number was.
    pub expected_count: Option<u64>,
    /// Different configurations among the rows that count.
    pub observed_unique_config_ids: u64,
    /// Rows that count and succeeded.
    pub ok_count: u64,
    /// Rows that count and did not succeed.
    pub error_count: u64,
}

impl SweepCompleteness {
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

/// Configurations that are named when a sweep is not complete.
const MAX_NAMED_CONFIGS: usize = 10;

/// Configurations that keep a sweep from being complete, the first of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigGaps {
    /// Below the limit, and without a row.
    pub absent: Vec<u64>,
    /// With a row that did not succeed.
    pub failed: Vec<u64>,
    /// With more than one row.
    pub repeated: Vec<u64>,
}

/// Counts rows.
pub(super) struct RowCounter {
    limit: Option<u64>,
    seen: HashSet<u64>,
    failed: BTreeSet<u64>,
    repeated: BTreeSet<u64>,
    ok: u64,
    errors: u64,
}

impl RowCounter {
    pub(super) fn new(limit: Option<u64>) -> Self {
        let (failed, repeated) = (BTreeSet::new(), BTreeSet::new());
        Self { limit, seen: HashSet::new(), failed, repeated, ok: 0, errors: 0 }
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
        if let Some(config) = config {
            if !self.seen.insert(config) {
                keep_smallest(&mut self.repeated, config);
            }
            if !ok {
                keep_smallest(&mut self.failed, config);
            }
        }
        if ok {
            self.ok += 1;
        } else {
            self.errors += 1;
        }
    }

    /// The configurations below the limit that keep the sweep from being complete.
    pub(super) fn gaps(&self) -> ConfigGaps {
        let all = 0..self.limit.unwrap_or(0);
        ConfigGaps {
            absent: all.filter(|id| !self.seen.contains(id)).take(MAX_NAMED_CONFIGS).collect(),
            failed: self.failed.iter().copied().collect(),
            repeated: self.repeated.iter().copied().collect(),
        }
    }

    pub(super) fn finish(self) -> SweepCompleteness {
        SweepCompleteness {
            expected_count: self.limit,
            observed_unique_config_ids: self.seen.len() as u64,
            ok_count: self.ok,
            error_count: self.errors,
        }
    }
}

/// Adds a number to the smallest that are kept.
fn keep_smallest(numbers: &mut BTreeSet<u64>, number: u64) {
    numbers.insert(number);
    if numbers.len() > MAX_NAMED_CONFIGS {
        numbers.pop_last();
    }
}
