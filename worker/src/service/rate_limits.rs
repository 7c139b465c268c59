//! The per-worker rate limits of runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::rate_limit::RunRateLimiter;
use rollout_protocol::id::RunId;
use rollout_protocol::wire::offer::{self, Offer};
use tokio::time::Instant;

/// The limiters, one per run that has limits.
#[derive(Debug, Default)]
pub(super) struct RunRateLimiters(
    Mutex<HashMap<RunId, (offer::RunRateLimits, Arc<RunRateLimiter>)>>,
);

impl RunRateLimiters {
    /// The limiter of an offer's run, if it has limits. Changed limits replace the former ones,
    /// which still hold for running executions.
    pub(super) fn for_offer(&self, offer: &Offer) -> Option<Arc<RunRateLimiter>> {
        if offer.rate_limits.is_unlimited() {
            return None;
        }
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((limits, limiter)) = runs.get(&offer.run)
            && *limits == offer.rate_limits
        {
            return Some(limiter.clone());
        }
        // An unused limiter is dropped once that lets no start happen earlier.
        let now = Instant::now();
        runs.retain(|_, (_, pacing)| Arc::strong_count(pacing) > 1 || !pacing.is_idle(now));
        let pacing = Arc::new(RunRateLimiter::new(offer.rate_limits));
        runs.insert(offer.run, (offer.rate_limits, pacing.clone()));
        Some(pacing)
    }
}

#[cfg(test)]
mod tests {
    use rollout_store::MemoryStore;

    use super::*;
    use crate::testing::SampleRun;
    use rollout_protocol::id::TryId;

    #[tokio::test(start_paused = true)]
    async fn rate_limiter_is_shared_within_run() {
        let sample = SampleRun::store(&MemoryStore::default());
        let paces = RunRateLimiters::default();
        let free = sample.offer(1, TryId::first(1));
        assert!(paces.for_offer(&free).is_none());
        let limits =
            offer::RunRateLimits { starts_per_minute: Some(6), ..offer::RunRateLimits::default() };
        let offer =
            |run: u8, rate_limits| Offer { run: RunId::from_bytes([run; 16]), rate_limits, ..free };
        let first = paces.for_offer(&offer(1, limits)).expect("limited");
        assert!(Arc::ptr_eq(&first, &paces.for_offer(&offer(1, limits)).expect("limited")));
        let other = paces.for_offer(&offer(2, limits)).expect("limited");
        assert!(!Arc::ptr_eq(&first, &other));
        let faster = offer::RunRateLimits { starts_per_minute: Some(60), ..limits };
        assert!(!Arc::ptr_eq(&first, &paces.for_offer(&offer(1, faster)).expect("limited")));
        first.wait_for_start().await;
        other.wait_for_start().await;
        drop((first, other));
        let known = |paces: &RunRateLimiters| paces.0.lock().expect("not poisoned").len();
        paces.for_offer(&offer(3, limits));
        assert_eq!(known(&paces), 2, "the second run started an environment just now");
        tokio::time::sleep(std::time::Duration::from_secs(11)).await;
        paces.for_offer(&offer(4, limits));
        assert_eq!(known(&paces), 1);
    }
}
