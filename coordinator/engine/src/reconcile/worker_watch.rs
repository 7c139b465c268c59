//! Observation of the workers: once a second their heartbeats, and the resulting capacity and
//! warnings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rollout_base::backoff::OutageLog;
use rollout_base::common_times::next_time;
use rollout_protocol::Timestamp;
use rollout_protocol::id::WorkerId;
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_queue::traits::Dispatch;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::capacity::{self, PoolCapacity};
use crate::WorkerRequirements;
use crate::event_loop::{EngineMessage, QueueOutage};

/// How often heartbeats are polled.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long a run has no worker before it warns.
const NO_WORKER_WARNING_DELAY: Duration = Duration::from_secs(5);

/// How long the server gives no answer before the run warns.
const CONTACT_WARNING_DELAY: Duration = Duration::from_secs(2);

/// Watches the workers of a run.
#[derive(Debug)]
pub(super) struct WorkerWatch {
    pub(super) dispatch: Arc<dyn Dispatch>,
    pub(super) lanes: Vec<WorkerRequirements>,
    pub(super) pool: String,
    /// Identity of the run's blob store.
    pub(super) store: String,
    /// A worker with an older heartbeat does not count.
    pub(super) silence: Duration,
    /// How long items that no worker could run wait for one; `None` in an elastic pool.
    pub(super) unplaceable_timeout: Option<Duration>,
    /// Number of results read so far.
    pub(super) results: Arc<AtomicU64>,
    pub(super) to: mpsc::Sender<EngineMessage>,
}

impl WorkerWatch {
    /// Watches until the receiver is closed.
    pub(super) async fn watch(self) {
        let outage = OutageLog::new("polling the workers");
        let mut next = Instant::now();
        let (mut rate, mut told) = (ResultRate::new(), WorkerWarnings::default());
        let mut known = PoolCapacity::default();
        let (contact, mut contact_told) =
            (self.dispatch.connection_status(), ContactWarnings::default());
        while !self.to.is_closed() {
            tokio::time::sleep_until(next).await;
            next = next_time(POLL_INTERVAL);
            let up = contact.borrow().up;
            let warning = contact_told.update(up, Instant::now());
            // A queue that is not connected says why at once. The reason may change.
            let fault = match contact_told.warned {
                true => self.dispatch.incarnation().await.err().map(|error| error.to_string()),
                false => None,
            };
            if let Some(mut warning) = warning {
                if let Some(fault) = &fault {
                    warning.push_str(&format!(" ({fault})"));
                }
                self.send(EngineMessage::Warning(warning)).await;
            }
            let lost = contact_told.outage(fault, Timestamp::now());
            self.send(EngineMessage::QueueOutage(lost)).await;
            let heartbeats = match self.dispatch.heartbeats().await {
                Ok(heartbeats) => heartbeats,
                Err(error) => {
                    outage.mark_failed(&error);
                    continue;
                }
            };
            outage.mark_recovered();
            let living = || {
                let fresh = heartbeats
                    .iter()
                    .filter(|seen| seen.age < self.silence && !seen.heartbeat.gone);
                fresh.map(|seen| &seen.heartbeat).filter(|heartbeat| heartbeat.pool == self.pool)
            };
            let ours = living().filter(|heartbeat| heartbeat.store == self.store);
            let capacity = capacity::estimate(&self.lanes, &ours, rate.update(&self.results));
            for warning in told.update(&self, living(), &capacity) {
                self.send(EngineMessage::Warning(warning)).await;
            }
            if capacity != known {
                known = capacity.clone();
                self.send(EngineMessage::Capacity(capacity)).await;
            }
            self.send(EngineMessage::Heartbeats(heartbeats, self.dispatch.heartbeat_retention()))
                .await;
        }
    }

    async fn send(&self, message: EngineMessage) {
        // Without a receiver, the loop ends at its next turn.
        drop(self.to.send(message).await);
    }
}

