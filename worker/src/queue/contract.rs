//! What every queue must do, as functions that a test of an implementation runs: [`all`], each on a
//! broker of its own. They fail by panicking.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::claim::{Answer, Claim};
use rollout_protocol::wire::control::{Control, StopLevel};
use rollout_protocol::wire::hello::{Budget, Hello, Running};
use rollout_protocol::wire::offer::{Offer, SizeClass, Work};
use rollout_protocol::wire::report::{Body, Report};

use crate::port::{
    Delivery, Dispatch, Offered, Position, QueueError, Refused, Room, Token, WorkSource,
};

/// A broker under test. Nothing else uses it.
#[async_trait]
pub trait Broker: Send + Sync {
    /// A worker's handle.
    fn source(&self) -> Arc<dyn WorkSource>;
    /// A coordinator's handle.
    fn dispatch(&self) -> Arc<dyn Dispatch>;
    /// Unpurged reports that a run may have; small.
    fn reports_per_run(&self) -> usize;
    /// Kills the broker and starts it again with what it had.
    async fn restart(&self);
    /// Lets so many thirds of the lease pass.
    async fn pass(&self, thirds: u32);
}

/// Long enough for an answer that is coming, never waited for in full by a correct queue.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough to see that nothing comes.
const BRIEFLY: Duration = Duration::from_millis(50);

/// Runs the whole suite, each part on a fresh broker.
pub async fn all<B: Broker>(fresh: impl AsyncFn() -> B) {
    publishing_is_idempotent_per_try(&fresh().await).await;
    offers_come_in_order_and_at_most_as_many_as_asked(&fresh().await).await;
    a_waiting_pull_gets_what_is_published(&fresh().await).await;
    a_silent_delivery_comes_again_after_its_lease(&fresh().await).await;
    progress_keeps_the_lease(&fresh().await).await;
    refusing_brings_it_back_at_once(&fresh().await).await;
    acknowledging_an_earlier_delivery_removes_the_present_one(&fresh().await).await;
    a_restart_delivers_everything_in_flight_again(&fresh().await).await;
    withdrawn_offers_are_gone(&fresh().await).await;
    listing_shows_what_is_there(&fresh().await).await;
    reports_have_one_order_and_can_be_read_twice(&fresh().await).await;
    a_waiting_reader_gets_what_is_reported(&fresh().await).await;
    a_position_of_another_stream_is_refused(&fresh().await).await;
    what_is_journalled_goes_and_its_position_stays(&fresh().await).await;
    a_full_run_refuses_and_others_do_not(&fresh().await).await;
    claims_are_answered_or_not(&fresh().await).await;
    controls_reach_every_worker(&fresh().await).await;
    hellos_show_the_last_word_and_its_age(&fresh().await).await;
    workers_see_what_others_show(&fresh().await).await;
}

fn run(n: u8) -> RunId {
    RunId::from_bytes([n; 16])
}

fn item(n: u8) -> ItemId {
    ItemId::from_bytes([n; 16])
}

const FIRST: TryId = TryId::first(1);

fn offer(r: u8, n: u8, try_id: TryId) -> Offer {
    let digest = Digest::from_bytes([9; 32]);
    let trial = TrialRef { settings: digest, agent: digest, task: digest, attempt: 1 };
    Offer {
        run: run(r),
        item: item(n),
        try_id,
        spec: digest,
        class: SizeClass(0),
        work: Work::Trial(trial),
    }
}

fn worker(name: &str) -> WorkerId {
    name.parse().expect("a valid name")
}

fn report(r: u8, exec: u8) -> Report {
    Report {
        run: run(r),
        item: item(exec),
        try_id: FIRST,
        exec: ExecId::from_bytes([exec; 16]),
        spec: Digest::from_bytes([9; 32]),
        worker: worker("w"),
        body: Body::Started,
    }
}

async fn publish(broker: &dyn Broker, offers: &[Offer]) {
    let answers = broker.dispatch().offer(offers).await.expect("reachable");
    assert!(answers.iter().all(|a| *a == Ok(Offered::Published)), "{answers:?}");
}

async fn pull(broker: &dyn Broker, max: usize) -> Vec<Delivery> {
    broker.source().pull(Room::slots(max), BRIEFLY).await.expect("reachable")
}

