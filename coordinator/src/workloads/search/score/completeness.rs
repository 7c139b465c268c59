//! Completeness of a sweep: a successful row for every configuration.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

/// Counts that show how complete a sweep is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCompleteness {
    /// Number of required configurations; `None` without a limit.
    pub expected_count: Option<u64>,
    /// Distinct configurations among the rows counted.
    pub observed_unique_config_ids: u64,
    /// Counted rows that succeeded.
    pub ok_count: u64,
    /// Counted rows that did not succeed.
    pub error_count: u64,
}

impl SweepCompleteness {
    /// Whether every required configuration has exactly one row, which succeeded. Without a limit
    /// no configuration can be missing.
    pub fn is_complete(&self) -> bool {
        self.error_count == 0
            && self.expected_count.is_none_or(|expected| {
                self.observed_unique_config_ids == expected && self.ok_count == expected
            })
    }

    /// Share of successful rows; `None` without rows.
    pub fn ok_rate(&self) -> Option<f64> {
        let rows = self.ok_count + self.error_count;
        (rows > 0).then(|| self.ok_count as f64 / rows as f64)
    }
}

/// Maximum number of configurations listed per fault.
const MAX_NAMED_CONFIGS: usize = 10;

/// Configurations that make a sweep incomplete, the first of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigGaps {
    /// Below the limit, without a row.
    pub absent: Vec<u64>,
    /// With a failed row.
    pub failed: Vec<u64>,
    /// With more than one row.
    pub repeated: Vec<u64>,
}

/// Counter of rows.
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

    /// Counts a row, and returns whether it counts. With a limit, only rows of configurations below it
    /// do.
    pub(super) fn add(&mut self, config: Option<u64>, ok: bool) -> bool {
        let counts = match (self.limit, config) {
            (Some(limit), Some(config)) => config < limit,
            (Some(_), None) => false,
            (None, _) => true,
        };
        if !counts {
            return false;
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
        true
    }

    /// Configurations below the limit that make the sweep incomplete.
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

/// Adds a number to a set of the smallest ones.
fn keep_smallest(numbers: &mut BTreeSet<u64>, number: u64) {
    numbers.insert(number);
    if numbers.len() > MAX_NAMED_CONFIGS {
        numbers.pop_last();
    }
}
