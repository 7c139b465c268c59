//! The broker as a pure state machine with the guarantees of a JetStream server and no others.
//!
//! Time is passed in as the duration since the broker's start. There is no clock, no randomness and
//! no order that depends on hashing, so a simulation that makes the same calls sees the same
//! answers. Memory grows with unacknowledged offers and unpurged reports.
//!
//! Faults of a real broker that is restarted, restored or replaced are methods:
//! [`BrokerModel::restart`], [`BrokerModel::wipe`], [`BrokerModel::lose_report_tail`],
//! [`BrokerModel::lose_acks`], [`BrokerModel::lose_work_tail`]. Calls that only a simulation makes
//! are in `simulation`.

mod reports;
#[cfg(any(test, feature = "testing"))]
mod simulation;
mod work;

#[cfg(test)]
mod tests;

use std::time::Duration;

use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::limits;
use rollout_protocol::wire::delivery::{
    Delivery, FreeCapacity, MessageToken, OfferOutcome, PublishError, QueuedOffer,
};
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::position::{Incarnation, PositionedReport, ReportPosition};
use rollout_protocol::wire::report::Report;

use crate::traits::QueueError;

/// Sizes and times of a broker.
#[derive(Debug, Clone, Copy)]
pub struct BrokerModelConfig {
    /// How long a delivery may stay unacknowledged and unextended.
    pub lease: Duration,
    /// Unpurged reports that one run may have.
    pub reports_per_run: usize,
    /// Number of acknowledged offers kept so that [`BrokerModel::lose_acks`] can restore them. 0
    /// outside simulations.
    pub remembered_acks: usize,
}

impl Default for BrokerModelConfig {
    fn default() -> Self {
        Self { lease: limits::LEASE, reports_per_run: limits::REPORTS_PER_RUN, remembered_acks: 0 }
    }
}

/// The state of a broker.
#[derive(Debug)]
pub struct BrokerModel {
    config: BrokerModelConfig,
    incarnation: Incarnation,
    work: work::WorkStream,
    reports: reports::ReportStream,
}

impl BrokerModel {
    /// An empty broker.
    pub fn new(incarnation: Incarnation, config: BrokerModelConfig) -> Self {
        Self {
            config,
            incarnation,
            work: work::WorkStream::new(config.lease, config.remembered_acks),
            reports: reports::ReportStream::new(config.reports_per_run),
        }
    }

    /// The current incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Its sizes and times.
    pub fn config(&self) -> &BrokerModelConfig {
        &self.config
    }

    /// Publishes offers unless the same try is in the queue.
    pub fn offer(&mut self, offers: &[Offer]) -> Vec<Result<OfferOutcome, PublishError>> {
        offers.iter().map(|offer| Ok(self.work.publish(*offer))).collect()
    }

    /// Delivers at most `max` offers, see [`BrokerModel::pull_fitting`].
    pub fn pull(&mut self, now: Duration, max: usize) -> Vec<Delivery> {
        self.pull_fitting(now, FreeCapacity::with_slots(max))
    }

    /// Delivers the offers that fit into `room`, the largest class that fits first; within a class
    /// redeliveries first, then new offers in the order of their publication.
    pub fn pull_fitting(&mut self, now: Duration, mut capacity: FreeCapacity) -> Vec<Delivery> {
        let incarnation = self.incarnation;
        self.work.expire(now);
        let mut deliveries = Vec::new();
        for class in self.work.classes() {
            let before = deliveries.len();
            for _ in 0..capacity.count_for(class) {
                let Some((sequence, offer, delivered)) = self.work.deliver(now, class) else {
                    break;
                };
                let token = MessageToken { incarnation, sequence };
                deliveries.push(Delivery { offer, token, delivered });
            }
            capacity = capacity.without(class, deliveries.len() - before);
        }
        deliveries
    }