fn items(deliveries: &[Delivery]) -> Vec<ItemId> {
    deliveries.iter().map(|d| d.offer.item).collect()
}

fn tokens(deliveries: &[Delivery]) -> Vec<Token> {
    deliveries.iter().map(|d| d.token).collect()
}

/// A try is in the queue once, and again after it was acknowledged only if it is offered again.
pub async fn publishing_is_idempotent_per_try(broker: &dyn Broker) {
    let dispatch = broker.dispatch();
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let again = [offer(1, 1, FIRST), offer(2, 1, FIRST), offer(1, 1, FIRST.next(1))];
    let answers = dispatch.offer(&again).await.expect("reachable");
    assert_eq!(answers, [Ok(Offered::Present), Ok(Offered::Published), Ok(Offered::Published)]);
    let deliveries = pull(broker, 10).await;
    assert_eq!(deliveries.len(), 3);
    let present = dispatch.offer(&[offer(1, 1, FIRST)]).await.expect("reachable");
    assert_eq!(present, [Ok(Offered::Present)], "delivered, but still there");
    broker.source().ack(&tokens(&deliveries)).await.expect("reachable");
    assert_eq!(pull(broker, 10).await, []);
    publish(broker, &[offer(1, 1, FIRST)]).await;
}

/// First published, first delivered.
pub async fn offers_come_in_order_and_at_most_as_many_as_asked(broker: &dyn Broker) {
    let offers: Vec<Offer> = (0..10).map(|n| offer(n % 2, n, FIRST)).collect();
    publish(broker, &offers).await;
    let first = pull(broker, 4).await;
    assert_eq!(items(&first), (0..4).map(item).collect::<Vec<_>>());
    assert!(first.iter().all(|d| d.delivered == 1));
    assert_eq!(first.iter().map(|d| d.offer).collect::<Vec<_>>(), offers[..4]);
    assert_eq!(items(&pull(broker, 100).await), (4..10).map(item).collect::<Vec<_>>());
}

/// A pull waits, and no longer than it was told.
pub async fn a_waiting_pull_gets_what_is_published(broker: &dyn Broker) {
    let source = broker.source();
    let wait = Duration::from_millis(300);
    let began = tokio::time::Instant::now();
    assert_eq!(source.pull(Room::slots(1), wait).await.expect("reachable"), []);
    assert!(began.elapsed() >= wait - BRIEFLY, "{:?}", began.elapsed());
    let later = async {
        tokio::time::sleep(BRIEFLY).await;
        publish(broker, &[offer(1, 1, FIRST)]).await;
    };
    let (pulled, ()) = tokio::join!(source.pull(Room::slots(5), PATIENCE), later);
    assert_eq!(items(&pulled.expect("reachable")), [item(1)]);
}

/// A worker that says nothing loses its delivery.
pub async fn a_silent_delivery_comes_again_after_its_lease(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let first = pull(broker, 1).await;
    broker.pass(2).await;
    assert_eq!(pull(broker, 1).await, []);
    broker.pass(2).await;
    let second = pull(broker, 1).await;
    assert_eq!(items(&second), [item(1)]);
    assert_eq!((first[0].delivered, second[0].delivered), (1, 2));
}

/// A worker that goes on saying that it works keeps its delivery.
pub async fn progress_keeps_the_lease(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let held = tokens(&pull(broker, 1).await);
    for _ in 0..4 {
        broker.pass(2).await;
        broker.source().progress(&held).await.expect("reachable");
        assert_eq!(pull(broker, 1).await, []);
    }
    broker.pass(4).await;
    assert_eq!(pull(broker, 1).await.len(), 1);
}

/// A surplus delivery goes to whoever asks next.
pub async fn refusing_brings_it_back_at_once(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST), offer(1, 2, FIRST)]).await;
    let first = pull(broker, 2).await;
    broker.source().nak(&tokens(&first[..1])).await.expect("reachable");
    let again = pull(broker, 2).await;
    assert_eq!(items(&again), [item(1)]);
    assert_eq!(again[0].delivered, 2);
}

