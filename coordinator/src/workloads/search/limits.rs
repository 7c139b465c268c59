//! Concurrency limits from a search file.

use std::time::Duration;

use rollout_engine::concurrency::ConcurrencyLimits;

use crate::config::SearchLimits;

impl From<&SearchLimits> for ConcurrencyLimits {
    fn from(limits: &SearchLimits) -> Self {
        let interval = limits.starts_per_minute.filter(|starts| *starts > 0);
        Self {
            llm: limits.inflight,
            sweeps: limits.sweeps,
            interval: interval.map(|starts| Duration::from_secs(60) / starts),
        }
    }
}
