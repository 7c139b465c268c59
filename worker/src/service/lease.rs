//! What a worker says regularly: that its executions live, that they began, and what it is. One
//! ticker for all of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::limits;
use rollout_protocol::wire::hello::Hello;
use rollout_protocol::wire::report::Body;
use tokio::time::{Instant, MissedTickBehavior};

use super::Shared;
use super::execution::Execution;
use super::report::Outgoing;
use crate::port::Token;

/// How often it is looked whether something has to be said. A change is told by then.
const LOOK: Duration = Duration::from_millis(250);
/// How often a hello is said when nothing changes.
const HELLO: Duration = Duration::from_secs(1);

/// Keeps the leases, for ever.
pub(super) async fn keep(shared: Arc<Shared>) -> Infallible {
    let every_third = shared.config.lease / 3;
    let mut ticks = tokio::time::interval(LOOK.min(every_third));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut extended, mut greeted) = (Instant::now(), Instant::now());
    loop {
        ticks.tick().await;
        let executions = shared.registry.all();
        announce(&shared, &executions);
        if extended.elapsed() >= every_third {
            extended = Instant::now();
            extend(&shared, &executions).await;
        }
        let moved = executions.iter().filter(|execution| execution.has_moved()).count() > 0;
        if shared.registry.has_changed() || moved || greeted.elapsed() >= HELLO {
            greeted = Instant::now();
            hello(&shared, &executions).await;
        }
    }
}

/// Says what the worker is and holds now.
pub(super) async fn say_hello(shared: &Shared) {
    hello(shared, &shared.registry.all()).await;
}

/// Executions that have lasted a while are worth a word.
fn announce(shared: &Shared, executions: &[Arc<Execution>]) {
    for execution in executions {
        if execution.is_running()
            && !execution.is_announced()
            && execution.began.elapsed() > limits::BRIEF
            && execution.announce()
        {
            let report = execution.report(&shared.config.worker, Body::Started);
            shared.outbox.push(Outgoing::first(report));
        }
    }
}

async fn extend(shared: &Shared, executions: &[Arc<Execution>]) {
    if executions.is_empty() {
        return;
    }
    let tokens: Vec<Token> = executions.iter().map(|execution| execution.token()).collect();
    if let Err(error) = shared.source.progress(&tokens).await {
        shared.queue_outage.failed(&error);
    }
}

async fn hello(shared: &Shared, executions: &[Arc<Execution>]) {
    let config = &shared.config;
    let hello = Hello {
        worker: config.worker.clone(),
        host: config.owner.host.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: shared.store.identity().to_owned(),
        pool: config.pool.clone(),
        slots: config.slots,
        free: u32::try_from(shared.slots.available_permits()).unwrap_or(u32::MAX),
        budget: config.profile.budget,
        providers: config.profile.providers.clone(),
        variables: config.profile.variables.clone(),
        draining: *shared.closing.borrow(),
        executions: executions.iter().map(|execution| execution.line()).collect(),
    };
    if let Err(error) = shared.source.hello(hello).await {
        shared.queue_outage.failed(&error);
    }
}
