//! The broker as its clients see it: the product's model of the work stream and the reports, plus
//! connections, the run lock and heartbeats. The parameter of [`ModelBroker::restart`] gives what a
//! crash loses.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_protocol::id::{ItemId, TryId, WorkerId};
use rollout_protocol::wire::delivery::{Delivery, MessageToken, QueuedOffer};
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::position::{Incarnation, ReportPosition};
use rollout_protocol::wire::report::Report;
use rollout_queue::embedded::model::{BrokerModel, BrokerModelConfig};

use crate::lock::LockValue;
use crate::names::{LEASE, RUN};

/// Number of acknowledged offers that a crash of the server can bring back.
const REMEMBERED_ACKS: usize = 4;

/// Simulated milliseconds as a duration.
fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Debug)]
pub(crate) struct ModelBroker {
    pub(crate) up: bool,
    /// Incremented each time all clients are disconnected.
    pub(crate) connections: u64,
    model: BrokerModel,
    /// The run lock with its revision.
    pub(crate) lock: Option<(u64, LockValue)>,
    revisions: u64,
    /// Last heartbeat of each worker with its time; lost on a restart.
    pub(crate) heartbeats: BTreeMap<WorkerId, (u64, Heartbeat)>,
}

/// State that a server loses when it dies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ServerLoss {
    /// Number of last report sequences lost; they are used again.
    pub(crate) reports: u8,
    /// Number of last work sequences lost; they are used again.
    pub(crate) work: u8,
    /// Number of last acknowledgements lost.
    pub(crate) acks: u8,
    /// Everything is lost: a new incarnation begins.
    pub(crate) all: bool,
}

impl ModelBroker {
    pub(crate) fn new(reports_limit: usize) -> Self {
        let config = BrokerModelConfig {
            lease: millis(LEASE),
            reports_per_run: reports_limit,
            remembered_acks: REMEMBERED_ACKS,
        };
        Self {
            up: true,
            connections: 1,
            model: BrokerModel::new(Incarnation(1), config),
            lock: None,
            revisions: 0,
            heartbeats: BTreeMap::new(),
        }
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.model.incarnation()
    }

    pub(crate) fn publish(&mut self, offer: Offer) {
        let answers = self.model.offer(&[offer]);
        assert!(answers[0].is_ok(), "the work stream has no limit: {answers:?}");
    }

    /// Sequences that a pull could deliver.
    pub(crate) fn ready(&mut self, now: u64) -> Vec<u64> {
        self.model.ready(millis(now))
    }

    /// Delivers one of the ready offers.
    pub(crate) fn deliver(&mut self, now: u64, sequence: u64) -> Option<Delivery> {
        self.model.deliver(millis(now), sequence)
    }

    /// Extends the lease of the offer with this sequence.
    pub(crate) fn progress(&mut self, now: u64, token: MessageToken) {
        let token = self.with_current_incarnation(token);
        self.model.progress(millis(now), &[token]);
    }

    /// Removes the offer with this sequence. Returns whether there was one.
    pub(crate) fn ack(&mut self, token: MessageToken) -> bool {
        let token = self.with_current_incarnation(token);
        let found = self.model.has_offer(token.sequence);
        self.model.ack(&[token]);
        found
    }

    /// The token as the server reads it. An acknowledgement names the sequence and not the
    /// incarnation, so only the client can suppress one meant for an earlier incarnation.
    fn with_current_incarnation(&self, token: MessageToken) -> MessageToken {
        MessageToken { incarnation: self.incarnation(), ..token }
    }

    pub(crate) fn withdraw(&mut self, item: ItemId, try_id: TryId) {
        self.model.withdraw(RUN, &[(item, try_id)]);
    }

    pub(crate) fn list(&self) -> Vec<QueuedOffer> {
        self.model.list(RUN)
    }

    /// End of the next lease to expire.
    pub(crate) fn next_expiry(&mut self, now: u64) -> Option<u64> {
        self.model.expire(millis(now));
        let expiry = self.model.next_expiry()?;
        Some(u64::try_from(expiry.as_millis()).expect("the world does not get that old"))
    }

    /// Appends a report. Returns its sequence, or `None` if the stream is full.
    pub(crate) fn report(&mut self, report: Report) -> Option<u64> {
        self.model.report(vec![report]).remove(0).ok()
    }

    /// Reports after a sequence.
    pub(crate) fn reports_after(&self, sequence: u64) -> impl Iterator<Item = (u64, &Report)> {
        self.model.reports_after(RUN, sequence)
    }

    /// Sequence of the last report, 0 when there is none.
    pub(crate) fn reports_head(&self) -> u64 {
        self.model.last_report_sequence(RUN)
    }

    /// Whether a position exists in the current stream.
    pub(crate) fn contains_position(&self, position: &ReportPosition) -> bool {
        self.model.reports(RUN, Some(*position), 0).is_ok()
    }

    /// Deletes and returns the reports strictly below a position of this incarnation.
    pub(crate) fn purge(&mut self, below: ReportPosition) -> Vec<Report> {
        if below.incarnation != self.incarnation() {
            return Vec::new();
        }
        let purged = self.reports_after(0).take_while(|(at, _)| *at < below.sequence);
        let purged = purged.map(|(_, report)| report.clone()).collect();
        self.model.purge(RUN, below);
        purged
    }

    /// Writes the lock if its revision matches. Returns whether it did.
    pub(crate) fn write_lock(&mut self, value: LockValue, revision: Option<u64>) -> bool {
        if self.lock.as_ref().map(|(revision, _)| *revision) != revision {
            return false;
        }
        self.revisions += 1;
        self.lock = Some((self.revisions, value));
        true
    }

    /// Restarts a dead server: all deliveries in flight become ready at once, heartbeats are lost.
    pub(crate) fn restart(&mut self, loss: ServerLoss) {
        self.up = true;
        self.connections += 1;
        self.heartbeats.clear();
        if loss.all {
            let next = Incarnation(self.incarnation().0 + 1);
            self.model.wipe(next);
            self.lock = None;
            self.revisions = 0;
            return;
        }
        self.model.restart();
        self.model.lose_report_tail(loss.reports.into());
        self.model.lose_work_tail(loss.work.into());
        self.model.lose_acks(loss.acks.into());
    }
}
