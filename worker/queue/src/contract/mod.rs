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
use rollout_protocol::wire::delivery::{
    Delivery, FreeCapacity, MessageToken, OfferOutcome, QueuedOffer,
};
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits, SizeClass};
use rollout_protocol::wire::position::ReportPosition;
use rollout_protocol::wire::report::{Report, ReportBody};

pub use self::work::delivery_without_progress_is_redelivered_after_lease;
use crate::traits::{Dispatch, KvStore, RunControl, WorkSource};

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
    /// A user's handle.
    fn control(&self) -> Arc<dyn RunControl>;
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
    work::offer_of_same_try_is_published_once,
    work::pull_returns_offers_in_order_within_capacity,
    work::pull_waiting_gets_new_offer,
    work::delivery_without_progress_is_redelivered_after_lease,
    work::progress_extends_lease,
    work::progress_after_lease_end_has_no_effect,
    work::nak_redelivers_at_once,
    work::ack_of_earlier_delivery_removes_offer,
    work::pull_dropped_loses_no_offer,
    work::pull_prefers_largest_class_that_fits,
    work::solo_offer_is_delivered_to_idle_worker_only,
    work::withdrawn_offer_is_not_delivered,
    work::list_shows_every_offer_in_queue,
    reports::reports_have_one_order_and_can_be_read_again,
    reports::report_reader_waiting_gets_new_report,
    reports::position_of_other_stream_is_refused,
    reports::journaled_reports_are_purged_and_position_stays_valid,
    reports::reports_of_ended_run_are_removed_with_anchor,
    reports::report_to_full_run_is_refused_and_other_runs_accept,
    reports::head_is_sequence_of_last_report,
    messages::claim_is_answered_or_times_out,
    messages::command_is_answered_or_refused,
    messages::trial_control_is_answered_or_ignored,
    messages::control_reaches_every_worker,
    messages::heartbeat_shown_is_last_one_with_age,
    messages::claim_contested_by_other_worker_is_seen,
    kv_store::kv_write_compares_revision,
    kv_store::kv_entry_is_listed_with_age,
    kv_store::kv_write_race_has_one_winner,
];

/// Checks that kill or replace the broker's server.
pub const DISRUPTIVE_CHECKS: &[(&str, ContractCheck)] = checks![
    incarnations::restart_redelivers_everything_in_flight,
    incarnations::restart_keeps_reports_and_kv_entries,
    incarnations::wipe_starts_new_incarnation,
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
        model_calls: None,
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

/// Reads the reports of a run from a position up to its head, however long the broker takes.
async fn read_reports(
    broker: &dyn Broker,
    r: u8,
    from: Option<ReportPosition>,
) -> Vec<(ReportPosition, Report)> {
    let dispatch = broker.dispatch();
    let head = dispatch.last_report_sequence(run(r)).await.expect("reachable");
    let mut found = Vec::new();
    let mut from = from;
    wait_until("the reports are read up to the head", async || {
        let read = dispatch.reports(run(r), from, 100, broker.quiet_period()).await;
        let read = read.expect("a known position");
        from = read.reports.last().map(|last| last.position).or(from);
        found.extend(read.reports.into_iter().map(|r| (r.position, r.report)));
        from.map_or(0, |from| from.sequence) >= head
    })
    .await;
    found
}
