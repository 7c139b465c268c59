//! Outages: refills whose cause is one are parked, and one of them after another is begun as a probe.
//! The first sample that ran to an end of its own after this outage had ended a generation of it lets
//! all begin that are parked for the same cause; others say nothing about it.
//!
//! A fault of one sample may look like an outage. So an outage spares the refills of a group only for
//! the first [`SPARED_LOSSES`] generations of a sample.

use std::collections::BTreeMap;

use rollout_protocol::Timestamp;
use rollout_protocol::farm::{
    FarmOutage, OpenSlot, OutageCause, SampleEnd, SampleResult, SlotOutage,
};

use super::FarmCore;
use super::queue::{QueueKey, SampleQueue};

/// First and longest pause before a probe, milliseconds.
const FIRST_PAUSE_MS: i64 = 1_000;
const LONGEST_PAUSE_MS: i64 = 60_000;

/// Generations of a sample that outages may end without a use of refills: 25 minutes of probes for a
/// sample alone, and as much for each other one that shares the outage.
pub(super) const SPARED_LOSSES: u32 = 30;

/// The outages that have not ended.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenOutages(BTreeMap<OutageCause, OpenOutage>);

/// An outage that has not ended.
#[derive(Debug, Clone)]
struct OpenOutage {
    /// When the next probe is due, in active milliseconds.
    due_ms: i64,
    pause_ms: i64,
    /// Refills that wait. Not part of the journal, as is the probe: a replay puts back the ones that
    /// the run does not have.
    parked: BTreeMap<QueueKey, ParkedRefill>,
    probe: Option<RunningProbe>,
}

#[derive(Debug, Clone, Copy)]
struct ParkedRefill {
    ordinal: u64,
    /// Generations of its sample that outages ended.
    losses: u32,
}

/// The newest probe.
#[derive(Debug, Clone, Copy)]
struct RunningProbe {
    ordinal: u64,
    /// When it began, in active milliseconds.
    began_ms: i64,
}

impl OpenOutage {
    fn new(due_ms: i64, pause_ms: i64) -> Self {
        Self { due_ms, pause_ms, parked: BTreeMap::new(), probe: None }
    }

    /// When the next probe may begin. One that runs for long has found no outage so far.
    fn probe_due(&self) -> Option<i64> {
        let due = match self.probe {
            Some(probe) => probe.began_ms.saturating_add(LONGEST_PAUSE_MS),
            None => self.due_ms,
        };
        (!self.parked.is_empty()).then_some(due)
    }

    /// Takes the next probe: a refill of the sample that outages ended least often, so that one with a
    /// fault of its own keeps no other back.
    fn take_probe(&mut self, now_ms: i64) -> Option<(QueueKey, u64)> {
        let first = self.parked.iter().min_by_key(|(key, refill)| (refill.losses, **key));
        let (key, ordinal) = first.map(|(key, refill)| (*key, refill.ordinal))?;
        self.parked.remove(&key);
        self.probe = Some(RunningProbe { ordinal, began_ms: now_ms });
        Some((key, ordinal))
    }
}

impl OpenOutages {
    /// Refills that wait.
    pub(super) fn parked(&self) -> usize {
        self.0.values().map(|outage| outage.parked.len()).sum()
    }

    pub(super) fn contains(&self, cause: OutageCause) -> bool {
        self.0.contains_key(&cause)
    }

    /// The parked refill with a key.
    pub(super) fn get(&self, key: &QueueKey) -> Option<u64> {
        self.0.values().find_map(|outage| outage.parked.get(key)).map(|refill| refill.ordinal)
    }

    pub(super) fn remove(&mut self, key: &QueueKey) {
        for outage in self.0.values_mut() {
            outage.parked.remove(key);
        }
    }

    /// When the next probe is due, in active milliseconds.
    pub(super) fn probe_due(&self) -> Option<i64> {
        self.0.values().filter_map(OpenOutage::probe_due).min()
    }

    /// Forgets that a sample which has ended is a probe.
    pub(super) fn end_probe(&mut self, ordinal: u64) {
        for outage in self.0.values_mut() {
            outage.probe = outage.probe.filter(|probe| probe.ordinal != ordinal);
        }
    }

    /// Notes that an outage ended a generation. A probe that it ended makes the next one wait longer.
    fn note_loss(&mut self, now_ms: i64, slot: SlotOutage, was_probe: bool) {
        let outage = self.0.get(&slot.cause);
        // Long after its last probe was due it is another outage.
        let is_known =
            outage.is_some_and(|known| now_ms <= known.due_ms.saturating_add(LONGEST_PAUSE_MS));
        let pause_ms = match outage {
            Some(known) if was_probe => known.pause_ms.saturating_mul(2).min(LONGEST_PAUSE_MS),
            Some(_) if is_known => return,
            _ => pause_after(slot.losses),
        };
        let due_ms = now_ms.saturating_add(pause_ms);
        let outage = self.0.entry(slot.cause).or_insert_with(|| OpenOutage::new(due_ms, pause_ms));
        (outage.due_ms, outage.pause_ms) = (due_ms, pause_ms);
    }

