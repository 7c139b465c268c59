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
    /// Callers wait in their order.
    turn: tokio::sync::Mutex<()>,
    pace: Pace,
}

/// Starts at a rate.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the interval of the last start ends.
    due: Mutex<Option<Instant>>,
}

impl RunRateLimiter {
    /// The limits of an offer. Zero means no limit.
    pub fn new(limits: offer::RunRateLimits) -> Self {
        let starts = limits.starts_per_minute.filter(|rate| *rate > 0);
        let starts = starts.map(|rate| StartLimiter {
            interval: Duration::from_secs(60) / rate,
            turn: tokio::sync::Mutex::default(),
            pace: Pace::default(),
        });
        let agents = limits.agents_at_once.filter(|agents| *agents > 0);
        let agents = agents.map(|agents| Semaphore::new(agents as usize));
        Self { starts, agents }
    }

    /// Waits until one more environment may be started, in the order of the calls. A caller that gives
    /// up takes no start from those behind it.
    pub async fn wait_for_start(&self) {
        if let Some(starts) = &self.starts {
            let _turn = starts.turn.lock().await;
            let next = starts.pace.next_start(Instant::now(), starts.interval);
            tokio::time::sleep_until(next).await;
            starts.pace.take_start(Instant::now(), starts.interval);
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
    /// When the next start may happen, with an interval to the one after it.
    pub fn next_start(&self, now: Instant, interval: Duration) -> Instant {
        let ahead = self.due().map_or(now, |due| due.max(now));
        // A start that is due within a second may happen now.
        ahead.checked_sub(BURST.saturating_sub(interval)).map_or(now, |at| at.max(now))
    }

    /// Takes the next start, which [may happen](Self::next_start) now. Its caller is the only one that
    /// waits for it: others wait for their turn.
    pub fn take_start(&self, now: Instant, interval: Duration) {
        let mut due = self.due();
        let ahead = due.map_or(now, |due| due.max(now));
        *due = Some(ahead + interval);
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

    #[tokio::test(start_paused = true)]
    async fn caller_that_gives_up_takes_no_start() {
        let slow = run_rate_limiter(Some(12), None);
        let began = Instant::now();
        slow.wait_for_start().await;
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(slow.wait_for_start())).collect();
        for start in &mut waiting {
            assert!(futures_util::poll!(start.as_mut()).is_pending());
        }
        let last = waiting.pop().expect("a hundred");
        drop(waiting);
        last.await;
        assert_eq!(began.elapsed(), Duration::from_secs(5));
        slow.wait_for_start().await;
        assert_eq!(began.elapsed(), Duration::from_secs(10));
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
