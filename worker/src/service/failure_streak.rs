//! Failures of this host in a row. Where other workers can take the work, a worker whose host fails
//! leaves it to them for a while, and returns an item that failed here once: its next try begins elsewhere
//! first. Failures that other hosts have too, such as those of a model server, an image, a registry or the
//! blob store, count for nothing.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use rollout_protocol::error::{ErrorCode, TrialError};
use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::report::ReportBody;
use tokio::time::{Instant, sleep_until};

/// The failures that the host alone explains.
const HOST_CODES: [ErrorCode; 3] =
    [ErrorCode::DISK_FAILED, ErrorCode::DISK_FULL, ErrorCode::HOST_EXHAUSTED];

/// Failures of one item that another worker may not have. They say nothing of other items.
const ITEM_CODES: [ErrorCode; 3] =
    [ErrorCode::ENVIRONMENT_LOST, ErrorCode::UNPLACEABLE, ErrorCode::VARIABLE_UNSET];

/// Failures in a row from which the worker holds back: a single one may be of the item.
const FIRST_HELD: u32 = 2;

/// First and longest pause of a worker that holds back.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Pause after a return, in which another worker takes what was returned.
const RETURN_PAUSE: Duration = Duration::from_millis(500);

/// Items that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// The failures of a worker.
#[derive(Debug)]
pub(super) struct FailureStreak {
    /// Whether other workers can take work of the same runs.
    has_others: bool,
    state: Mutex<FailureStreakState>,
}

#[derive(Debug)]
struct FailureStreakState {
    in_a_row: u32,
    /// When work is taken again.
    resumes_at: Option<Instant>,
    /// The last try of each item that failed here and was not returned since.
    failed: LruCache<(RunId, ItemId), TryId>,
}

impl FailureStreak {
    pub(super) fn new(has_others: bool) -> Self {
        let state =
            FailureStreakState { in_a_row: 0, resumes_at: None, failed: LruCache::new(REMEMBERED) };
        Self { has_others, state: Mutex::new(state) }
    }

    /// Records how an execution ended. `was_parked`: it waited for a service when it was returned, perhaps
    /// because another worker does not wait.
    pub(super) fn record(&self, offer: &Offer, body: &ReportBody, was_parked: bool) {
        if !self.has_others {
            return;
        }
        let code = retryable_error(body).map(|error| &error.code);
        let is_of_host = code.is_some_and(|code| HOST_CODES.contains(code));
        if is_of_host || was_parked || code.is_some_and(|code| ITEM_CODES.contains(code)) {
            self.state().failed.put((offer.run, offer.item), offer.try_id);
        }
        if is_of_host {
            self.count_failure();
        } else if let ReportBody::Result(_) = body {
            let mut state = self.state();
            (state.in_a_row, state.resumes_at) = (0, None);
        }
    }

    fn count_failure(&self) {
        let mut state = self.state();
        state.in_a_row = state.in_a_row.saturating_add(1);
        let Some(held) = state.in_a_row.checked_sub(FIRST_HELD) else { return };
        let [first, longest] = PAUSES;
        let pause = longest.min(first.saturating_mul(1 << held.min(16)));
        if held == 0 {
            tracing::warn!(
                "executions fail here because of this host: other workers get the work first"
            );
        }
        state.pause(pause);
    }

    /// Whether a delivery is left to other workers: an earlier try of its item failed here. Each try is
    /// returned once: there may be no other worker.
    pub(super) fn returns(&self, offer: &Offer) -> bool {
        let mut state = self.state();
        let key = (offer.run, offer.item);
        let is_later = state.failed.peek(&key).is_some_and(|failed| *failed < offer.try_id);
        if is_later {
            state.failed.pop(&key);
            state.pause(RETURN_PAUSE);
        }
        is_later
    }

