//! The model against a naive oracle: the same calls, the same answers.

use proptest::prelude::*;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::ExecId;
use rollout_protocol::record::{Durations, Timestamps, Verdict};
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::offer::{Pacing, SizeClass, Work};
use rollout_protocol::wire::report::{Body, ResultBody};

use super::*;

const LEASE: Duration = Duration::from_secs(60);
const REPORTS: usize = 6;
const ACKS: usize = 4;
const LIFE: Incarnation = Incarnation(1);

fn model() -> Model {
    let config = ModelConfig { lease: LEASE, reports_per_run: REPORTS, remembered_acks: ACKS };
    Model::new(LIFE, config)
}

fn run(n: u8) -> RunId {
    RunId::from_bytes([n; 16])
}

fn offer(n: u8) -> Offer {
    let digest = Digest::from_bytes([0; 32]);
    let trial = TrialRef { settings: digest, agent: digest, task: digest, attempt: 1 };
    Offer {
        run: run(n % 2),
        item: ItemId::from_bytes([n / 2; 16]),
        try_id: TryId::first(1),
        spec: digest,
        class: SizeClass(0),
        work: Work::Trial(trial),
        pacing: Pacing::default(),
    }
}

fn report(run_number: u8, exec: u8) -> Report {
    Report {
        run: run(run_number),
        item: ItemId::from_bytes([0; 16]),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([exec; 16]),
        spec: Digest::from_bytes([0; 32]),
        worker: "w".parse().expect("valid"),
        body: Body::Started,
    }
}

#[derive(Debug, Clone)]
enum Call {
    Offer(u8),
    Pull(usize),
    Progress(u64),
    Ack(u64),
    Nak(u64),
    Withdraw(u8),
    Pass(u64),
    Restart,
    LoseAcks(usize),
    LoseTail(u64),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (0u8..12).prop_map(Call::Offer),
        6 => (0usize..5).prop_map(Call::Pull),
        2 => (0u64..20).prop_map(Call::Progress),
        3 => (0u64..20).prop_map(Call::Ack),
        2 => (0u64..20).prop_map(Call::Nak),
        1 => (0u8..12).prop_map(Call::Withdraw),
        3 => (0u64..50).prop_map(Call::Pass),
        1 => Just(Call::Restart),
        1 => (0usize..4).prop_map(Call::LoseAcks),
        1 => (0u64..4).prop_map(Call::LoseTail),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    New,
    Again(usize),
    InFlight(Duration),
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    sequence: u64,
    offer: Offer,
    delivered: u32,
    place: Place,
}

/// The work stream as a list that every call searches from its beginning.
#[derive(Debug, Default)]
struct Oracle {
    now: Duration,
    last: u64,
    kept: Vec<Kept>,
    acked: Vec<(u64, Offer)>,
    turns: usize,
}

impl Oracle {
    fn find(&mut self, sequence: u64) -> Option<&mut Kept> {
        self.kept.iter_mut().find(|k| k.sequence == sequence)
    }

    fn present(&self, offer: &Offer) -> bool {
        self.kept.iter().any(|k| (k.offer.run, k.offer.item) == (offer.run, offer.item))
    }

    fn add(&mut self, sequence: u64, offer: Offer) {
        self.kept.push(Kept { sequence, offer, delivered: 0, place: Place::New });
        self.kept.sort_by_key(|k| k.sequence);
    }

    fn again(&mut self, sequence: u64) {
        self.turns += 1;
        let turn = self.turns;
        self.find(sequence).expect("known").place = Place::Again(turn);
    }

    fn in_flight(&self) -> Vec<(Duration, u64)> {
        let flying = self.kept.iter().filter_map(|k| match k.place {
            Place::InFlight(until) => Some((until, k.sequence)),
            Place::New | Place::Again(_) => None,
        });
        let mut flying: Vec<_> = flying.collect();
        flying.sort_unstable();
        flying
    }

    fn expire(&mut self) {
        for (until, sequence) in self.in_flight() {
            if until <= self.now {
                self.again(sequence);
            }
        }
    }

    fn pull(&mut self, max: usize) -> Vec<(u64, u32)> {
        self.expire();
        let mut ready: Vec<(usize, u64)> = (self.kept.iter())
            .filter_map(|k| match k.place {
                Place::New => Some((usize::MAX, k.sequence)),
                Place::Again(turn) => Some((turn, k.sequence)),
                Place::InFlight(_) => None,
            })
            .collect();
        ready.sort_unstable();
        let now = self.now;
        let taken = ready.into_iter().take(max).map(|(_, sequence)| {
            let kept = self.kept.iter_mut().find(|k| k.sequence == sequence).expect("known");
            kept.delivered += 1;
            kept.place = Place::InFlight(now + LEASE);
            (sequence, kept.delivered)
        });
        taken.collect()
    }