/// Warns once when the queue's server is lost, and once when it is back.
#[derive(Debug, Default)]
struct ContactWarnings {
    lost: Option<Instant>,
    warned: bool,
    /// When it was lost, by the wall clock; known while the outage is shown.
    shown_since: Option<Timestamp>,
}

impl ContactWarnings {
    fn update(&mut self, up: bool, now: Instant) -> Option<String> {
        match (up, self.lost) {
            (true, Some(lost)) => {
                self.lost = None;
                let away = (now - lost).as_secs();
                let told = std::mem::take(&mut self.warned);
                told.then(|| format!("the NATS server answers again after {away} s"))
            }
            (false, None) => {
                self.lost = Some(now);
                None
            }
            (false, Some(lost)) if !self.warned && now - lost >= CONTACT_WARNING_DELAY => {
                self.warned = true;
                Some(
                    "the NATS server gives no answer: workers continue and keep their results \
                     until it is back"
                        .to_owned(),
                )
            }
            _ => None,
        }
    }

    /// The outage to show, from the first warning on until the server is back.
    fn outage(&mut self, fault: Option<String>, now: Timestamp) -> Option<QueueOutage> {
        if !self.warned {
            self.shown_since = None;
            return None;
        }
        let away = self.lost.map(|lost| lost.elapsed()).unwrap_or_default();
        let since = *self.shown_since.get_or_insert_with(|| now - away);
        let reason = fault.unwrap_or_else(|| "the NATS server gives no answer".to_owned());
        Some(QueueOutage { since, reason })
    }
}

/// Rate of results per second.
#[derive(Debug)]
struct ResultRate {
    results: u64,
    since: Instant,
}

impl ResultRate {
    fn new() -> Self {
        Self { results: 0, since: Instant::now() }
    }

    /// The rate since the last call.
    fn update(&mut self, results: &AtomicU64) -> f64 {
        let (now, results) = (Instant::now(), results.load(Ordering::Relaxed));
        let seconds = (now - self.since).as_secs_f64().max(0.001);
        let rate = results.saturating_sub(self.results) as f64 / seconds;
        (self.results, self.since) = (results, now);
        // In steps, so that it changes rarely.
        (rate / 100.0).ceil() * 100.0
    }
}

/// Warnings already given, so that each is given once.
#[derive(Debug, Default)]
struct WorkerWarnings {
    other_stores: BTreeSet<String>,
    versions: BTreeSet<String>,
    lanes: BTreeSet<u16>,
    failed_disks: BTreeSet<WorkerId>,
    warned_no_worker: bool,
    began: Option<Instant>,
}

impl WorkerWarnings {
    fn update<'a>(
        &mut self,
        view: &WorkerWatch,
        workers: impl Iterator<Item = &'a Heartbeat>,
        capacity: &PoolCapacity,
    ) -> Vec<String> {
        let mut said = Vec::new();
        for heartbeat in workers {
            if heartbeat.version != VERSION && self.versions.insert(heartbeat.version.clone()) {
                said.push(format!(
                    "worker {} on {} has version {} of rollout, this run is coordinated by {VERSION}: \
                     they are compatible, but each lacks the features that only the other has",
                    heartbeat.worker, heartbeat.host, heartbeat.version
                ));
            }
            if heartbeat.store == view.store {
                said.extend(self.disk_warning(heartbeat));
                continue;
            }
            if self.other_stores.insert(heartbeat.worker.to_string()) {
                said.push(format!(
                    "worker {} on {} uses the blob store {}, this run uses {}: it gets no work; \
                     start it with the run's --store",
                    heartbeat.worker, heartbeat.host, heartbeat.store, view.store
                ));
            }
        }
        for (lane, reason) in &capacity.unplaceable {
            if self.lanes.insert(*lane) {
                let needs = &view.lanes[usize::from(*lane)];
                let wait = match view.unplaceable_timeout {
                    None => "; the pool is elastic, so they wait until one is started",
                    Some(_) => "",
                };
                said.push(format!("no worker can run trials that need {needs}: {reason}{wait}"));
            }
        }
        self.lanes.retain(|lane| capacity.unplaceable.contains_key(lane));
        let began = *self.began.get_or_insert_with(Instant::now);
        if capacity.workers == 0
            && began.elapsed() >= NO_WORKER_WARNING_DELAY
            && !self.warned_no_worker
        {
            self.warned_no_worker = true;
            let pool = &view.pool;
            said.push(format!("the pool `{pool}` has no worker yet; the run waits for one"));
        }
        if capacity.workers > 0 {
            self.warned_no_worker = false;
        }
        said
    }
}

