//! Outages: refills whose cause is one are parked, and one of them at a time is begun as a probe. The
//! first sample that no outage ends lets all begin. Derived: after a replay the next probe is due at
//! once, unless the last refill was just before.

use rollout_protocol::Timestamp;
use rollout_protocol::farm::{SampleEnd, SampleResult};

use super::FarmCore;
use super::queue::SampleQueue;

/// First and longest pause before a probe, milliseconds.
const FIRST_PAUSE_MS: i64 = 1_000;
const LONGEST_PAUSE_MS: i64 = 60_000;

/// The probe of an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutageProbe {
    /// When the next one is due, in active milliseconds.
    due: i64,
    pause_ms: i64,
    /// The sample that is the probe at present.
    ordinal: Option<u64>,
}

impl SampleQueue {
    /// Notes that an outage ended a sample. A probe that it ended makes the next one wait longer.
    fn note_outage(&mut self, now: i64, ordinal: u64) {
        let probe = match self.probe {
            None => OutageProbe {
                due: now.saturating_add(FIRST_PAUSE_MS),
                pause_ms: FIRST_PAUSE_MS,
                ordinal: None,
            },
            Some(probe) if probe.ordinal == Some(ordinal) => {
                let pause_ms = probe.pause_ms.saturating_mul(2).min(LONGEST_PAUSE_MS);
                OutageProbe { due: now.saturating_add(pause_ms), pause_ms, ordinal: None }
            }
            Some(probe) => probe,
        };
        self.probe = Some(probe);
    }

    /// Forgets that a sample which has ended is the probe.
    pub(super) fn end_probe(&mut self, ordinal: u64) {
        if let Some(probe) = &mut self.probe
            && probe.ordinal == Some(ordinal)
        {
            probe.ordinal = None;
        }
    }

    /// When the next probe is due, in active milliseconds.
    pub(super) fn probe_due(&self) -> Option<i64> {
        let probe = self.probe.filter(|probe| probe.ordinal.is_none())?;
        (!self.parked.is_empty()).then_some(probe.due)
    }

    /// The outage has ended.
    fn release(&mut self) {
        self.probe = None;
        self.waiting.append(&mut self.parked);
    }
}

impl FarmCore {
    /// Time without pauses, milliseconds.
    fn active_ms(&self, at: Timestamp) -> i64 {
        at.as_millisecond().saturating_sub(self.paused_until(at))
    }

    /// Notes that an outage ended a sample.
    pub(super) fn note_outage(&mut self, at: Timestamp, ordinal: u64) {
        let now = self.active_ms(at);
        self.queue.note_outage(now, ordinal);
    }

    /// Notes the end of a sample: one that ran to an end of its own shows that no outage is left.
    pub(super) fn note_end(&mut self, result: &SampleResult) {
        let has_run = match result.end {
            SampleEnd::Completed | SampleEnd::Truncated => true,
            SampleEnd::NoResult { .. } => !result.end.is_refillable(),
            SampleEnd::Cancelled { .. } => false,
        };
        if has_run {
            self.queue.release();
        }
    }

    /// Keeps a refill back whose cause is an outage.
    pub(super) fn park(&mut self, ordinal: u64) {
        if let Some(key) = self.queue_key(ordinal) {
            self.queue.parked.insert(key, ordinal);
        }
    }

    /// Lets a parked refill begin as the probe, when one is due.
    pub(super) fn begin_probe(&mut self, at: Timestamp) {
        let now = self.active_ms(at);
        let is_due = self.queue.probe_due().is_some_and(|due| due <= now);
        if self.paused_since.is_some() || !is_due {
            return;
        }
        if let Some((key, ordinal)) = self.queue.parked.pop_first() {
            self.queue.waiting.insert(key, ordinal);
            if let Some(probe) = &mut self.queue.probe {
                probe.ordinal = Some(ordinal);
            }
        }
    }
}
