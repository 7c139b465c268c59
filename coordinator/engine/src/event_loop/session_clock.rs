//! The clock of a session: wall time at its start, and monotonic time since then.

use std::time::Duration;

use rollout_protocol::Timestamp;
use tokio::time::Instant;

/// Times for the decisions of a session. A wall clock that is set while the session runs changes none
/// of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionClock {
    start: Timestamp,
    started: Instant,
}

impl SessionClock {
    /// The clock that shows `start` at `started`.
    pub(super) fn new(start: Timestamp, started: Instant) -> Self {
        Self { start, started }
    }

    /// The present time.
    pub(super) fn now(&self) -> Timestamp {
        self.start.saturating_add(self.started.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// When the clock shows `at`; for a time before the session, its start.
    pub(super) fn instant(&self, at: Timestamp) -> Instant {
        let since = at.as_millisecond().saturating_sub(self.start.as_millisecond());
        self.started + Duration::from_millis(u64::try_from(since).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).expect("in range")
    }

    #[tokio::test(start_paused = true)]
    async fn session_clock_follows_monotonic_time_from_its_start() {
        let clock = SessionClock::new(time(5_000), Instant::now());
        assert_eq!(clock.now(), time(5_000));
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(clock.now(), time(5_250));
        assert_eq!(clock.instant(time(5_250)), Instant::now());
        assert_eq!(clock.instant(time(9_000)), Instant::now() + Duration::from_millis(3_750));
        assert!(clock.instant(time(0)) < Instant::now());
    }
}