/// Acknowledgements are not fenced.
pub async fn acknowledging_an_earlier_delivery_removes_the_present_one(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST)]).await;
    let first = pull(broker, 1).await;
    broker.pass(4).await;
    let second = pull(broker, 1).await;
    assert_eq!(second.len(), 1);
    broker.source().ack(&tokens(&first)).await.expect("reachable");
    assert_eq!(broker.dispatch().list(run(1)).await.expect("reachable"), []);
    broker.source().nak(&tokens(&second)).await.expect("harmless");
    broker.source().progress(&tokens(&second)).await.expect("harmless");
    broker.source().ack(&tokens(&second)).await.expect("harmless");
    assert_eq!(pull(broker, 1).await, []);
}

/// Nobody's lease survives the broker; offers and counts do.
pub async fn a_restart_delivers_everything_in_flight_again(broker: &dyn Broker) {
    let life = broker.dispatch().incarnation().await.expect("reachable");
    publish(broker, &[offer(1, 1, FIRST), offer(1, 2, FIRST), offer(1, 3, FIRST)]).await;
    let held = pull(broker, 2).await;
    broker.source().ack(&tokens(&held[..1])).await.expect("reachable");
    broker.restart().await;
    assert_eq!(broker.dispatch().incarnation().await.expect("reachable"), life);
    let mut again = pull(broker, 5).await;
    again.sort_by_key(|d| d.offer.item);
    assert_eq!(items(&again), [item(2), item(3)]);
    assert_eq!(again.iter().map(|d| d.delivered).collect::<Vec<_>>(), [2, 1]);
}

/// In flight or not.
pub async fn withdrawn_offers_are_gone(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST), offer(1, 2, FIRST), offer(2, 1, FIRST)]).await;
    let held = pull(broker, 1).await;
    let gone = [(item(1), FIRST), (item(2), FIRST), (item(7), FIRST)];
    broker.dispatch().withdraw(run(1), &gone).await.expect("reachable");
    assert_eq!(broker.dispatch().list(run(1)).await.expect("reachable"), []);
    broker.source().progress(&tokens(&held)).await.expect("harmless");
    broker.pass(4).await;
    let left = pull(broker, 5).await;
    assert_eq!(left.iter().map(|d| d.offer.run).collect::<Vec<_>>(), [run(2)]);
}

/// Offers of the run, and whether they were ever delivered.
pub async fn listing_shows_what_is_there(broker: &dyn Broker) {
    publish(broker, &[offer(1, 1, FIRST), offer(2, 5, FIRST), offer(1, 2, FIRST)]).await;
    pull(broker, 1).await;
    let mut listed = broker.dispatch().list(run(1)).await.expect("reachable");
    listed.sort_by_key(|l| l.item);
    let seen: Vec<_> = listed.iter().map(|l| (l.item, l.try_id, l.delivered)).collect();
    assert_eq!(seen, [(item(1), FIRST, true), (item(2), FIRST, false)]);
    assert_eq!(broker.dispatch().list(run(3)).await.expect("reachable"), []);
}