    /// Waits while work is left to other workers.
    pub(super) async fn wait(&self) {
        loop {
            let resumes_at = self.state().resumes_at;
            match resumes_at.filter(|at| *at > Instant::now()) {
                Some(at) => sleep_until(at).await,
                None => return,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, FailureStreakState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FailureStreakState {
    fn pause(&mut self, pause: Duration) {
        self.resumes_at = self.resumes_at.max(Some(Instant::now() + pause));
    }
}

/// The infrastructure failure of a result that may be retried.
pub(super) fn retryable_error(body: &ReportBody) -> Option<&TrialError> {
    let ReportBody::Result(result) = body else { return None };
    result.verdict.error.as_ref().filter(|error| error.is_retryable())
}

#[cfg(test)]
mod tests {
    use rollout_protocol::error::ErrorType;
    use rollout_protocol::record::{Durations, LostReason, Timestamps, Verdict};
    use rollout_protocol::spec::budget::ModelUse;
    use rollout_protocol::wire::report::ResultBody;
    use rollout_store::MemoryStore;

    use super::*;
    use crate::testing::SampleRun;

    fn body(code: Option<ErrorCode>) -> ReportBody {
        let error = |code| TrialError::transient(ErrorType::InternalError, code, "scripted");
        let verdict = match code {
            Some(code) => Verdict::failed(error(code)),
            None => Verdict::failed(TrialError::unsupported("by the task")),
        };
        ReportBody::Result(Box::new(ResultBody {
            verdict,
            durations: Durations::default(),
            timestamps: Timestamps::instant(rollout_protocol::Timestamp::now()),
            record: None,
        }))
    }

    fn stopped() -> ReportBody {
        ReportBody::Lost {
            reason: LostReason::Stopped,
            phase: None,
            record: None,
            cost: 0.0,
            model_use: ModelUse::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn worker_whose_executions_fail_holds_back_longer_each_time_until_one_does_not() {
        let (streak, sample) =
            (FailureStreak::new(true), SampleRun::store(&MemoryStore::default()));
        let offer = sample.offer(1, TryId::first(1));
        let waited = async || {
            let began = Instant::now();
            streak.wait().await;
            began.elapsed().as_secs()
        };
        let mut pauses = Vec::new();
        for _ in 0..9 {
            streak.record(&offer, &body(Some(ErrorCode::DISK_FAILED)), false);
            pauses.push(waited().await);
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        streak.record(&offer, &body(Some(ErrorCode::DISK_FAILED)), false);
        streak.record(&offer, &body(None), false);
        assert_eq!(waited().await, 0, "the failure of a task is not one of the host");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_that_other_hosts_have_too_never_hold_a_worker_back() {
        let (streak, sample) =
            (FailureStreak::new(true), SampleRun::store(&MemoryStore::default()));
        let (first, second) = (TryId::first(1), TryId::first(1).next(1));
        for code in ErrorCode::ALL.iter().filter(|code| !HOST_CODES.contains(code)) {
            for _ in 0..5 {
                streak.record(&sample.offer(1, first), &body(Some(code.clone())), false);
            }
            assert!(streak.state().resumes_at.is_none(), "{code}");
            let is_returned = streak.returns(&sample.offer(1, second));
            assert_eq!(is_returned, ITEM_CODES.contains(code), "{code}");
            streak.wait().await;
            streak.record(&sample.offer(1, first), &body(None), false);
        }
        // Such as those of a run that is stopped.
        for n in 1..=5 {
            streak.record(&sample.offer(n, first), &stopped(), true);
        }
        assert!(streak.state().resumes_at.is_none());
        assert!(streak.returns(&sample.offer(1, second)), "another worker may not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn next_try_of_a_failed_item_is_returned_once() {
        let (streak, sample) =
            (FailureStreak::new(true), SampleRun::store(&MemoryStore::default()));
        let (first, second) = (TryId::first(1), TryId::first(1).next(1));
        streak.record(&sample.offer(1, first), &body(Some(ErrorCode::DISK_FAILED)), false);
        assert!(!streak.returns(&sample.offer(1, first)), "the same try, delivered again");
        assert!(!streak.returns(&sample.offer(2, second)), "another item");
        assert!(streak.returns(&sample.offer(1, second)));
        assert!(!streak.returns(&sample.offer(1, second)), "no other worker took it");
        let alone = FailureStreak::new(false);
        alone.record(&sample.offer(1, first), &body(Some(ErrorCode::DISK_FAILED)), false);
        assert!(!alone.returns(&sample.offer(1, second)));
    }
}
