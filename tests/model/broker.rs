//! A server as its clients see it: one work stream with one consumer, the reports of one run, the
//! key of the run's lock, and the hellos. What is acknowledged is not fenced; what a crash can take
//! is a parameter of [`Broker::restart`].

use std::collections::BTreeMap;

use rollout_protocol::id::{ItemId, TryId, WorkerId};
use rollout_protocol::wire::delivery::{Delivery, Listed, Token};
use rollout_protocol::wire::hello::Hello;
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::position::{Incarnation, Position};
use rollout_protocol::wire::report::Report;

use crate::lock::LockValue;
use crate::names::LEASE;

/// Acknowledged offers that a crash of the server can bring back.
const REMEMBERED_ACKS: usize = 4;

#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) up: bool,
    /// Counts the times at which every client was disconnected.
    pub(crate) connections: u64,
    life: u128,
    work: Vec<Message>,
    work_last: u64,
    acked: Vec<(u64, Offer)>,
    pub(crate) reports: Vec<(u64, Report)>,
    pub(crate) reports_last: u64,
    reports_limit: usize,
    /// The lock of the run with its revision.
    pub(crate) lock: Option<(u64, LockValue)>,
    revisions: u64,
    /// The last word of every worker and when it came; not kept over a restart.
    pub(crate) hellos: BTreeMap<WorkerId, (u64, Hello)>,
}

#[derive(Debug)]
struct Message {
    sequence: u64,
    offer: Offer,
    delivered: u32,
    /// When it is delivered again; `None` while it waits for delivery.
    until: Option<u64>,
}

/// How much of its memory a server loses when it dies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Last sequences of the reports; they are used again.
    pub(crate) reports: u8,
    /// Last sequences of the work; they are used again.
    pub(crate) work: u8,
    /// Last acknowledgements.
    pub(crate) acks: u8,
    /// Everything: a new life begins.
    pub(crate) all: bool,
}

impl Broker {
    pub(crate) fn new(reports_limit: usize) -> Self {
        Self {
            up: true,
            connections: 1,
            life: 1,
            work: Vec::new(),
            work_last: 0,
            acked: Vec::new(),
            reports: Vec::new(),
            reports_last: 0,
            reports_limit,
            lock: None,
            revisions: 0,
            hellos: BTreeMap::new(),
        }
    }

    pub(crate) fn life(&self) -> Incarnation {
        Incarnation(self.life)
    }

    /// Whether it was there already.
    pub(crate) fn publish(&mut self, offer: Offer) -> bool {
        let same = |m: &Message| (m.offer.item, m.offer.try_id) == (offer.item, offer.try_id);
        if self.work.iter().any(same) {
            return true;
        }
        self.work_last += 1;
        let sequence = self.work_last;
        self.work.push(Message { sequence, offer, delivered: 0, until: None });
        false
    }

    fn expire(&mut self, now: u64) {
        for message in &mut self.work {
            if message.until.is_some_and(|until| until <= now) {
                message.until = None;
            }
        }
    }

    /// Sequences that a pull could get.
    pub(crate) fn ready(&mut self, now: u64) -> Vec<u64> {
        self.expire(now);
        let ready = self.work.iter().filter(|message| message.until.is_none());
        ready.map(|message| message.sequence).collect()
    }

    /// Delivers one of what is ready: several consumers have no common order.
    pub(crate) fn deliver(&mut self, now: u64, sequence: u64) -> Option<Delivery> {
        let incarnation = self.life();
        let message = self.work.iter_mut().find(|message| message.sequence == sequence)?;
        message.delivered += 1;
        message.until = Some(now + LEASE);
        let token = Token { incarnation, sequence };
        Some(Delivery { offer: message.offer, token, delivered: message.delivered })
    }

    /// Acts on whatever has this sequence now, in flight.
    pub(crate) fn progress(&mut self, now: u64, token: Token) {
        self.expire(now);
        let sequence = token.sequence;
        if let Some(message) = self.work.iter_mut().find(|m| m.sequence == sequence)
            && let Some(until) = &mut message.until
        {
            *until = now + LEASE;
        }
    }