async fn say(broker: &dyn Broker, reports: Vec<Report>) {
    let answers = broker.source().report(reports).await.expect("reachable");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

async fn read(broker: &dyn Broker, r: u8, from: Option<Position>) -> Vec<(Position, Report)> {
    let read = broker.dispatch().reports(run(r), from, 100, BRIEFLY).await.expect("a known place");
    read.into_iter().map(|r| (r.position, r.report)).collect()
}

/// Whoever reads from a position sees the same as the one before.
pub async fn reports_have_one_order_and_can_be_read_twice(broker: &dyn Broker) {
    say(broker, vec![report(1, 1), report(2, 9), report(1, 2)]).await;
    say(broker, vec![report(1, 3), report(1, 1)]).await;
    let all = read(broker, 1, None).await;
    let said: Vec<_> = all.iter().map(|(_, r)| r.clone()).collect();
    assert_eq!(said, [report(1, 1), report(1, 2), report(1, 3), report(1, 1)]);
    assert!(all.is_sorted_by(|(a, _), (b, _)| a.sequence < b.sequence));
    assert!(all.iter().all(|(at, said)| at.anchor == said.exec));
    for (index, (at, _)) in all.iter().enumerate() {
        assert_eq!(read(broker, 1, Some(*at)).await, all[index + 1..]);
    }
    let two = broker.dispatch().reports(run(1), None, 2, BRIEFLY).await.expect("no position");
    assert_eq!(two.len(), 2);
    broker.restart().await;
    assert_eq!(read(broker, 1, Some(all[1].0)).await, all[2..]);
}

/// A reader waits for the next report of its run.
pub async fn a_waiting_reader_gets_what_is_reported(broker: &dyn Broker) {
    say(broker, vec![report(1, 1)]).await;
    let from = read(broker, 1, None).await[0].0;
    let later = async {
        tokio::time::sleep(BRIEFLY).await;
        say(broker, vec![report(2, 2)]).await;
        tokio::time::sleep(BRIEFLY).await;
        say(broker, vec![report(1, 3)]).await;
    };
    let dispatch = broker.dispatch();
    let (read, ()) = tokio::join!(dispatch.reports(run(1), Some(from), 10, PATIENCE), later);
    let read: Vec<_> = read.expect("a known place").into_iter().map(|r| r.report).collect();
    assert_eq!(read, [report(1, 3)]);
}

/// A stream that is not what it was is noticed, never skipped over.
pub async fn a_position_of_another_stream_is_refused(broker: &dyn Broker) {
    say(broker, vec![report(1, 1), report(1, 2)]).await;
    let at = read(broker, 1, None).await[1].0;
    let mut life = at.incarnation;
    life.0 ^= 1;
    let wrong = [
        Position { anchor: ExecId::from_bytes([7; 16]), ..at },
        Position { sequence: at.sequence + 1, ..at },
        Position { incarnation: life, ..at },
    ];
    for position in wrong {
        let read = broker.dispatch().reports(run(1), Some(position), 10, BRIEFLY).await;
        assert!(matches!(read, Err(QueueError::Position)), "{position:?}: {read:?}");
    }
}

/// Strictly below: the anchor stays.
pub async fn what_is_journalled_goes_and_its_position_stays(broker: &dyn Broker) {
    say(broker, vec![report(1, 1), report(2, 5), report(1, 2), report(1, 3)]).await;
    let all = read(broker, 1, None).await;
    broker.dispatch().journalled(run(1), all[1].0).await.expect("reachable");
    assert_eq!(read(broker, 1, None).await, all[1..]);
    assert_eq!(read(broker, 1, Some(all[1].0)).await, all[2..]);
    assert_eq!(read(broker, 2, None).await.len(), 1, "another run's are untouched");
    let gone = broker.dispatch().reports(run(1), Some(all[0].0), 10, BRIEFLY).await;
    assert!(matches!(gone, Err(QueueError::Position)), "{gone:?}");
}

/// Back-pressure is per run.
pub async fn a_full_run_refuses_and_others_do_not(broker: &dyn Broker) {
    let most = u8::try_from(broker.reports_per_run()).expect("small");
    say(broker, (0..most).map(|n| report(1, n)).collect()).await;
    let more = vec![report(1, 200), report(2, 201), report(1, 202)];
    let answers = broker.source().report(more).await.expect("reachable");
    assert_eq!(answers, [Err(Refused::Full), Ok(()), Err(Refused::Full)]);
    let all = read(broker, 1, None).await;
    assert_eq!(all.len(), usize::from(most));
    broker.dispatch().journalled(run(1), all[1].0).await.expect("reachable");
    say(broker, vec![report(1, 200)]).await;
}

fn claim(r: u8, exec: u8) -> Claim {
    Claim {
        run: run(r),
        item: item(exec),
        try_id: FIRST,
        exec: ExecId::from_bytes([exec; 16]),
        spec: Digest::from_bytes([9; 32]),
        worker: worker("w"),
    }
}

/// Every answer reaches its asker; silence is no answer.
pub async fn claims_are_answered_or_not(broker: &dyn Broker) {
    let (source, dispatch) = (broker.source(), broker.dispatch());
    let coordinator = async {
        for _ in 0..4 {
            let pending = dispatch.next_claim(run(1)).await.expect("reachable");
            match pending.claim.exec.as_bytes()[0] {
                1 => pending.reply.send(Answer::Run).expect("still asked"),
                2 => pending.reply.send(Answer::Hold).expect("still asked"),
                3 => pending.reply.send(Answer::Drop).expect("still asked"),
                _ => drop(pending.reply),
            }
        }
    };
    let (one, two, three, four, other, ()) = tokio::join!(
        source.claim(claim(1, 1)),
        source.claim(claim(1, 2)),
        source.claim(claim(1, 3)),
        source.claim(claim(1, 4)),
        source.claim(claim(2, 5)),
        coordinator,
    );
    assert!(matches!(one, Ok(Answer::Run)), "{one:?}");
    assert!(matches!(two, Ok(Answer::Hold)), "{two:?}");
    assert!(matches!(three, Ok(Answer::Drop)), "{three:?}");
    for (answer, asked) in [(four, run(1)), (other, run(2))] {
        assert!(matches!(answer, Err(QueueError::NoAnswer { run }) if run == asked), "{answer:?}");
    }
}

/// From now on.
pub async fn controls_reach_every_worker(broker: &dyn Broker) {
    let stop = |n| Control::StopRun { run: run(n), level: StopLevel::Drain };
    broker.dispatch().control(stop(1)).await.expect("nobody needs to listen");
    let (mut a, mut b) = (broker.source().controls(), broker.source().controls());
    broker.dispatch().control(stop(2)).await.expect("reachable");
    for receiver in [&mut a, &mut b] {
        let heard = tokio::time::timeout(PATIENCE, receiver.recv()).await.expect("soon");
        assert_eq!(heard.expect("not lagging"), stop(2));
    }
}

fn hello(name: &str, slots: u32) -> Hello {
    Hello {
        worker: worker(name),
        host: "host".into(),
        version: "0".into(),
        store: "store".into(),
        pool: "default".into(),
        slots,
        free: slots,
        budget: Budget::default(),
        providers: BTreeMap::new(),
        variables: BTreeSet::new(),
        draining: false,
        executions: Vec::new(),
    }
}

/// One hello per worker.
pub async fn hellos_show_the_last_word_and_its_age(broker: &dyn Broker) {
    for said in [hello("a", 1), hello("b", 2)] {
        broker.source().hello(said).await.expect("reachable");
    }
    broker.pass(1).await;
    broker.source().hello(hello("a", 3)).await.expect("reachable");
    let mut seen = broker.dispatch().hellos().await.expect("reachable");
    seen.sort_by(|a, b| a.hello.worker.cmp(&b.hello.worker));
    let said: Vec<_> = seen.iter().map(|s| s.hello.clone()).collect();
    assert_eq!(said, [hello("a", 3), hello("b", 2)]);
    assert!(seen[0].age < seen[1].age, "{seen:?}");
}

/// So that a claim that no coordinator answers is decided all the same.
pub async fn workers_see_what_others_show(broker: &dyn Broker) {
    let (r, exec) = (run(1), |n| ExecId::from_bytes([n; 16]));
    let line = |n, claiming| Running {
        run: r,
        item: item(n),
        try_id: FIRST,
        exec: exec(5),
        phase: Phase::Queued,
        claiming,
    };
    let mut other = hello("other", 2);
    other.executions = vec![line(1, false), line(2, true)];
    broker.source().hello(other).await.expect("reachable");
    let mut own = hello("asker", 2);
    own.executions = vec![line(3, false)];
    broker.source().hello(own).await.expect("reachable");
    let source = broker.source();
    let shown = async |n, e| {
        let (asker, digest) = (worker("asker"), Digest::from_bytes([9; 32]));
        let asked = Claim {
            run: r,
            item: item(n),
            try_id: FIRST,
            exec: exec(e),
            spec: digest,
            worker: asker,
        };
        source.shown(&asked).await.expect("reachable")
    };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    // Hellos may take a moment to get around.
    while !shown(1, 9).await {
        assert!(tokio::time::Instant::now() < deadline, "never shown");
        tokio::time::sleep(BRIEFLY).await;
    }
    assert!(shown(1, 1).await, "it runs there, whoever has the lower execution");
    assert!(shown(2, 9).await && !shown(2, 1).await, "of two that ask the lower goes on");
    assert!(!shown(3, 9).await, "what the asker shows itself is no reason");
    assert!(!shown(4, 9).await, "nobody has it");
}
