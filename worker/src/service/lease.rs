//! What a worker says regularly: that its executions live, that they began, and what it is. One
//! ticker for all of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollout_protocol::limits;
use rollout_protocol::wire::delivery::MessageToken;
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::report::ReportBody;
use tokio::time::{Instant, MissedTickBehavior};

use super::Shared;
use super::execution::Execution;
use super::report::Outgoing;

/// How often it is looked whether something has to be said. A change is told by then.
const LOOK: Duration = Duration::from_millis(250);
/// How often a hello is said when nothing changes.
const HELLO: Duration = Duration::from_secs(1);
/// By which share of their time leases are extended early, at most.
const JITTER: f64 = 0.25;

/// Keeps the leases, for ever.
pub(super) async fn keep(shared: Arc<Shared>) -> Infallible {
    let every_third = shared.config.lease / 3;
    let mut ticks = tokio::time::interval(LOOK.min(every_third));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut contact = shared.line.changes();
    let (mut extend_at, mut greeted) = (Instant::now() + early(every_third), Instant::now());
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            // What runs is said first of all.
            Ok(()) = contact.changed() => {}
        }
        let executions = shared.registry.all();
        announce(&shared, &executions);
        let moved = executions.iter().filter(|execution| execution.has_moved()).count() > 0;
        let news = shared.registry.has_changed() || moved || shared.line.needs_greeting();
        if news || greeted.elapsed() >= HELLO {
            greeted = Instant::now();
            hello(&shared, &executions).await;
        }
        if extend_at <= Instant::now() {
            extend_at = Instant::now() + early(every_third);
            extend(&shared, &executions).await;
        }
    }
}

/// A random time a little shorter, so that workers that began together do not speak together.
fn early(longest: Duration) -> Duration {
    longest.mul_f64(1.0 - JITTER * rand::random::<f64>())
}

/// Says what the worker is and holds now.
pub(super) async fn say_hello(shared: &Shared) {
    hello(shared, &shared.registry.all()).await;
}

/// The last hello: the worker is gone, unless somebody has to adopt what it leaves.
pub(super) async fn say_goodbye(shared: &Shared) {
    let mut last = words(shared, &shared.registry.all());
    last.gone = last.executions.is_empty();
    if let Err(error) = shared.source.hello(last).await {
        tracing::debug!("nobody heard the worker leave: {error}");
    }
}

/// Executions that have lasted a while are worth a word.
fn announce(shared: &Shared, executions: &[Arc<Execution>]) {
    for execution in executions {
        if execution.is_running()
            && !execution.is_announced()
            && execution.began.elapsed() > limits::BRIEF_EXECUTION
            && execution.announce()
        {
            let report = execution.report(&shared.config.worker, ReportBody::Started);
            shared.outbox.push(Outgoing::first(report));
        }
    }
}

async fn extend(shared: &Shared, executions: &[Arc<Execution>]) {
    if executions.is_empty() || !shared.line.is_up() {
        return;
    }
    let tokens: Vec<MessageToken> = executions.iter().map(|execution| execution.token()).collect();
    if let Err(error) = shared.source.progress(&tokens).await {
        shared.queue_outage.failed(&error);
    }
}

async fn hello(shared: &Shared, executions: &[Arc<Execution>]) {
    let connection = shared.line.contact();
    if !connection.up {
        return;
    }
    match shared.source.hello(words(shared, executions)).await {
        Ok(()) => shared.line.greeted(connection.connections),
        Err(error) => shared.queue_outage.failed(&error),
    }
}

fn words(shared: &Shared, executions: &[Arc<Execution>]) -> Heartbeat {
    let config = &shared.config;
    let profile = config.profile.borrow().clone();
    let own = executions.iter().map(|execution| execution.line());
    let low_disk = shared.low_disk.load(Ordering::Relaxed);
    let free = u32::try_from(shared.rooms.free()).unwrap_or(u32::MAX);
    Heartbeat {
        worker: config.worker.clone(),
        host: config.owner.host.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: shared.store.identity().to_owned(),
        pool: config.pool.clone(),
        slots: config.slots,
        free: if low_disk { 0 } else { free },
        budget: config.budget,
        providers: profile.providers,
        variables: profile.variables,
        draining: shared.is_closing(),
        low_disk,
        gone: false,
        executions: own.chain(shared.adopted.lines()).collect(),
    }
}
