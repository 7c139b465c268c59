//! Tests of the model against a naive oracle.

mod oracle;

use proptest::prelude::*;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::ExecId;
use rollout_protocol::record::{Durations, Timestamps, Verdict};
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::offer::{OfferedWork, RunRateLimits, SizeClass};
use rollout_protocol::wire::report::{ReportBody, ResultBody};

use self::oracle::{ModelCall, WorkOracle, any_call};
use super::*;

const LEASE: Duration = Duration::from_secs(60);
const REPORTS: usize = 6;
const ACKS: usize = 4;
const INCARNATION: Incarnation = Incarnation(1);

fn model() -> BrokerModel {
    let config =
        BrokerModelConfig { lease: LEASE, reports_per_run: REPORTS, remembered_acks: ACKS };
    BrokerModel::new(INCARNATION, config)
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
        work: OfferedWork::Trial(trial),
        rate_limits: RunRateLimits::default(),
        model_calls: None,
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
        body: ReportBody::Started,
    }
}

fn token(sequence: u64) -> [MessageToken; 1] {
    [MessageToken { incarnation: INCARNATION, sequence }]
}

fn apply(model: &mut BrokerModel, now: Duration, call: &ModelCall) {
    match *call {
        ModelCall::Offer(n) => {
            let present = model.list(offer(n).run).iter().any(|l| l.item == offer(n).item);
            let expected =
                if present { OfferOutcome::AlreadyPresent } else { OfferOutcome::Published };
            assert_eq!(model.offer(&[offer(n)]), [Ok(expected)]);
        }
        ModelCall::Progress(sequence) => model.progress(now, &token(sequence)),
        ModelCall::Ack(sequence) => model.ack(&token(sequence)),
        ModelCall::Nak(sequence) => model.nak(&token(sequence)),
        ModelCall::Withdraw(n) => model.withdraw(offer(n).run, &[(offer(n).item, offer(n).try_id)]),
        ModelCall::Restart => model.restart(),
        ModelCall::LoseAcks(n) => model.lose_acks(n),
        ModelCall::LoseTail(n) => model.lose_work_tail(n),
        ModelCall::Pull(_) | ModelCall::Deliver(_) | ModelCall::Pass(_) => {}
    }
}

