//! Warnings of messages that are not what they should be. One line tells of a flood of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Warnings are at least so far apart.
const MIN_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Messages of a kind that were passed over.
#[derive(Debug, Default)]
pub(super) struct WarningLimiter(Mutex<WarningLimiterState>);

#[derive(Debug, Default)]
struct WarningLimiterState {
    told: Option<Instant>,
    since: u64,
}

impl WarningLimiter {
    /// Counts a message; how many came since the last warning, when another one is due.
    pub(super) fn record(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.told.is_some_and(|told| now < told + MIN_WARNING_INTERVAL) {
            state.since += 1;
            return None;
        }
        state.told = Some(now);
        Some(std::mem::take(&mut state.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn report_flood_warning_is_due_every_minute_at_most() {
        let flood = WarningLimiter::default();
        let told: Vec<u64> = (0..1000).filter_map(|_| flood.record()).collect();
        assert_eq!(told, [0]);
        tokio::time::advance(MIN_WARNING_INTERVAL).await;
        assert_eq!((flood.record(), flood.record()), (Some(999), None));
    }
}
