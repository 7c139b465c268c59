//! Methods for simulations only: choice of the next delivery, and inspection of state that a server
//! does not expose.

use std::time::Duration;

use rollout_protocol::id::RunId;
use rollout_protocol::wire::delivery::{Delivery, MessageToken};
use rollout_protocol::wire::report::Report;

use super::BrokerModel;

impl BrokerModel {
    /// Expires leases, as [`BrokerModel::pull`] and [`BrokerModel::progress`] do.
    pub fn expire(&mut self, now: Duration) {
        self.work.expire(now);
    }

    /// The sequences of the offers that a pull could deliver now, in the order of a pull with
    /// capacity for all of them.
    pub fn ready(&mut self, now: Duration) -> Vec<u64> {
        self.work.expire(now);
        self.work.ready.values().rev().flat_map(|class| class.values().copied()).collect()
    }

    /// Delivers the offer with this sequence if it is ready. The pulls of several workers have no
    /// common order: a worker can get a later offer before another worker gets an earlier one.
    pub fn deliver(&mut self, now: Duration, sequence: u64) -> Option<Delivery> {
        self.work.expire(now);
        let (offer, delivered) = self.work.deliver_sequence(now, sequence)?;
        let token = MessageToken { incarnation: self.incarnation, sequence };
        Some(Delivery { offer, token, delivered })
    }

    /// Whether an offer has this sequence, in flight or not.
    pub fn has_offer(&self, sequence: u64) -> bool {
        self.work.messages.contains_key(&sequence)
    }

    /// The reports of the run after a sequence, whichever report has that sequence:
    /// [`BrokerModel::reports`] without the comparison of the position.
    pub fn reports_after(
        &self,
        run: RunId,
        sequence: u64,
    ) -> impl Iterator<Item = (u64, &Report)> + use<'_> {
        let reports = self.reports.runs.get(&run).into_iter().flatten();
        reports.filter(move |(at, _)| *at > sequence).map(|(at, report)| (*at, report))
    }
}
