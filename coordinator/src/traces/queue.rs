//! The bounded queue between the makers of spans and the thread that sends them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rollout_base::traces::TraceSpan;

/// Spans that wait to be sent. A span has about 1 KiB.
const CAPACITY: usize = 8192;

/// Spans in one request.
const BATCH: usize = 512;

/// How long spans wait for others to share their request.
const LINGER: Duration = Duration::from_secs(1);

/// The queue.
#[derive(Debug, Default)]
pub(super) struct SpanQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<TraceSpan>,
    /// Spans of the batch that is being sent.
    in_flight: usize,
    /// Whether no span is taken any more.
    is_closed: bool,
}

impl QueueState {
    fn unsent(&self) -> usize {
        self.waiting.len() + self.in_flight
    }
}

impl SpanQueue {
    /// Adds a span; `false` if there is no room for it.
    pub(super) fn push(&self, span: TraceSpan) -> bool {
        let mut state = self.state();
        if state.is_closed || state.waiting.len() >= CAPACITY {
            return false;
        }
        state.waiting.push_back(span);
        // The sender waits for the first span, and then for a full batch.
        if state.waiting.len() == 1 || state.waiting.len() == BATCH {
            self.changed.notify_all();
        }
        true
    }

    /// Waits for the next batch; the former one is done with. `None` when the queue is closed and
    /// empty.
    pub(super) fn next_batch(&self) -> Option<Vec<TraceSpan>> {
        let mut state = self.state();
        state.in_flight = 0;
        self.changed.notify_all();
        while state.waiting.is_empty() {
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_partial = |state: &mut QueueState| !state.is_closed && state.waiting.len() < BATCH;
        let lingered = self.changed.wait_timeout_while(state, LINGER, is_partial);
        let (mut state, _timed_out) = lingered.unwrap_or_else(PoisonError::into_inner);
        let count = state.waiting.len().min(BATCH);
        state.in_flight = count;
        Some(state.waiting.drain(..count).collect())
    }

    /// Takes no further span, and waits up to `limit` until the others are sent. Returns how many
    /// are not.
    pub(super) fn close(&self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        let mut state = self.state();
        state.is_closed = true;
        self.changed.notify_all();
        while state.unsent() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.unsent()
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollout_base::supervise;
    use rollout_protocol::Timestamp;
    use rollout_protocol::id::{ExecId, ItemId, RunId};
    use rollout_protocol::trace_id::{SpanId, TraceId};

    use super::*;

    fn span() -> TraceSpan {
        TraceSpan {
            trace: TraceId::for_item(RunId::from_bytes([1; 16]), ItemId::from_bytes([1; 16])),
            id: SpanId::for_execution(ExecId::from_bytes([1; 16])),
            parent: None,
            name: "execution",
            started_at: Timestamp::UNIX_EPOCH,
            ended_at: Timestamp::UNIX_EPOCH,
            attributes: Vec::new(),
            events: Vec::new(),
            error: None,
        }
    }

    #[test]
    fn full_queue_drops_spans_and_sends_the_others_in_batches() {
        let queue = SpanQueue::default();
        let taken = (0..CAPACITY + 10).filter(|_| queue.push(span())).count();
        assert_eq!(taken, CAPACITY);
        assert_eq!(queue.close(Duration::ZERO), CAPACITY);
        assert!(!queue.push(span()), "it is closed");
        let sizes: Vec<_> =
            std::iter::from_fn(|| queue.next_batch()).map(|batch| batch.len()).collect();
        assert_eq!(sizes, [BATCH; CAPACITY / BATCH]);
        assert_eq!(queue.close(Duration::ZERO), 0);
    }

    #[test]
    fn close_waits_for_the_batch_that_is_sent_and_gives_up_in_time() {
        let queue = Arc::new(SpanQueue::default());
        assert!(queue.push(span()));
        let sending = Arc::clone(&queue);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let thread = supervise::thread("sender", move || {
            while sending.next_batch().is_some() {
                // The channel closes when the test is over.
                let _released = released.recv();
            }
        });
        let thread = thread.expect("a thread");
        let begun = Instant::now();
        assert_eq!(queue.close(Duration::from_millis(50)), 1);
        assert!(begun.elapsed() < Duration::from_secs(30));
        drop(release);
        assert_eq!(queue.close(Duration::from_secs(60)), 0);
        thread.join().expect("it ended");
    }
}
