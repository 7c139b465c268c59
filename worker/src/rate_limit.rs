//! Rate and concurrency limits of one run on this worker.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rollout_protocol::wire::offer;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// The part of a rate that may come in one burst.
const BURST: Duration = Duration::from_secs(1);

/// The limits of one run on this worker, shared by its executions.
#[derive(Debug)]
pub struct RunRateLimiter {
    starts: Option<StartLimiter>,
    agents: Option<Semaphore>,
}

/// Limit on environments started per minute.
#[derive(Debug)]
struct StartLimiter {
    /// Time from one start to the next.
    interval: Duration,
    pace: Pace,
}

/// Starts at a rate.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the interval of the last reserved start ends.
    due: Mutex<Option<Instant>>,
}

impl RunRateLimiter {
    /// The limits of an offer. Zero means no limit.
    pub fn new(limits: offer::RunRateLimits) -> Self {
        let starts = limits.starts_per_minute.filter(|rate| *rate > 0);
        let starts = starts.map(|rate| StartLimiter {
            interval: Duration::from_secs(60) / rate,
            pace: Pace::default(),
        });
        let agents = limits.agents_at_once.filter(|agents| *agents > 0);
        let agents = agents.map(|agents| Semaphore::new(agents as usize));
        Self { starts, agents }
    }

    /// Waits until one more environment may be started. A caller that gives up leaves its start
    /// unused.
    pub async fn wait_for_start(&self) {
        if let Some(starts) = &self.starts {
            let next = starts.pace.reserve_next(Instant::now(), starts.interval);
            tokio::time::sleep_until(next).await;
        }
    }

    /// Waits until one more agent may execute, in the order of the calls. The caller holds the
    /// permit for as long as the agent executes.
    pub async fn acquire_agent(&self) -> Option<SemaphorePermit<'_>> {
        let agents = self.agents.as_ref()?;
        Some(agents.acquire().await.expect("the semaphore is never closed"))
    }

    /// Whether earlier starts no longer delay the next one.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.starts.as_ref().is_none_or(|starts| starts.pace.due().is_none_or(|due| due <= now))
    }
}

impl Pace {
    /// Reserves the next start, with an interval to the one after it, and returns when it may happen.
    pub(crate) fn reserve_next(&self, now: Instant, interval: Duration) -> Instant {
        let mut due = self.due();
        let ahead = due.map_or(now, |due| due.max(now));
        *due = Some(ahead + interval);
        // A start that is due within a second may happen now.
        ahead.checked_sub(BURST.saturating_sub(interval)).map_or(now, |at| at.max(now))
    }

    fn due(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_rate_limiter(
        starts_per_minute: Option<u32>,
        agents_at_once: Option<u32>,
    ) -> RunRateLimiter {
        let limits =
            offer::RunRateLimits { starts_per_minute, agents_at_once, ..Default::default() };
        RunRateLimiter::new(limits)
    }

    /// The times, in seconds, of this many starts that are requested at once.
    async fn start_times(pacing: &RunRateLimiter, starts: usize) -> Vec<f64> {
        let began = Instant::now();
        let mut at = Vec::new();
        for _ in 0..starts {
            pacing.wait_for_start().await;
            at.push((began.elapsed().as_secs_f64() * 10.0).round() / 10.0);
        }
        at
    }

    #[tokio::test(start_paused = true)]
    async fn rate_limit_spreads_starts_over_minute() {
        let slow = run_rate_limiter(Some(12), None);
        assert_eq!(start_times(&slow, 4).await, [0.0, 5.0, 10.0, 15.0]);
        assert!(!slow.is_idle(Instant::now()));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(slow.is_idle(Instant::now()));
        assert_eq!(
            start_times(&slow, 3).await,
            [0.0, 5.0, 10.0],
            "unused starts do not accumulate"
        );
        let fast = run_rate_limiter(Some(240), None);
        assert_eq!(start_times(&fast, 7).await, [0.0, 0.0, 0.0, 0.0, 0.3, 0.5, 0.8]);
        assert_eq!(start_times(&run_rate_limiter(None, None), 3).await, [0.0; 3]);
        assert_eq!(start_times(&run_rate_limiter(Some(0), None), 3).await, [0.0; 3]);
    }

    #[tokio::test]
    async fn rate_limit_bounds_concurrent_agents() {
        let pacing = run_rate_limiter(None, Some(2));
        let (one, two) = (pacing.acquire_agent().await, pacing.acquire_agent().await);
        assert!(one.is_some() && two.is_some());
        let mut waiting = Box::pin(pacing.acquire_agent());
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        drop(one);
        assert!(waiting.await.is_some());
        assert!(self::run_rate_limiter(None, None).acquire_agent().await.is_none());
    }
}
