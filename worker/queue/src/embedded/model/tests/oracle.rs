//! A naive work stream: a list that every call searches from its beginning.

use super::*;

#[derive(Debug, Clone)]
pub(super) enum ModelCall {
    Offer(u8),
    Pull(usize),
    /// Delivers one ready offer, chosen by a number.
    Deliver(usize),
    Progress(u64),
    Ack(u64),
    Nak(u64),
    Withdraw(u8),
    Pass(u64),
    Restart,
    LoseAcks(usize),
    LoseTail(u64),
}

pub(super) fn any_call() -> impl Strategy<Value = ModelCall> {
    prop_oneof![
        6 => (0u8..12).prop_map(ModelCall::Offer),
        6 => (0usize..5).prop_map(ModelCall::Pull),
        2 => (0usize..4).prop_map(ModelCall::Deliver),
        2 => (0u64..20).prop_map(ModelCall::Progress),
        3 => (0u64..20).prop_map(ModelCall::Ack),
        2 => (0u64..20).prop_map(ModelCall::Nak),
        1 => (0u8..12).prop_map(ModelCall::Withdraw),
        3 => (0u64..50).prop_map(ModelCall::Pass),
        1 => Just(ModelCall::Restart),
        1 => (0usize..4).prop_map(ModelCall::LoseAcks),
        1 => (0u64..4).prop_map(ModelCall::LoseTail),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum OracleOfferState {
    New,
    Redelivery(usize),
    InFlight(Duration),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OracleOffer {
    pub(super) sequence: u64,
    pub(super) offer: Offer,
    pub(super) delivered: u32,
    state: OracleOfferState,
}

/// A naive work stream.
#[derive(Debug, Default)]
pub(super) struct WorkOracle {
    pub(super) now: Duration,
    last: u64,
    pub(super) offers: Vec<OracleOffer>,
    acked: Vec<(u64, Offer)>,
    turns: usize,
}

impl WorkOracle {
    fn find(&mut self, sequence: u64) -> Option<&mut OracleOffer> {
        self.offers.iter_mut().find(|k| k.sequence == sequence)
    }

    fn is_present(&self, offer: &Offer) -> bool {
        self.offers.iter().any(|k| (k.offer.run, k.offer.item) == (offer.run, offer.item))
    }

    fn add(&mut self, sequence: u64, offer: Offer) {
        self.offers.push(OracleOffer {
            sequence,
            offer,
            delivered: 0,
            state: OracleOfferState::New,
        });
        self.offers.sort_by_key(|k| k.sequence);
    }

    fn redeliver(&mut self, sequence: u64) {
        self.turns += 1;
        let turn = self.turns;
        self.find(sequence).expect("known").state = OracleOfferState::Redelivery(turn);
    }

    pub(super) fn in_flight(&self) -> Vec<(Duration, u64)> {
        let flying = self.offers.iter().filter_map(|k| match k.state {
            OracleOfferState::InFlight(until) => Some((until, k.sequence)),
            OracleOfferState::New | OracleOfferState::Redelivery(_) => None,
        });
        let mut flying: Vec<_> = flying.collect();
        flying.sort_unstable();
        flying
    }

    fn expire(&mut self) {
        for (until, sequence) in self.in_flight() {
            if until <= self.now {
                self.redeliver(sequence);
            }
        }
    }

    /// The sequences that are ready, in the order of a pull.
    pub(super) fn ready(&mut self) -> Vec<u64> {
        self.expire();
        let mut ready: Vec<(usize, u64)> = (self.offers.iter())
            .filter_map(|k| match k.state {
                OracleOfferState::New => Some((usize::MAX, k.sequence)),
                OracleOfferState::Redelivery(turn) => Some((turn, k.sequence)),
                OracleOfferState::InFlight(_) => None,
            })
            .collect();
        ready.sort_unstable();
        ready.into_iter().map(|(_, sequence)| sequence).collect()
    }

    /// Delivers a ready offer; returns its delivery count.
    pub(super) fn deliver(&mut self, sequence: u64) -> u32 {
        let now = self.now;
        let kept = self.find(sequence).expect("known");
        kept.delivered += 1;
        kept.state = OracleOfferState::InFlight(now + LEASE);
        kept.delivered
    }

    pub(super) fn pull(&mut self, max: usize) -> Vec<(u64, u32)> {
        let ready = self.ready();
        let taken = ready.into_iter().take(max);
        taken.map(|sequence| (sequence, self.deliver(sequence))).collect()
    }

    pub(super) fn apply(&mut self, call: &ModelCall) {
        match *call {
            ModelCall::Offer(n) => {
                if !self.is_present(&offer(n)) {
                    self.last += 1;
                    self.add(self.last, offer(n));
                }
            }
            ModelCall::Pull(_) | ModelCall::Deliver(_) => unreachable!("compared by the caller"),
            ModelCall::Progress(sequence) => {
                self.expire();
                let until = self.now + LEASE;
                if let Some(OracleOffer { state: OracleOfferState::InFlight(at), .. }) =
                    self.find(sequence)
                {
                    *at = until;
                }
            }
            ModelCall::Ack(sequence) => {
                if let Some(at) = self.offers.iter().position(|k| k.sequence == sequence) {
                    self.acked.push((sequence, self.offers.remove(at).offer));
                    let surplus = self.acked.len().saturating_sub(ACKS);
                    self.acked.drain(..surplus);
                }
            }
            ModelCall::Nak(sequence) => {
                if let Some(OracleOffer { state: OracleOfferState::InFlight(_), .. }) =
                    self.find(sequence)
                {
                    self.redeliver(sequence);
                }
            }
            ModelCall::Withdraw(n) => {
                let gone = offer(n);
                self.offers.retain(|k| (k.offer.run, k.offer.item) != (gone.run, gone.item));
            }
            ModelCall::Pass(seconds) => self.now += Duration::from_secs(seconds),
            ModelCall::Restart => {
                let mut flying: Vec<u64> = self.in_flight().into_iter().map(|(_, s)| s).collect();
                flying.sort_unstable();
                flying.into_iter().for_each(|sequence| self.redeliver(sequence));
            }
            ModelCall::LoseAcks(n) => {
                for _ in 0..n {
                    if let Some((sequence, offer)) = self.acked.pop()
                        && !self.is_present(&offer)
                    {
                        self.add(sequence, offer);
                    }
                }
            }
            ModelCall::LoseTail(n) => {
                self.last = self.last.saturating_sub(n);
                let last = self.last;
                self.offers.retain(|k| k.sequence <= last);
                self.acked.retain(|(sequence, _)| *sequence <= last);
            }
        }
    }
}
