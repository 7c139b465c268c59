//! Requests of a user to end a session, for the parts of it that the event loop does not cover.

use rollout_base::supervise::{self, Task};
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::{mpsc, watch};

/// Requests after which a session ends at once.
const AT_ONCE: u32 = 2;

/// The number of stop requests so far. Clones see the same requests.
#[derive(Debug, Clone)]
pub struct Interruption {
    requests: watch::Receiver<u32>,
}

impl Interruption {
    /// Counts the requests of a channel while the task lives, and passes them on.
    pub fn observe(
        mut stops: mpsc::Receiver<StopLevel>,
    ) -> (Self, mpsc::Receiver<StopLevel>, Task<()>) {
        let (counter, requests) = watch::channel(0);
        let (sender, passed_on) = mpsc::channel(4);
        let task = supervise::spawn("stop requests", async move {
            while let Some(level) = stops.recv().await {
                // The first one may already ask for the end at once.
                let least = if level == StopLevel::Kill { AT_ONCE } else { 0 };
                counter.send_modify(|count| *count = (*count + 1).max(least));
                // After the event loop has ended, only the count matters. A full channel holds more
                // requests than have a meaning.
                let _no_reader = sender.try_send(level);
            }
        });
        (Self { requests }, passed_on, task)
    }

    /// An interruption that never comes.
    pub fn never() -> Self {
        Self { requests: watch::channel(0).1 }
    }

    /// Waits for a request, or for one that came before.
    pub async fn requested(&self) {
        wait_for_more_than(self.requests.clone(), 0).await;
    }

    /// Waits until the session is to end at once: for a second request, or one of that level. Earlier
    /// requests count.
    pub fn requested_at_once(&self) -> impl Future<Output = ()> + Send + use<> {
        wait_for_more_than(self.requests.clone(), AT_ONCE - 1)
    }

    /// Waits for a request that comes after this call.
    pub fn requested_again(&self) -> impl Future<Output = ()> + Send + use<> {
        let requests = self.requests.clone();
        let before = *requests.borrow();
        wait_for_more_than(requests, before)
    }
}

async fn wait_for_more_than(mut requests: watch::Receiver<u32>, before: u32) {
    if requests.wait_for(|count| *count > before).await.is_err() {
        // No request can come any more.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn requests_are_counted_and_passed_on() {
        let (sender, stops) = mpsc::channel(1);
        let (interruption, mut passed_on, _task) = Interruption::observe(stops);
        assert_eq!(interruption.requested().now_or_never(), None);
        sender.send(StopLevel::Drain).await.expect("observed");
        interruption.requested().await;
        assert_eq!(passed_on.recv().await, Some(StopLevel::Drain));
        assert_eq!(interruption.requested_at_once().now_or_never(), None);
        let again = interruption.requested_again();
        assert_eq!(interruption.requested_again().now_or_never(), None);
        // The event loop has ended, and the count goes on.
        drop(passed_on);
        sender.send(StopLevel::Kill).await.expect("observed");
        again.await;
        interruption.requested_at_once().await;
        drop(sender);

        let (sender, stops) = mpsc::channel(1);
        let (interruption, _passed_on, _task) = Interruption::observe(stops);
        sender.send(StopLevel::Kill).await.expect("observed");
        interruption.requested_at_once().await;
        assert_eq!(Interruption::never().requested().now_or_never(), None);
    }
}