    fn park(&mut self, key: QueueKey, ordinal: u64, slot: SlotOutage) {
        // Due at once. Earlier times are no timestamps, and would hide deadlines that are due later.
        let unknown = || OpenOutage::new(0, FIRST_PAUSE_MS);
        let outage = self.0.entry(slot.cause).or_insert_with(unknown);
        outage.parked.insert(key, ParkedRefill { ordinal, losses: slot.losses });
    }

    /// The outages as documents.
    pub(super) fn to_snapshot(&self) -> Vec<FarmOutage> {
        let outages = self.0.iter();
        let outages = outages.map(|(cause, OpenOutage { due_ms, pause_ms, .. })| FarmOutage {
            cause: *cause,
            due_ms: *due_ms,
            pause_ms: *pause_ms,
        });
        outages.collect()
    }
}

impl From<&[FarmOutage]> for OpenOutages {
    fn from(outages: &[FarmOutage]) -> Self {
        let outages = outages.iter();
        Self(outages.map(|one| (one.cause, OpenOutage::new(one.due_ms, one.pause_ms))).collect())
    }
}

/// The pause after an outage that begins with the loss of a sample which outages ended this often: a
/// sample that is lost again at once does not begin again at once.
fn pause_after(losses: u32) -> i64 {
    let doublings = losses.saturating_sub(1).min(6);
    (FIRST_PAUSE_MS << doublings).min(LONGEST_PAUSE_MS)
}

impl SampleQueue {
    /// Lets a parked refill begin as the probe of its outage, when one is due.
    fn begin_probes(&mut self, now_ms: i64) {
        for outage in self.outages.0.values_mut() {
            if outage.probe_due().is_some_and(|due| due <= now_ms)
                && let Some((key, ordinal)) = outage.take_probe(now_ms)
            {
                self.waiting.insert(key, ordinal);
            }
        }
    }
}

impl FarmCore {
    /// Time without pauses, milliseconds.
    fn active_ms(&self, at: Timestamp) -> i64 {
        at.as_millisecond().saturating_sub(self.paused_until(at))
    }

    /// Notes that an outage ended a generation, and parks the next one, `ordinal`.
    pub(super) fn park_after_loss(
        &mut self,
        at: Timestamp,
        ordinal: u64,
        slot: SlotOutage,
        was_probe: bool,
    ) {
        let now_ms = self.active_ms(at);
        self.queue.outages.note_loss(now_ms, slot, was_probe);
        self.park(ordinal, slot);
    }

    /// Keeps a refill back until its outage has ended.
    pub(super) fn park(&mut self, ordinal: u64, slot: SlotOutage) {
        if let Some(key) = self.queue_key(ordinal) {
            self.queue.outages.park(key, ordinal, slot);
        }
    }

    /// Notes the end of a sample. One that ran to an end of its own shows that the outage is over that
    /// had ended its last generation.
    pub(super) fn note_end(&mut self, result: &SampleResult, former: Option<SlotOutage>) {
        let has_run = match result.end {
            SampleEnd::Completed | SampleEnd::Truncated => true,
            SampleEnd::NoResult { .. } => !result.end.is_refillable(),
            SampleEnd::Cancelled { .. } => false,
        };
        if let Some(former) = former.filter(|_| has_run) {
            self.end_outage(former.cause);
        }
    }

    fn end_outage(&mut self, cause: OutageCause) {
        let Some(outage) = self.queue.outages.0.remove(&cause) else { return };
        let released = outage.parked.into_iter().map(|(key, refill)| (key, refill.ordinal));
        self.queue.waiting.extend(released);
        let slots = self.groups.values_mut().flat_map(|group| &mut group.samples);
        for slot in slots.filter_map(|slot| slot.outage.as_mut()) {
            slot.is_parked &= slot.cause != cause;
        }
    }

    /// Lets parked refills begin as probes, where one is due.
    pub(super) fn begin_probes(&mut self, at: Timestamp) {
        if self.paused_since.is_none() {
            let now_ms = self.active_ms(at);
            self.queue.begin_probes(now_ms);
        }
    }
}

/// Whether an outage that ends a generation of a slot uses no refill of its group.
pub(super) fn is_spared(slot: &OpenSlot, result: &SampleResult) -> bool {
    result.outage().is_some() && slot.outage.is_none_or(|former| former.losses < SPARED_LOSSES)
}

/// The outages of a slot whose present generation ended with a result that another one replaces.
pub(super) fn outage_after(slot: &OpenSlot, result: &SampleResult) -> Option<SlotOutage> {
    match (result.outage(), slot.outage) {
        (Some(cause), former) => {
            let losses = former.map_or(0, |former| former.losses).saturating_add(1);
            Some(SlotOutage { cause, losses, is_parked: true })
        }
        (None, former) => former.map(|former| SlotOutage { is_parked: false, ..former }),
    }
}
