//! Admission of new pods: a rate of starts, and a bound of pods that wait for their start.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rollout_base::rate_limit::RunRateLimiter;
use rollout_protocol::wire::offer::RunRateLimits;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::cluster::Cluster;

/// Limits that keep a scheduler usable, shared by all runs of a worker.
#[derive(Debug)]
pub(super) struct Admission {
    rate: RunRateLimiter,
    pending: Semaphore,
    /// Pods that exist.
    pods: AtomicUsize,
}

/// A pod that exists.
#[derive(Debug)]
pub(super) struct CountedPod(Arc<Cluster>);

impl CountedPod {
    /// Counts a pod until this is dropped.
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        cluster.admission.pods.fetch_add(1, Ordering::Relaxed);
        Self(cluster)
    }
}

impl Drop for CountedPod {
    fn drop(&mut self) {
        self.0.admission.pods.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    /// The limits of the operator.
    pub(super) fn new(max_pending: u32, starts_per_minute: Option<u32>) -> Self {
        let limits = RunRateLimits { starts_per_minute, ..RunRateLimits::default() };
        let pending = Semaphore::new(max_pending as usize);
        Self { rate: RunRateLimiter::new(limits), pending, pods: AtomicUsize::new(0) }
    }

    /// Waits until one more pod may be created. The caller holds the permit until the pod runs or is
    /// removed. A caller that stops waiting takes no place.
    pub(super) async fn admit(&self) -> SemaphorePermit<'_> {
        let permit = self.pending.acquire().await.expect("the semaphore is never closed");
        self.rate.wait_for_start().await;
        permit
    }

    /// Whether there are pods besides one that asks.
    pub(super) fn holds_other_pods(&self) -> bool {
        self.pods.load(Ordering::Relaxed) > 1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn admission_bounds_pending_pods_and_their_rate() {
        let admission = Admission::new(2, Some(60));
        let began = Instant::now();
        let (first, second) = (admission.admit().await, admission.admit().await);
        assert_eq!(admission.pending.available_permits(), 0);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        {
            let third = admission.admit();
            let waited = tokio::time::timeout(Duration::from_secs(60), third).await;
            assert!(waited.is_err(), "two pods are pending");
        }
        drop(first);
        let third = tokio::time::timeout(Duration::from_secs(60), admission.admit()).await;
        assert!(third.is_ok());
        drop(second);
    }
}
