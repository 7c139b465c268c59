//! The worker's periodic messages, from one ticker: lease extensions, reports of started
//! executions, and heartbeats.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollout_base::common_times::next_time;
use rollout_protocol::limits;
use rollout_protocol::wire::delivery::MessageToken;
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::report::ReportBody;
use rollout_queue::traits::ConnectionStatus;
use tokio::sync::watch;
use tokio::time::Instant;

use super::WorkerShared;
use super::execution::Execution;
use super::report::OutgoingReport;

/// Interval of checks for something to send while there are executions. Bounds the delay of a change.
const TICK_INTERVAL: Duration = Duration::from_millis(250);
/// Longest time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The largest share of the interval by which leases are extended early.
const LEASE_JITTER: f64 = 0.25;

/// Extends the leases and sends heartbeats. Never ends.
pub(super) async fn maintain_leases(shared: Arc<WorkerShared>) -> Infallible {
    let every_third = shared.config.lease / 3;
    let (mut status, mut changes) = (shared.connection.subscribe(), shared.registry.changes());
    let (mut extend_at, mut heartbeat_at) =
        (Instant::now() + jittered(every_third), next_time(HEARTBEAT_INTERVAL));
    loop {
        let executions = shared.registry.all();
        announce_executions(&shared, &executions);
        let progressed =
            executions.iter().filter(|execution| execution.take_progress()).count() > 0;
        let changed =
            shared.registry.take_change() || progressed || shared.connection.needs_heartbeat();
        if changed || heartbeat_at <= Instant::now() {
            heartbeat_at = next_time(HEARTBEAT_INTERVAL);
            publish_heartbeat(&shared, &executions).await;
        }
        if extend_at <= Instant::now() {
            extend_at = Instant::now() + jittered(every_third);
            extend_leases(&shared, &executions).await;
        }
        drop(executions);
        wait_for_news(&shared, heartbeat_at, &mut status, &mut changes).await;
    }
}

/// Waits until something may have to be sent: a heartbeat, or a moment after a change. The phases of
/// executions and the ends of leases are looked for at every tick.
async fn wait_for_news(
    shared: &WorkerShared,
    heartbeat_at: Instant,
    status: &mut watch::Receiver<ConnectionStatus>,
    changes: &mut watch::Receiver<()>,
) {
    let (now, every_third) = (Instant::now(), shared.config.lease / 3);
    let tick = now + TICK_INTERVAL.min(every_third);
    let is_idle = shared.registry.is_empty() && !shared.connection.needs_heartbeat();
    let mut due = if is_idle { heartbeat_at.min(now + every_third).max(tick) } else { tick };
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(due) => return,
            // On a new connection the heartbeat comes before everything else.
            Ok(()) = status.changed() => return,
            Ok(()) = changes.changed(), if due > tick => due = tick,
        }
    }
}

/// A random time a little shorter, so that workers that started together do not send together.
fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(1.0 - LEASE_JITTER * rand::random::<f64>())
}

/// Sends a heartbeat with the worker's state and its executions.
pub(super) async fn send_heartbeat(shared: &WorkerShared) {
    publish_heartbeat(shared, &shared.registry.all()).await;
}

/// Sends the last heartbeat: the worker is gone, unless another worker must adopt its executions.
pub(super) async fn send_final_heartbeat(shared: &WorkerShared) {
    let mut last = heartbeat_message(shared, &shared.registry.all());
    last.gone = last.executions.is_empty();
    if let Err(error) = shared.source.heartbeat(last).await {
        tracing::debug!("cannot send the last heartbeat: {error}");
    }
}

/// Reports the start of executions that are no longer brief.
fn announce_executions(shared: &WorkerShared, executions: &[Arc<Execution>]) {
    for execution in executions {
        if execution.is_running()
            && !execution.is_announced()
            && execution.began.elapsed() > limits::BRIEF_EXECUTION
            && execution.mark_announced()
        {
            let report = execution.new_report(&shared.config.worker, ReportBody::Started);
            shared.outbox.push(OutgoingReport::intermediate(report));
        }
    }
}

async fn extend_leases(shared: &WorkerShared, executions: &[Arc<Execution>]) {
    if executions.is_empty() || !shared.connection.is_up() {
        return;
    }
    let tokens: Vec<MessageToken> = executions.iter().map(|execution| execution.token()).collect();
    if let Err(error) = shared.source.progress(&tokens).await {
        shared.queue_outage.mark_failed(&error);
    }
}

async fn publish_heartbeat(shared: &WorkerShared, executions: &[Arc<Execution>]) {
    let connection = shared.connection.status();
    if !connection.up {
        return;
    }
    match shared.source.heartbeat(heartbeat_message(shared, executions)).await {
        Ok(()) => shared.connection.mark_heartbeat_sent(connection.connections),
        Err(error) => shared.queue_outage.mark_failed(&error),
    }
}

fn heartbeat_message(shared: &WorkerShared, executions: &[Arc<Execution>]) -> Heartbeat {
    let config = &shared.config;
    let profile = config.profile.borrow().clone();
    let own = executions.iter().map(|execution| execution.heartbeat_entry());
    let disk_fault = shared.disks.last_failed();
    let disk_fault =
        disk_fault.map(|fault| limits::shorten(fault.message, limits::DISK_FAULT_BYTES));
    // Coordinators of earlier versions know this field only.
    let low_disk = shared.low_disk.load(Ordering::Relaxed) || disk_fault.is_some();
    let runs: BTreeSet<_> = executions.iter().map(|execution| execution.offer.run).collect();
    let free = u32::try_from(shared.slots.free_slots()).unwrap_or(u32::MAX);
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
        max_offline_sec: config
            .max_offline
            .and_then(|longest| longest.as_millis().div_ceil(1000).try_into().ok()),
        draining: shared.is_closing(),
        low_disk,
        disk_fault,
        gone: false,
        executions: own.chain(shared.adopted.heartbeat_entries()).collect(),
        model_calls: runs.iter().filter_map(|run| shared.model_calls.counts(*run)).collect(),
        model_leases: shared.model_calls.lease_uses(),
    }
}