    /// Removes whatever has this sequence now; whether anything had.
    pub(crate) fn ack(&mut self, token: Token) -> bool {
        let Some(at) = self.work.iter().position(|m| m.sequence == token.sequence) else {
            return false;
        };
        let Message { sequence, offer, .. } = self.work.remove(at);
        if self.acked.len() == REMEMBERED_ACKS {
            self.acked.remove(0);
        }
        self.acked.push((sequence, offer));
        true
    }

    pub(crate) fn withdraw(&mut self, item: ItemId, try_id: TryId) {
        self.work.retain(|m| (m.offer.item, m.offer.try_id) != (item, try_id));
    }

    pub(crate) fn list(&self) -> Vec<Listed> {
        let listed = |message: &Message| {
            let Offer { item, try_id, .. } = message.offer;
            Listed { item, try_id, delivered: message.delivered > 0 }
        };
        self.work.iter().map(listed).collect()
    }

    /// When the next delivery comes again.
    pub(crate) fn next_expiry(&self, now: u64) -> Option<u64> {
        let leases = self.work.iter().filter_map(|message| message.until);
        leases.filter(|until| *until > now).min()
    }

    /// Whether there was room.
    pub(crate) fn report(&mut self, report: Report) -> bool {
        if self.reports.len() >= self.reports_limit {
            return false;
        }
        self.reports_last += 1;
        self.reports.push((self.reports_last, report));
        true
    }

    /// The first report after a sequence.
    pub(crate) fn report_after(&self, sequence: u64) -> Option<&(u64, Report)> {
        self.reports.iter().find(|(at, _)| *at > sequence)
    }

    /// Whether a position is a place of this stream as it is now.
    pub(crate) fn knows(&self, position: &Position) -> bool {
        let here =
            |(at, report): &(u64, Report)| *at == position.sequence && position.is_of(report);
        position.incarnation == self.life() && self.reports.iter().any(here)
    }

    /// Deletes the reports strictly below a sequence.
    pub(crate) fn purge(&mut self, below: u64) -> Vec<Report> {
        let kept = self.reports.iter().position(|(at, _)| *at >= below);
        let kept = kept.unwrap_or(self.reports.len());
        self.reports.drain(..kept).map(|(_, report)| report).collect()
    }

    /// Writes the lock if its revision is this one; whether it did.
    pub(crate) fn write_lock(&mut self, value: LockValue, revision: Option<u64>) -> bool {
        if self.lock.as_ref().map(|(revision, _)| *revision) != revision {
            return false;
        }
        self.revisions += 1;
        self.lock = Some((self.revisions, value));
        true
    }

    /// It was dead and lives again: all in flight is delivered again at once, hellos are gone.
    pub(crate) fn restart(&mut self, loss: Loss) {
        self.up = true;
        self.connections += 1;
        self.hellos.clear();
        if loss.all {
            let limit = self.reports_limit;
            let (life, connections) = (self.life + 1, self.connections);
            *self = Self { life, connections, ..Self::new(limit) };
            return;
        }
        for message in &mut self.work {
            message.until = None;
        }
        self.reports_last = self.reports_last.saturating_sub(u64::from(loss.reports));
        self.reports.retain(|(at, _)| *at <= self.reports_last);
        self.work_last = self.work_last.saturating_sub(u64::from(loss.work));
        self.work.retain(|message| message.sequence <= self.work_last);
        self.acked.retain(|(sequence, _)| *sequence <= self.work_last);
        for _ in 0..loss.acks {
            let Some((sequence, offer)) = self.acked.pop() else { break };
            let same = |m: &Message| (m.offer.item, m.offer.try_id) == (offer.item, offer.try_id);
            if !self.work.iter().any(same) {
                self.work.push(Message { sequence, offer, delivered: 0, until: None });
            }
        }
    }
}
