//! The model server against the queue of the product, which the same suite holds to what the real
//! server does: the same calls have the same answers.

use std::time::Duration;

use rollout_protocol::id::TryId;
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::delivery::{Offered, Token};
use rollout_protocol::wire::offer::SizeClass;
use rollout_protocol::wire::position::{Incarnation, Position};
use rollout_protocol::wire::report::{Body, Report};
use rollout_worker::queue::embedded::model::{Model, ModelConfig};

use crate::broker::{Broker, Loss};
use crate::names::{LEASE, RUN, exec, item, lost, offer, spec};
use crate::random::Random;

const SCHEDULES: u64 = 3_000;
const CALLS: usize = 60;
const REPORTS: usize = 6;

struct Both {
    ours: Broker,
    theirs: Model,
    now: u64,
    life: u128,
    places: Vec<Position>,
}

impl Both {
    fn new() -> Self {
        let lease = Duration::from_millis(LEASE);
        let config = ModelConfig { lease, reports_per_run: REPORTS, remembered_acks: 4 };
        let theirs = Model::new(Incarnation(1), config);
        Self { ours: Broker::new(REPORTS), theirs, now: 0, life: 1, places: Vec::new() }
    }

    fn call(&mut self, random: &mut Random) {
        self.now += random.next() % 2;
        let now = Duration::from_millis(self.now);
        // A lease that has ended has ended, whether or not anybody looks.
        self.theirs.pull(now, 0);
        self.ours.ready(self.now);
        let sequence = 1 + random.next() % 8;
        let token = Token { incarnation: self.ours.life(), sequence };
        match random.below(14) {
            0..=2 => {
                let try_id = TryId::first(1 + u32::try_from(random.below(2)).expect("small"));
                let offer = offer(item(random.below(4)), try_id, spec(1), SizeClass(0));
                let there = self.theirs.offer(&[offer])[0] == Ok(Offered::Present);
                assert_eq!(self.ours.publish(offer), there);
            }
            3..=5 => self.pull(),
            6 => {
                self.theirs.progress(now, &[token]);
                self.ours.progress(self.now, token);
            }
            7 => {
                self.theirs.ack(&[token]);
                self.ours.ack(token);
            }
            8 => {
                let (item, try_id) = (item(random.below(4)), TryId::first(1));
                self.theirs.withdraw(RUN, &[(item, try_id)]);
                self.ours.withdraw(item, try_id);
            }
            9 => self.now += random.next() % LEASE,
            10 | 11 => self.report(random),
            12 => self.purge(random),
            _ => self.restart(random),
        }
        self.compare();
    }

    fn pull(&mut self) {
        let ready = self.ours.ready(self.now);
        let theirs = self.theirs.pull(Duration::from_millis(self.now), 1);
        let Some(delivery) = theirs.first() else { return assert!(ready.is_empty()) };
        assert!(ready.contains(&delivery.token.sequence), "{delivery:?} is not in {ready:?}");
        assert_eq!(self.ours.deliver(self.now, delivery.token.sequence), Some(*delivery));
    }

    fn report(&mut self, random: &mut Random) {
        let body = if random.percent(50) { Body::Started } else { lost(LostReason::Stopped) };
        let report = Report {
            run: RUN,
            item: item(0),
            try_id: TryId::first(1),
            exec: exec(u32::try_from(random.below(5)).expect("small")),
            spec: spec(1),
            worker: "w".parse().expect("a token"),
            body,
        };
        let theirs = self.theirs.report(vec![report.clone()]);
        assert_eq!(self.ours.report(report), theirs[0].is_ok());
    }

    fn purge(&mut self, random: &mut Random) {
        if !self.places.is_empty() {
            let place = random.pick(&self.places);
            self.theirs.purge(RUN, place);
            if place.incarnation == self.ours.life() {
                self.ours.purge(place.sequence);
            }
        }
    }

    fn restart(&mut self, random: &mut Random) {
        let mut upto = |n| u8::try_from(random.below(n)).expect("small");
        let loss = Loss { reports: upto(3), work: upto(3), acks: upto(3), all: upto(6) == 0 };
        self.ours.restart(loss);
        if loss.all {
            self.life += 1;
            self.theirs.wipe(Incarnation(self.life));
        } else {
            self.theirs.restart();
            self.theirs.lose_report_tail(u64::from(loss.reports));
            self.theirs.lose_work_tail(u64::from(loss.work));
            self.theirs.lose_acks(usize::from(loss.acks));
        }
    }

    fn compare(&mut self) {
        let key = |listed: &rollout_protocol::wire::delivery::Listed| (listed.item, listed.try_id);
        let (mut ours, mut theirs) = (self.ours.list(), self.theirs.list(RUN));
        ours.sort_by_key(key);
        theirs.sort_by_key(key);
        assert_eq!(ours, theirs);
        let all = self.theirs.reports(RUN, None, 100).expect("no place is asked for");
        let theirs: Vec<_> = all.iter().map(|r| (r.position.sequence, r.report.clone())).collect();
        assert_eq!(self.ours.reports, theirs);
        self.places.extend(all.iter().map(|reported| reported.position));
        for place in &self.places {
            let known = self.theirs.reports(RUN, Some(*place), 1).is_ok();
            assert_eq!(self.ours.knows(place), known, "{place:?}");
        }
        self.places.dedup();
    }
}

#[test]
fn the_model_server_answers_as_the_queue_of_the_product() {
    for schedule in 0..SCHEDULES {
        let mut random = Random::new(schedule);
        let mut both = Both::new();
        for _ in 0..CALLS {
            both.call(&mut random);
        }
    }
}