    fn apply(&mut self, call: &Call) {
        match *call {
            Call::Offer(n) => {
                if !self.present(&offer(n)) {
                    self.last += 1;
                    self.add(self.last, offer(n));
                }
            }
            Call::Pull(_) => unreachable!("compared by the caller"),
            Call::Progress(sequence) => {
                self.expire();
                let until = self.now + LEASE;
                if let Some(Kept { place: Place::InFlight(at), .. }) = self.find(sequence) {
                    *at = until;
                }
            }
            Call::Ack(sequence) => {
                if let Some(at) = self.kept.iter().position(|k| k.sequence == sequence) {
                    self.acked.push((sequence, self.kept.remove(at).offer));
                    let surplus = self.acked.len().saturating_sub(ACKS);
                    self.acked.drain(..surplus);
                }
            }
            Call::Nak(sequence) => {
                if let Some(Kept { place: Place::InFlight(_), .. }) = self.find(sequence) {
                    self.again(sequence);
                }
            }
            Call::Withdraw(n) => {
                let gone = offer(n);
                self.kept.retain(|k| (k.offer.run, k.offer.item) != (gone.run, gone.item));
            }
            Call::Pass(seconds) => self.now += Duration::from_secs(seconds),
            Call::Restart => {
                let mut flying: Vec<u64> = self.in_flight().into_iter().map(|(_, s)| s).collect();
                flying.sort_unstable();
                flying.into_iter().for_each(|sequence| self.again(sequence));
            }
            Call::LoseAcks(n) => {
                for _ in 0..n {
                    if let Some((sequence, offer)) = self.acked.pop()
                        && !self.present(&offer)
                    {
                        self.add(sequence, offer);
                    }
                }
            }
            Call::LoseTail(n) => {
                self.last = self.last.saturating_sub(n);
                let last = self.last;
                self.kept.retain(|k| k.sequence <= last);
                self.acked.retain(|(sequence, _)| *sequence <= last);
            }
        }
    }
}

fn token(sequence: u64) -> [Token; 1] {
    [Token { incarnation: LIFE, sequence }]
}

fn apply(model: &mut Model, now: Duration, call: &Call) {
    match *call {
        Call::Offer(n) => {
            let present = model.list(offer(n).run).iter().any(|l| l.item == offer(n).item);
            let expected = if present { Offered::Present } else { Offered::Published };
            assert_eq!(model.offer(&[offer(n)]), [Ok(expected)]);
        }
        Call::Progress(sequence) => model.progress(now, &token(sequence)),
        Call::Ack(sequence) => model.ack(&token(sequence)),
        Call::Nak(sequence) => model.nak(&token(sequence)),
        Call::Withdraw(n) => model.withdraw(offer(n).run, &[(offer(n).item, offer(n).try_id)]),
        Call::Restart => model.restart(),
        Call::LoseAcks(n) => model.lose_acks(n),
        Call::LoseTail(n) => model.lose_work_tail(n),
        Call::Pull(_) | Call::Pass(_) => {}
    }
}

proptest! {
    #[test]
    fn work_is_delivered_as_the_oracle_says(calls in prop::collection::vec(call(), 1..120)) {
        let (mut model, mut oracle) = (model(), Oracle::default());
        for call in &calls {
            if let Call::Pull(max) = call {
                let pulled = model.pull(oracle.now, *max);
                let seen: Vec<_> =
                    pulled.iter().map(|d| (d.token.sequence, d.delivered)).collect();
                prop_assert_eq!(seen, oracle.pull(*max));
            } else {
                apply(&mut model, oracle.now, call);
                oracle.apply(call);
            }
            let flying = oracle.in_flight();
            prop_assert_eq!(model.next_expiry(), flying.first().map(|(until, _)| *until));
            prop_assert_eq!(model.has_ready(), flying.len() < oracle.kept.len());
            for n in 0..2 {
                let listed: Vec<_> =
                    model.list(run(n)).iter().map(|l| (l.item, l.delivered)).collect();
                let kept = oracle.kept.iter().filter(|k| k.offer.run == run(n));
                let kept: Vec<_> = kept.map(|k| (k.offer.item, k.delivered > 0)).collect();
                prop_assert_eq!(listed, kept);
            }
        }
    }

    #[test]
    fn reports_are_read_as_the_oracle_says(
        calls in prop::collection::vec((0u8..6, 0u8..2, 0u8..5, 0u64..12), 1..150),
    ) {
        let mut model = model();
        let mut life = LIFE;
        let mut last = 0;
        let mut kept: Vec<(u64, Report)> = Vec::new();
        for (kind, r, exec, n) in calls {
            match kind {
                0 | 1 => {
                    let full = kept.iter().filter(|(_, k)| k.run == run(r)).count() >= REPORTS;
                    let answers = model.report(vec![report(r, exec)]);
                    let expected = if full { Err(Refused::Full) } else { Ok(last + 1) };
                    prop_assert_eq!(answers, [expected]);
                    if !full {
                        last += 1;
                        kept.push((last, report(r, exec)));
                    }
                }
                2 => {
                    let below = Position::of(life, n, &report(r, exec));
                    model.purge(run(r), below);
                    kept.retain(|(sequence, k)| k.run != run(r) || *sequence >= n);
                }
                3 if exec == 0 => {
                    model.lose_report_tail(n / 4);
                    last -= last.min(n / 4);
                    kept.retain(|(sequence, _)| *sequence <= last);
                }
                4 if exec == 0 => {
                    life = Incarnation(life.0 + 1);
                    model.wipe(life);
                    last = 0;
                    kept.clear();
                }
                _ => {}
            }
            let of_run: Vec<&(u64, Report)> =
                kept.iter().filter(|(_, k)| k.run == run(r)).collect();
            for incarnation in [life, Incarnation(life.0 + 7)] {
                let from = Position::of(incarnation, n, &report(r, exec));
                let there = of_run.iter().position(|(s, k)| {
                    incarnation == life && *s == n && from.is_of(k)
                });
                let read = model.reports(run(r), Some(from), 3);
                match (there, read) {
                    (None, Err(QueueError::Position)) => {}
                    (Some(at), Ok(read)) => {
                        let read: Vec<u64> = read.iter().map(|x| x.position.sequence).collect();
                        let rest: Vec<u64> =
                            of_run[at + 1..].iter().take(3).map(|(s, _)| *s).collect();
                        prop_assert_eq!(read, rest);
                    }
                    (there, read) => prop_assert!(false, "{there:?}, but {read:?}"),
                }
            }
            let all = model.reports(run(r), None, usize::MAX).expect("no position");
            let all: Vec<_> = all.into_iter().map(|x| (x.position.sequence, x.report)).collect();
            prop_assert_eq!(all, of_run.into_iter().cloned().collect::<Vec<_>>());
        }
    }
}

