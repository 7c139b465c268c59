//! Work shared by all callers that ask for it at the same time.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};

/// Work in progress by key. The work runs while at least one caller waits for it, and is dropped
/// when the last one stops waiting.
pub struct SingleFlight<T> {
    flying: Mutex<HashMap<String, WeakShared<BoxFuture<'static, T>>>>,
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self { flying: Mutex::default() }
    }
}

impl<T> fmt::Debug for SingleFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").finish_non_exhaustive()
    }
}

impl<T: Clone + Send + 'static> SingleFlight<T> {
    /// Joins the work of `key`, or starts it with `work` if there is none. The flag in the result
    /// says whether this call started it.
    pub async fn join<F>(&self, key: &str, work: impl FnOnce() -> F) -> (T, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (flight, began) = self.join_or_start(key, work);
        (flight.await, began)
    }

    fn join_or_start<F>(
        &self,
        key: &str,
        work: impl FnOnce() -> F,
    ) -> (Shared<BoxFuture<'static, T>>, bool)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        let landed = |flight: &Shared<_>| flight.peek().is_some();
        if let Some(flight) = flying.get(key).and_then(WeakShared::upgrade)
            && !landed(&flight)
        {
            return (flight, false);
        }
        flying.retain(|_, flight| flight.upgrade().is_some_and(|flight| !landed(&flight)));
        let flight = work().boxed().shared();
        if let Some(weak) = flight.downgrade() {
            flying.insert(key.to_owned(), weak);
        }
        (flight, true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn single_flight_concurrent_callers_share_one_run() {
        let flights = SingleFlight::default();
        let (runs, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let work = || {
            let (runs, gate) = (Arc::clone(&runs), Arc::clone(&gate));
            async move {
                gate.notified().await;
                runs.fetch_add(1, Ordering::SeqCst)
            }
        };
        let both = async {
            let second = async {
                gate.notify_one();
                flights.join("a", work).await
            };
            tokio::join!(biased; flights.join("a", work), second)
        };
        assert_eq!(both.await, ((0, true), (0, false)));
        gate.notify_one();
        assert_eq!(flights.join("a", work).await, (1, true));
    }

    #[tokio::test]
    async fn single_flight_without_waiters_is_dropped() {
        let flights = SingleFlight::<()>::default();
        let token = Arc::new(());
        let held = Arc::clone(&token);
        let never = || async move {
            let _held = held;
            std::future::pending::<()>().await;
        };
        let waiting = flights.join("a", never);
        assert!(waiting.now_or_never().is_none());
        assert_eq!(Arc::strong_count(&token), 1);
        assert_eq!(flights.join("a", || async {}).await, ((), true));
    }
}