proptest! {
    #[test]
    fn offers_random_calls_deliver_like_oracle(calls in prop::collection::vec(any_call(), 1..120)) {
        let (mut model, mut oracle) = (model(), WorkOracle::default());
        for call in &calls {
            match call {
                ModelCall::Pull(max) => {
                    let pulled = model.pull(oracle.now, *max);
                    let seen: Vec<_> =
                        pulled.iter().map(|d| (d.token.sequence, d.delivered)).collect();
                    prop_assert_eq!(seen, oracle.pull(*max));
                }
                ModelCall::Deliver(nth) => {
                    let ready = model.ready(oracle.now);
                    prop_assert_eq!(&ready, &oracle.ready());
                    if let Some(&sequence) = ready.get(*nth) {
                        let expected = (sequence, oracle.deliver(sequence));
                        let delivery = model.deliver(oracle.now, sequence).expect("it is ready");
                        prop_assert_eq!((delivery.token.sequence, delivery.delivered), expected);
                        prop_assert_eq!(model.deliver(oracle.now, sequence), None);
                    }
                }
                call => {
                    apply(&mut model, oracle.now, call);
                    oracle.apply(call);
                }
            }
            let flying = oracle.in_flight();
            prop_assert_eq!(model.next_expiry(), flying.first().map(|(until, _)| *until));
            let found: Vec<u64> = (0..130).filter(|sequence| model.has_offer(*sequence)).collect();
            prop_assert_eq!(found, oracle.offers.iter().map(|k| k.sequence).collect::<Vec<_>>());
            for n in 0..2 {
                let listed: Vec<_> =
                    model.list(run(n)).iter().map(|l| (l.item, l.delivered)).collect();
                let kept = oracle.offers.iter().filter(|k| k.offer.run == run(n));
                let kept: Vec<_> = kept.map(|k| (k.offer.item, k.delivered > 0)).collect();
                prop_assert_eq!(listed, kept);
            }
        }
    }

    #[test]
    fn reports_random_calls_read_like_oracle(
        calls in prop::collection::vec((0u8..6, 0u8..2, 0u8..5, 0u64..12), 1..150),
    ) {
        let mut model = model();
        let mut incarnation = INCARNATION;
        let mut last = 0;
        let mut kept: Vec<(u64, Report)> = Vec::new();
        for (kind, r, exec, n) in calls {
            match kind {
                0 | 1 => {
                    let full = kept.iter().filter(|(_, k)| k.run == run(r)).count() >= REPORTS;
                    let answers = model.report(vec![report(r, exec)]);
                    let expected = if full { Err(PublishError::Full) } else { Ok(last + 1) };
                    prop_assert_eq!(answers, [expected]);
                    if !full {
                        last += 1;
                        kept.push((last, report(r, exec)));
                    }
                }
                2 => {
                    let below = ReportPosition::for_report(incarnation, n, &report(r, exec));
                    model.purge(run(r), below);
                    kept.retain(|(sequence, k)| k.run != run(r) || *sequence >= n);
                }
                3 if exec == 0 => {
                    model.lose_report_tail(n / 4);
                    last -= last.min(n / 4);
                    kept.retain(|(sequence, _)| *sequence <= last);
                }
                4 if exec == 0 => {
                    incarnation = Incarnation(incarnation.0 + 1);
                    model.wipe(incarnation);
                    last = 0;
                    kept.clear();
                }
                _ => {}
            }
            let of_run: Vec<&(u64, Report)> =
                kept.iter().filter(|(_, k)| k.run == run(r)).collect();
            for asked in [incarnation, Incarnation(incarnation.0 + 7)] {
                let from = ReportPosition::for_report(asked, n, &report(r, exec));
                let there = of_run.iter().position(|(s, k)| {
                    asked == incarnation && *s == n && from.matches(k)
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
            let after: Vec<_> = model.reports_after(run(r), n).map(|(s, _)| s).collect();
            let rest = of_run.iter().map(|(s, _)| *s).filter(|s| *s > n);
            prop_assert_eq!(after, rest.collect::<Vec<_>>());
            let all = model.reports(run(r), None, usize::MAX).expect("no position");
            let all: Vec<_> = all.into_iter().map(|x| (x.position.sequence, x.report)).collect();
            prop_assert_eq!(all, of_run.into_iter().cloned().collect::<Vec<_>>());
        }
    }
}

#[test]
fn token_of_former_incarnation_is_ignored() {
    let mut model = model();
    model.offer(&[offer(0), offer(1)]);
    let former = model.pull(Duration::ZERO, 2);
    model.wipe(Incarnation(2));
    model.offer(&[offer(2), offer(3)]);
    model.report(vec![report(0, 1)]);
    let tokens: Vec<MessageToken> = former.iter().map(|d| d.token).collect();
    model.ack(&tokens);
    model.nak(&tokens);
    let place = ReportPosition::for_report(INCARNATION, 9, &report(0, 0));
    model.purge(run(0), place);
    assert_eq!(model.pull(Duration::ZERO, 9).len(), 2);
    assert_eq!(model.reports(run(0), None, 9).expect("no position").len(), 1);
}

#[test]
fn pull_delivers_largest_fitting_size_class_first() {
    let mut model = model();
    let classes = [SizeClass(0), SizeClass::SOLO, SizeClass(2), SizeClass(1), SizeClass(0)];
    let offers = (0..).zip(classes).map(|(n, class)| Offer { class, ..offer(n) });
    model.offer(&offers.collect::<Vec<_>>());
    let mut pull = |room| -> Vec<SizeClass> {
        model.pull_fitting(Duration::ZERO, room).iter().map(|d| d.offer.class).collect()
    };
    let room = FreeCapacity { slots: 9, shares: Some(17), idle: false };
    assert_eq!(pull(room), [SizeClass(2), SizeClass(0)]);
    let room = FreeCapacity { slots: 9, shares: None, idle: true };
    assert_eq!(pull(room), [SizeClass::SOLO], "alone");
    assert_eq!(pull(FreeCapacity { slots: 1, ..room }), [SizeClass(1)]);
    assert_eq!(pull(room), [SizeClass(0)]);
}

#[test]
fn report_above_size_limit_is_refused() {
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
        Report { body: ReportBody::Result(Box::new(body)), ..report(0, 0) }
    };
    let longest = limits::REPORT_BYTES - with(String::new()).encode().expect("small").len();
    let answers = model.report(vec![
        with("\u{1}".repeat(limits::ERROR_MESSAGE_BYTES)),
        with("x".repeat(longest)),
        with("x".repeat(longest + 1)),
    ]);
    assert_eq!(answers[..2], [Ok(1), Ok(2)]);
    let refused = PublishError::TooLarge {
        size_bytes: limits::REPORT_BYTES + 1,
        max_bytes: limits::REPORT_BYTES,
    };
    assert_eq!(answers[2], Err(refused));
}