    /// When the next delivery's lease ends.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.work.next_expiry()
    }

    /// Extends the leases of deliveries in flight, whichever worker holds them. A lease that has
    /// ended stays ended even if no pull has noticed: a server ends leases by its own clock.
    pub fn progress(&mut self, now: Duration, tokens: &[MessageToken]) {
        self.work.expire(now);
        for sequence in current_sequences(self.incarnation, tokens) {
            self.work.progress(now, sequence);
        }
    }

    /// Removes offers, whichever worker holds them.
    pub fn ack(&mut self, tokens: &[MessageToken]) {
        for sequence in current_sequences(self.incarnation, tokens) {
            self.work.ack(sequence);
        }
    }

    /// Returns deliveries in flight for immediate redelivery, whichever worker holds them.
    pub fn nak(&mut self, tokens: &[MessageToken]) {
        for sequence in current_sequences(self.incarnation, tokens) {
            self.work.nak(sequence);
        }
    }

    /// Deletes offers, in flight or not.
    pub fn withdraw(&mut self, run: RunId, tries: &[(ItemId, TryId)]) {
        for (item, try_id) in tries {
            self.work.withdraw(&(run, *item, *try_id));
        }
    }

    /// Every offer of the run, in the order of publication.
    pub fn list(&self, run: RunId) -> Vec<QueuedOffer> {
        self.work.list(run)
    }

    /// Appends reports; returns the sequence of each.
    pub fn report(&mut self, reports: Vec<Report>) -> Vec<Result<u64, PublishError>> {
        reports.into_iter().map(|report| self.reports.append(report)).collect()
    }

    /// At most `max` reports of the run after `from`.
    ///
    /// # Errors
    /// [`QueueError::Position`] when `from` does not exist in the current stream.
    pub fn reports(
        &self,
        run: RunId,
        from: Option<ReportPosition>,
        max: usize,
    ) -> Result<Vec<PositionedReport>, QueueError> {
        if from.is_some_and(|from| from.incarnation != self.incarnation) {
            return Err(QueueError::Position);
        }
        let incarnation = self.incarnation;
        let found = self.reports.after(run, from, max)?;
        Ok(found
            .map(|(sequence, report)| PositionedReport {
                position: ReportPosition::for_report(incarnation, sequence, report),
                report: report.clone(),
            })
            .collect())
    }

    /// The sequence of the run's last report, 0 when there is none.
    pub fn last_report_sequence(&self, run: RunId) -> u64 {
        self.reports.last_sequence_of(run)
    }

    /// Deletes the run's reports strictly below a position. A position of another incarnation
    /// deletes nothing.
    pub fn purge(&mut self, run: RunId, below: ReportPosition) {
        if below.incarnation == self.incarnation {
            self.reports.purge(run, below.sequence);
        }
    }

    /// Deletes the run's reports up to and including a sequence.
    pub fn remove_reports(&mut self, run: RunId, last: u64) {
        self.reports.purge(run, last.saturating_add(1));
    }

    /// The broker was killed and restarted with its state: everything in flight is delivered again
    /// at once.
    pub fn restart(&mut self) {
        self.work.restart();
    }

    /// The broker lost its state and has a new incarnation.
    pub fn wipe(&mut self, incarnation: Incarnation) {
        *self = Self::new(incarnation, self.config);
    }

    /// The last `n` sequences of the report stream are lost and will be reused.
    pub fn lose_report_tail(&mut self, n: u64) {
        self.reports.lose_tail(n);
    }

    /// The last `n` sequences of the work stream are lost and will be reused.
    pub fn lose_work_tail(&mut self, n: u64) {
        self.work.lose_tail(n);
    }

    /// The last `n` acknowledgements are lost: their offers are back as if never delivered. At most
    /// [`BrokerModelConfig::remembered_acks`].
    pub fn lose_acks(&mut self, n: usize) {
        self.work.lose_acks(n);
    }
}

/// The sequences of tokens of this incarnation. Tokens of others refer to messages that no longer
/// exist.
fn current_sequences(
    incarnation: Incarnation,
    tokens: &[MessageToken],
) -> impl Iterator<Item = u64> {
    tokens.iter().filter(move |t| t.incarnation == incarnation).map(|token| token.sequence)
}
