//! The contract suite of queues: functions that a test of an implementation runs, each on its own
//! broker. They fail by panicking.
//!
//! A server applies many requests with a delay, so conditions are polled until they hold, and
//! delivery counts are lower bounds: deliveries that no client takes come again.

mod incarnations;
mod kv_store;
mod messages;
mod reports;
pub mod samples;
mod work;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::spec::trial::TrialRef;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};
use rollout_protocol::wire::delivery::{
    Delivery, FreeCapacity, MessageToken, OfferOutcome, QueuedOffer,
};
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits, SizeClass};
use rollout_protocol::wire::position::ReportPosition;
use rollout_protocol::wire::report::{Report, ReportBody};

pub use self::work::a_silent_delivery_comes_again_after_its_lease;
use crate::queue::traits::{Dispatch, KvStore, QueueError, WorkSource};

/// Size classes that a broker under test must have.
pub const CLASSES: [SizeClass; 3] = [SizeClass(0), SizeClass(1), SizeClass::SOLO];

/// A broker under test. Nothing else uses it.
#[async_trait(?Send)]
pub trait Broker {
    /// A worker's handle, always the same.
    fn source(&self) -> Arc<dyn WorkSource>;
    /// A coordinator's handle, always the same.
    fn dispatch(&self) -> Arc<dyn Dispatch>;
    /// Its key-value store.
    fn kv_store(&self) -> Arc<dyn KvStore>;
    /// A user's command; `None` where users cannot reach the broker.
    async fn command(
        &self,
        run: RunId,
        command: RunCommand,
    ) -> Option<Result<CommandReceipt, QueueError>>;
    /// Unpurged reports that a run may have; small.
    fn reports_per_run(&self) -> usize;
    /// Long enough to conclude that nothing arrives.
    fn quiet_period(&self) -> Duration {
        Duration::from_millis(50)
    }
    /// Kills the broker and restarts it with its state.
    async fn restart(&self);
    /// Replaces the broker by an empty one.
    async fn wipe(&self);
    /// Lets this many thirds of the lease pass.
    async fn advance_lease(&self, thirds: u32);
}

/// One check of the suite.
pub type ContractCheck = for<'a> fn(&'a dyn Broker) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! checks {
    ($($module:ident::$name:ident),* $(,)?) => {
        &[$((stringify!($name), |broker| Box::pin($module::$name(broker)))),*]
    };
}

/// Checks whose brokers may share a server.
pub const SHARED_SERVER_CHECKS: &[(&str, ContractCheck)] = checks![
    work::publishing_is_idempotent_per_try,
    work::offers_come_in_order_and_at_most_as_many_as_asked,
    work::a_waiting_pull_gets_what_is_published,
    work::a_silent_delivery_comes_again_after_its_lease,
    work::progress_keeps_the_lease,
    work::progress_after_the_lease_keeps_nothing,
    work::refusing_brings_it_back_at_once,
    work::acknowledging_an_earlier_delivery_removes_the_present_one,
    work::a_dropped_pull_loses_nothing,
    work::the_biggest_class_that_fits_comes_first,
    work::what_runs_alone_comes_to_the_idle,
    work::withdrawn_offers_are_gone,
    work::listing_shows_what_is_there,
    reports::reports_have_one_order_and_can_be_read_twice,
    reports::a_waiting_reader_gets_what_is_reported,
    reports::a_position_of_another_stream_is_refused,
    reports::what_is_journalled_goes_and_its_position_stays,
    reports::a_full_run_refuses_and_others_do_not,
    reports::the_head_is_the_last_report,
    messages::claims_are_answered_or_not,
    messages::commands_are_answered_or_not,
    messages::controls_reach_every_worker,
    messages::hellos_show_the_last_word_and_its_age,
    messages::workers_see_what_others_show,
    kv_store::writes_compare_revisions,
    kv_store::one_of_many_writers_wins,
];

/// Checks that kill or replace the broker's server.
pub const DISRUPTIVE_CHECKS: &[(&str, ContractCheck)] = checks![
    incarnations::a_restart_delivers_everything_in_flight_again,
    incarnations::reports_and_boards_survive_a_restart,
    incarnations::a_wiped_broker_is_another,
];

/// Long enough for an answer that is coming, never waited for in full by a correct queue.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two polls of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs the whole suite, each check on a fresh broker.
pub async fn run_all<B: Broker>(fresh: impl AsyncFn() -> B) {
    for (_, check) in SHARED_SERVER_CHECKS.iter().chain(DISRUPTIVE_CHECKS) {
        check(&fresh().await).await;
    }
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
        work: OfferedWork::Trial(trial),
        rate_limits: RunRateLimits::default(),
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
        body: ReportBody::Started,
    }
}

/// Polls until the condition holds.
async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + ANSWER_TIMEOUT;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn publish(broker: &dyn Broker, offers: &[Offer]) {
    let answers = broker.dispatch().offer(offers).await.expect("reachable");
    assert!(answers.iter().all(|a| *a == Ok(OfferOutcome::Published)), "{answers:?}");
}

/// Pulls until `count` offers were delivered.
async fn take(broker: &dyn Broker, count: usize) -> Vec<Delivery> {
    let mut pulled: Vec<Delivery> = Vec::new();
    wait_until("the expected number is delivered", async || {
        let room = FreeCapacity::with_slots(count - pulled.len());
        pulled.extend(broker.source().pull(room, broker.quiet_period()).await.expect("reachable"));
        pulled.len() == count
    })
    .await;
    pulled
}

/// Pulls what is available at once, usually nothing.
async fn pull_once(broker: &dyn Broker) -> Vec<Delivery> {
    broker
        .source()
        .pull(FreeCapacity::with_slots(10), broker.quiet_period())
        .await
        .expect("reachable")
}

/// Pulls one after the other until these items were delivered, each at least once.
async fn pull_all(broker: &dyn Broker, capacity: FreeCapacity, wanted: &[ItemId]) -> Vec<Delivery> {
    let mut pulled: Vec<Delivery> = Vec::new();
    wait_until("all of it is delivered", async || {
        let more = broker.source().pull(capacity, broker.quiet_period()).await.expect("reachable");
        pulled.extend(more);
        wanted.iter().all(|item| pulled.iter().any(|d| d.offer.item == *item))
    })
    .await;
    pulled
}

async fn list(broker: &dyn Broker, r: u8) -> Vec<QueuedOffer> {
    let mut listed = broker.dispatch().list(run(r)).await.expect("reachable");
    listed.sort_by_key(|l| l.item);
    listed
}

fn items(deliveries: &[Delivery]) -> Vec<ItemId> {
    deliveries.iter().map(|d| d.offer.item).collect()
}

fn tokens(deliveries: &[Delivery]) -> Vec<MessageToken> {
    deliveries.iter().map(|d| d.token).collect()
}

async fn send_reports(broker: &dyn Broker, reports: Vec<Report>) {
    let answers = broker.source().report(reports).await.expect("reachable");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

async fn read_reports(
    broker: &dyn Broker,
    r: u8,
    from: Option<ReportPosition>,
) -> Vec<(ReportPosition, Report)> {
    let mut found = Vec::new();
    let mut from = from;
    loop {
        let read = broker.dispatch().reports(run(r), from, 100, broker.quiet_period()).await;
        let read = read.expect("a known position");
        let Some(last) = read.reports.last() else { return found };
        from = Some(last.position);
        found.extend(read.reports.into_iter().map(|r| (r.position, r.report)));
    }
}
