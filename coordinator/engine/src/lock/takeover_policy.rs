//! Takeover policy: when a run may be taken from its owner. Decisions without input, output or
//! clock.

use std::time::Duration;

use rollout_protocol::event::TakeoverReason;

use super::LockWaitPolicy;

/// The longest gap between two answers that counts as watched: a process that slept in between saw
/// nothing of the server.
const MAX_OBSERVED_GAP: Duration = Duration::from_secs(5);

/// How long an owner that seems to have ended with an earlier boot of this machine must be silent. A
/// living one, on a copy of the machine, renews its entry every second.
const SILENCE_AFTER_BOOT: Duration = Duration::from_secs(10);

/// Watches a value for a sign of life. Only time between two answers counts: an owner cannot be
/// heard while the server does not answer.
#[derive(Debug)]
pub(super) struct ChangeWatch<T> {
    seen: Option<T>,
    answered: Option<Duration>,
    watched: WatchObservation,
}

/// Observations of a value so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WatchObservation {
    /// How long it has been unchanged.
    pub(super) unchanged: Duration,
    /// Whether it ever changed.
    pub(super) changed: bool,
}

/// State of an owner that is not this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerStatus {
    /// It has released the run.
    Released,
    /// It is proven dead.
    Dead,
    /// It seems to have ended with an earlier boot of this machine.
    EarlierBoot,
    /// It may be alive.
    Unproven,
}

/// Decision about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeoverDecision {
    /// Take the run; a takeover when there is a reason.
    Take(Option<TakeoverReason>),
    /// Keep watching.
    Wait,
    /// Leave it to its owner.
    Held,
}

impl<T: PartialEq> ChangeWatch<T> {
    pub(super) fn new() -> Self {
        Self { seen: None, answered: None, watched: WatchObservation::default() }
    }

    /// Records a value that was read at a time of a monotonic clock.
    pub(super) fn record_value(&mut self, at: Duration, value: T) -> WatchObservation {
        let gap = self.answered.map_or(Duration::ZERO, |before| at.saturating_sub(before));
        if self.seen.as_ref() == Some(&value) {
            self.watched.unchanged += gap.min(MAX_OBSERVED_GAP);
        } else {
            self.watched.changed |= self.seen.is_some();
            self.watched.unchanged = Duration::ZERO;
            self.seen = Some(value);
        }
        self.answered = Some(at);
        self.watched
    }

    /// Records that nothing could be read.
    pub(super) fn record_failure(&mut self) {
        self.answered = None;
    }
}

/// How long an owner of an earlier boot must be silent.
pub(super) fn silence_after_boot(policy: &LockWaitPolicy) -> Duration {
    SILENCE_AFTER_BOOT.min(policy.stale)
}

/// Whether a run may be taken from `other`.
pub(super) fn decide_takeover(
    other: OwnerStatus,
    watched: WatchObservation,
    policy: &LockWaitPolicy,
) -> TakeoverDecision {
    match other {
        OwnerStatus::Released => TakeoverDecision::Take(None),
        OwnerStatus::Dead => TakeoverDecision::Take(Some(TakeoverReason::Dead)),
        OwnerStatus::Unproven | OwnerStatus::EarlierBoot if policy.force => {
            TakeoverDecision::Take(Some(TakeoverReason::Forced))
        }
        OwnerStatus::Unproven | OwnerStatus::EarlierBoot if !policy.wait => TakeoverDecision::Held,
        OwnerStatus::EarlierBoot
            if !watched.changed && watched.unchanged >= silence_after_boot(policy) =>
        {
            TakeoverDecision::Take(Some(TakeoverReason::Dead))
        }
        OwnerStatus::Unproven | OwnerStatus::EarlierBoot if watched.unchanged >= policy.stale => {
            TakeoverDecision::Take(Some(TakeoverReason::Silent))
        }
        // It lives.
        OwnerStatus::Unproven | OwnerStatus::EarlierBoot if watched.changed => {
            TakeoverDecision::Held
        }
        OwnerStatus::Unproven | OwnerStatus::EarlierBoot => TakeoverDecision::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: LockWaitPolicy =
        LockWaitPolicy { stale: Duration::from_secs(30), force: false, wait: true, hung: true };

    #[test]
    fn lock_takeover_needs_dead_or_silent_owner_or_force() {
        use TakeoverReason::{Dead, Forced, Silent};
        let seconds = |unchanged, changed| WatchObservation {
            unchanged: Duration::from_secs(unchanged),
            changed,
        };
        let impatient = LockWaitPolicy { wait: false, ..WAIT };
        let force = LockWaitPolicy { force: true, wait: false, ..WAIT };
        for (other, watched, wait_policy, expected) in [
            (OwnerStatus::Released, seconds(0, false), WAIT, TakeoverDecision::Take(None)),
            (OwnerStatus::Released, seconds(0, false), impatient, TakeoverDecision::Take(None)),
            (OwnerStatus::Dead, seconds(0, true), WAIT, TakeoverDecision::Take(Some(Dead))),
            (OwnerStatus::Dead, seconds(0, false), impatient, TakeoverDecision::Take(Some(Dead))),
            (OwnerStatus::EarlierBoot, seconds(9, false), WAIT, TakeoverDecision::Wait),
            (OwnerStatus::EarlierBoot, seconds(10, false), impatient, TakeoverDecision::Held),
            (OwnerStatus::EarlierBoot, seconds(10, true), WAIT, TakeoverDecision::Held),
            (
                OwnerStatus::EarlierBoot,
                seconds(10, false),
                WAIT,
                TakeoverDecision::Take(Some(Dead)),
            ),
            (
                OwnerStatus::EarlierBoot,
                seconds(0, true),
                force,
                TakeoverDecision::Take(Some(Forced)),
            ),
            (OwnerStatus::Unproven, seconds(0, false), WAIT, TakeoverDecision::Wait),
            (OwnerStatus::Unproven, seconds(29, false), WAIT, TakeoverDecision::Wait),
            (OwnerStatus::Unproven, seconds(0, true), WAIT, TakeoverDecision::Held),
            (OwnerStatus::Unproven, seconds(30, false), WAIT, TakeoverDecision::Take(Some(Silent))),
            (OwnerStatus::Unproven, seconds(0, false), impatient, TakeoverDecision::Held),
            (OwnerStatus::Unproven, seconds(0, true), force, TakeoverDecision::Take(Some(Forced))),
        ] {
            assert_eq!(
                decide_takeover(other, watched, &wait_policy),
                expected,
                "{other:?} {watched:?}"
            );
        }
    }

    #[test]
    fn lock_silence_counts_only_time_between_answers() {
        let at = Duration::from_secs;
        let mut watch = ChangeWatch::new();
        watch.record_value(at(0), 1);
        assert_eq!(watch.record_value(at(2), 1).unchanged, at(2));
        watch.record_failure();
        assert_eq!(watch.record_value(at(60), 1).unchanged, at(2));
        assert_eq!(watch.record_value(at(61), 1).unchanged, at(3));
        // This process slept.
        assert_eq!(watch.record_value(at(600), 1).unchanged, at(3) + MAX_OBSERVED_GAP);
        let changed = watch.record_value(at(601), 2);
        assert_eq!(changed, WatchObservation { unchanged: at(0), changed: true });
        assert!(watch.record_value(at(602), 2).changed);
    }
}
