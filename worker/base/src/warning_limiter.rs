//! Rate limit of warnings: one line stands for many.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Minimum time between two warnings.
const MIN_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Counts events of one kind.
#[derive(Debug, Default)]
pub struct WarningLimiter(Mutex<WarningLimiterState>);

#[derive(Debug, Default)]
struct WarningLimiterState {
    last_warning: Option<Instant>,
    since: u64,
}

impl WarningLimiter {
    /// A limiter that has counted nothing.
    pub const fn new() -> Self {
        Self(Mutex::new(WarningLimiterState { last_warning: None, since: 0 }))
    }

    /// Logs a warning, with the number of those since the last one that was due. One that is not due is
    /// a debug message.
    pub fn warn(&self, message: &dyn Display) {
        match self.record() {
            Some(0) => tracing::warn!("{message}"),
            Some(more) => tracing::warn!("{message} ({more} more since the last warning)"),
            None => tracing::debug!("{message}"),
        }
    }

    /// Counts an event. When a warning is due, returns the number of events since the last one.
    pub fn record(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.last_warning.is_some_and(|told| now < told + MIN_WARNING_INTERVAL) {
            state.since += 1;
            return None;
        }
        state.last_warning = Some(now);
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
