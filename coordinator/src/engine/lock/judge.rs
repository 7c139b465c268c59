//! When a run may be taken from its owner: decisions without input, output or clock.

use std::time::Duration;

use rollout_protocol::event::TakeoverReason;

use super::Patience;

/// The longest gap between two answers that counts as watched: whoever slept in between saw
/// nothing of what the server did.
const LONGEST_GAP: Duration = Duration::from_secs(5);

/// Watches a value for a sign of life. Only time between two answers counts: an owner cannot be
/// heard while nobody can.
#[derive(Debug)]
pub(super) struct Watch<T> {
    seen: Option<T>,
    answered: Option<Duration>,
    watched: Watched,
}

/// What was seen of a value so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Watched {
    /// How long it is unchanged.
    pub(super) unchanged: Duration,
    /// Whether it ever changed.
    pub(super) changed: bool,
}

/// What is known of an owner that is not this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Other {
    /// It has let the run go.
    Released,
    /// It is proven dead.
    Dead,
    /// It may be alive.
    Unproven,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Take the run; over from its owner when there is a reason.
    Take(Option<TakeoverReason>),
    /// Go on watching.
    Wait,
    /// Leave it to its owner.
    Held,
}

impl<T: PartialEq> Watch<T> {
    pub(super) fn new() -> Self {
        Self { seen: None, answered: None, watched: Watched::default() }
    }

    /// What was read at a time of a monotonic clock.
    pub(super) fn answered(&mut self, at: Duration, value: T) -> Watched {
        let gap = self.answered.map_or(Duration::ZERO, |before| at.saturating_sub(before));
        if self.seen.as_ref() == Some(&value) {
            self.watched.unchanged += gap.min(LONGEST_GAP);
        } else {
            self.watched.changed |= self.seen.is_some();
            self.watched.unchanged = Duration::ZERO;
            self.seen = Some(value);
        }
        self.answered = Some(at);
        self.watched
    }

    /// Nothing could be read.
    pub(super) fn unanswered(&mut self) {
        self.answered = None;
    }
}

/// Whether a run may be taken from `other`.
pub(super) fn judge(other: Other, watched: Watched, patience: &Patience) -> Verdict {
    match other {
        Other::Released => Verdict::Take(None),
        Other::Dead => Verdict::Take(Some(TakeoverReason::Dead)),
        Other::Unproven if patience.force => Verdict::Take(Some(TakeoverReason::Forced)),
        Other::Unproven if !patience.wait => Verdict::Held,
        Other::Unproven if watched.unchanged >= patience.stale => {
            Verdict::Take(Some(TakeoverReason::Silent))
        }
        // It lives.
        Other::Unproven if watched.changed => Verdict::Held,
        Other::Unproven => Verdict::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENT: Patience =
        Patience { stale: Duration::from_secs(30), force: false, wait: true, hung: true };

    #[test]
    fn an_owner_loses_its_run_only_dead_silent_or_by_force() {
        use TakeoverReason::{Dead, Forced, Silent};
        let seconds =
            |unchanged, changed| Watched { unchanged: Duration::from_secs(unchanged), changed };
        let impatient = Patience { wait: false, ..PATIENT };
        let force = Patience { force: true, wait: false, ..PATIENT };
        for (other, watched, patience, expected) in [
            (Other::Released, seconds(0, false), PATIENT, Verdict::Take(None)),
            (Other::Released, seconds(0, false), impatient, Verdict::Take(None)),
            (Other::Dead, seconds(0, true), PATIENT, Verdict::Take(Some(Dead))),
            (Other::Dead, seconds(0, false), impatient, Verdict::Take(Some(Dead))),
            (Other::Unproven, seconds(0, false), PATIENT, Verdict::Wait),
            (Other::Unproven, seconds(29, false), PATIENT, Verdict::Wait),
            (Other::Unproven, seconds(0, true), PATIENT, Verdict::Held),
            (Other::Unproven, seconds(30, false), PATIENT, Verdict::Take(Some(Silent))),
            (Other::Unproven, seconds(0, false), impatient, Verdict::Held),
            (Other::Unproven, seconds(0, true), force, Verdict::Take(Some(Forced))),
        ] {
            assert_eq!(judge(other, watched, &patience), expected, "{other:?} {watched:?}");
        }
    }

    #[test]
    fn only_time_between_answers_counts() {
        let at = Duration::from_secs;
        let mut watch = Watch::new();
        watch.answered(at(0), 1);
        assert_eq!(watch.answered(at(2), 1).unchanged, at(2));
        watch.unanswered();
        assert_eq!(watch.answered(at(60), 1).unchanged, at(2));
        assert_eq!(watch.answered(at(61), 1).unchanged, at(3));
        // This process slept.
        assert_eq!(watch.answered(at(600), 1).unchanged, at(3) + LONGEST_GAP);
        let changed = watch.answered(at(601), 2);
        assert_eq!(changed, Watched { unchanged: at(0), changed: true });
        assert!(watch.answered(at(602), 2).changed);
    }
}