impl WorkerWarnings {
    /// Says once that a worker takes no work because its disk fails, and once that it takes some again.
    fn disk_warning(&mut self, heartbeat: &Heartbeat) -> Option<String> {
        let Heartbeat { worker, host, disk_fault, .. } = heartbeat;
        match disk_fault {
            Some(fault) => self.failed_disks.insert(worker.clone()).then(|| {
                format!(
                    "worker {worker} on {host} takes no work: {fault}; what it runs is given back \
                     unless that ends soon"
                )
            }),
            None => self
                .failed_disks
                .remove(worker)
                .then(|| format!("worker {worker} on {host} can write to its disk again")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_disk_of_a_worker_is_reported_once_and_its_recovery_too() {
        let mut warnings = WorkerWarnings::default();
        let mut worker =
            Heartbeat::departed("w-1".parse().expect("an id"), "h".to_owned(), "p".to_owned());
        assert_eq!(warnings.disk_warning(&worker), None);
        worker.disk_fault = Some("cannot write to /w: Read-only file system".to_owned());
        let said = warnings.disk_warning(&worker).expect("a warning");
        assert!(said.contains("worker w-1 on h takes no work: cannot write to /w: Read"), "{said}");
        assert_eq!(warnings.disk_warning(&worker), None, "it is said once");
        worker.disk_fault = None;
        let said = warnings.disk_warning(&worker).expect("a warning");
        assert!(said.ends_with("can write to its disk again"), "{said}");
        assert_eq!(warnings.disk_warning(&worker), None);
    }

    #[tokio::test(start_paused = true)]
    async fn server_outage_is_shown_with_its_begin_and_the_latest_reason() {
        let (mut told, began) = (ContactWarnings::default(), Timestamp::UNIX_EPOCH);
        let shown = |told: &mut ContactWarnings, up, fault: Option<&str>, second| {
            let _warning = told.update(up, Instant::now());
            let now = began + Duration::from_secs(second);
            told.outage(fault.map(str::to_owned), now)
        };
        assert_eq!(shown(&mut told, false, Some("refused"), 10), None, "it may be short");
        tokio::time::advance(CONTACT_WARNING_DELAY).await;
        let since = began + Duration::from_secs(10);
        let outage = |reason: &str| Some(QueueOutage { since, reason: reason.to_owned() });
        assert_eq!(shown(&mut told, false, Some("refused"), 12), outage("refused"));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(shown(&mut told, false, Some("unknown CA"), 72), outage("unknown CA"));
        assert_eq!(shown(&mut told, true, None, 73), None);
    }

    #[test]
    fn server_outage_is_reported_once_and_return_with_duration() {
        let (mut told, start) = (ContactWarnings::default(), Instant::now());
        let mut note = |up, second| told.update(up, start + Duration::from_secs(second));
        assert_eq!(note(true, 0), None);
        assert_eq!(note(false, 1), None);
        assert!(note(false, 3).is_some_and(|text| text.contains("gives no answer")));
        assert_eq!(note(false, 9), None, "it is given once");
        assert!(note(true, 61).is_some_and(|text| text.ends_with("after 60 s")));
        assert_eq!(note(false, 70), None);
        assert_eq!(note(true, 71), None, "a short outage gives no warning");
    }
}