#[test]
fn tokens_and_positions_of_a_former_life_do_nothing() {
    let mut model = model();
    model.offer(&[offer(0), offer(1)]);
    let former = model.pull(Duration::ZERO, 2);
    model.wipe(Incarnation(2));
    model.offer(&[offer(2), offer(3)]);
    model.report(vec![report(0, 1)]);
    let tokens: Vec<Token> = former.iter().map(|d| d.token).collect();
    model.ack(&tokens);
    model.nak(&tokens);
    let place = Position::of(LIFE, 9, &report(0, 0));
    model.purge(run(0), place);
    assert_eq!(model.pull(Duration::ZERO, 9).len(), 2);
    assert_eq!(model.reports(run(0), None, 9).expect("no position").len(), 1);
}

#[test]
fn the_biggest_class_that_fits_comes_first() {
    let mut model = model();
    let classes = [SizeClass(0), SizeClass::SOLO, SizeClass(2), SizeClass(1), SizeClass(0)];
    let offers = (0..).zip(classes).map(|(n, class)| Offer { class, ..offer(n) });
    model.offer(&offers.collect::<Vec<_>>());
    let mut pull = |room| -> Vec<SizeClass> {
        model.pull_into(Duration::ZERO, room).iter().map(|d| d.offer.class).collect()
    };
    let room = Room { slots: 9, shares: Some(17), idle: false };
    assert_eq!(pull(room), [SizeClass(2), SizeClass(0)]);
    let room = Room { slots: 9, shares: None, idle: true };
    assert_eq!(pull(room), [SizeClass::SOLO], "alone");
    assert_eq!(pull(Room { slots: 1, ..room }), [SizeClass(1)]);
    assert_eq!(pull(room), [SizeClass(0)]);
}

#[test]
fn only_a_report_with_unbounded_texts_is_too_large() {
    let mut model = model();
    let at = "2026-01-01T00:00:00Z".parse().expect("valid");
    let with = |message: String| {
        let mut error = TrialError::new(
            ErrorType::InternalError,
            ErrorCode::BUG,
            ErrorClass::Infrastructure,
            RetryClass::Permanent,
            "",
        );
        error.message = message;
        let verdict = Verdict::failed(error);
        let body = ResultBody {
            verdict,
            durations: Durations::default(),
            timestamps: Timestamps::instant(at),
            record: None,
        };
        Report { body: Body::Result(Box::new(body)), ..report(0, 0) }
    };
    let longest = limits::REPORT_BYTES - with(String::new()).encode().expect("small").len();
    let answers = model.report(vec![
        with("\u{1}".repeat(limits::ERROR_MESSAGE_BYTES)),
        with("x".repeat(longest)),
        with("x".repeat(longest + 1)),
    ]);
    assert_eq!(answers[..2], [Ok(1), Ok(2)]);
    let refused =
        Refused::TooLarge { size_bytes: limits::REPORT_BYTES + 1, max_bytes: limits::REPORT_BYTES };
    assert_eq!(answers[2], Err(refused));
}
