//! Trials of a plan that a program requests one by one.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_engine::core::AnnouncedChunk;
use tokio::sync::Notify;

/// Receives the announcements of hook events while trials run.
pub trait EventChunkListener: fmt::Debug + Send + Sync {
    /// Called for each announcement when it is durable. Must not block.
    fn on_event_chunk(&self, chunk: AnnouncedChunk);
}

/// Requested trials of a plan, by their ordinals, in the order of the requests.
#[derive(Debug, Default)]
pub struct TrialRequests {
    state: Mutex<TrialRequestsState>,
    /// Notified when there are new requests or the list is closed.
    growth: Arc<Notify>,
    listener: Option<Arc<dyn EventChunkListener>>,
}

#[derive(Debug, Default)]
struct TrialRequestsState {
    pending: VecDeque<u64>,
    requested: HashSet<u64>,
    closed: bool,
}

impl TrialRequests {
    /// An empty list, whose user wants the announcements of hook events.
    pub fn with_listener(listener: Arc<dyn EventChunkListener>) -> Self {
        Self { listener: Some(listener), ..Self::default() }
    }

    /// Requests a trial, unless it was requested before. Returns whether the list is open: if not,
    /// nothing is requested.
    pub fn request(&self, ordinal: u64) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        if state.requested.insert(ordinal) {
            state.pending.push_back(ordinal);
            drop(state);
            self.growth.notify_one();
        }
        true
    }

    /// Closes the list: there are no more requests. The run ends when every requested trial has a
    /// result.
    pub fn close(&self) {
        self.state().closed = true;
        self.growth.notify_one();
    }

    pub(super) fn is_open(&self) -> bool {
        !self.state().closed
    }

    /// Takes the next requests, at most `max`.
    pub(super) fn next(&self, max: usize) -> Vec<u64> {
        let mut state = self.state();
        let count = state.pending.len().min(max);
        state.pending.drain(..count).collect()
    }

    pub(super) fn on_event_chunk(&self, chunk: AnnouncedChunk) {
        if let Some(listener) = &self.listener {
            listener.on_event_chunk(chunk);
        }
    }

    pub(super) fn growth_signal(&self) -> Arc<Notify> {
        Arc::clone(&self.growth)
    }

    fn state(&self) -> MutexGuard<'_, TrialRequestsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_requests_are_handed_out_once_and_in_order() {
        let requests = TrialRequests::default();
        for ordinal in [7, 3, 7, 5] {
            assert!(requests.request(ordinal));
        }
        assert_eq!(requests.next(2), [7, 3]);
        assert!(requests.request(3), "it was requested before");
        assert_eq!(requests.next(9), [5]);
        assert!(requests.next(9).is_empty() && requests.is_open());
    }

    #[test]
    fn closed_trial_requests_take_no_more_and_keep_pending_ones() {
        let requests = TrialRequests::default();
        assert!(requests.request(1));
        requests.close();
        assert!(!requests.request(2) && !requests.is_open());
        assert_eq!(requests.next(9), [1]);
    }
}
