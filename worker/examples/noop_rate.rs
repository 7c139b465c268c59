//! How many trials that do nothing the embedded queue and a worker carry per second, with a driver
//! in the place of the coordinator:
//!
//! ```text
//! cargo run --release -p rollout-worker --features testing --example noop_rate -- [ITEMS] [WINDOW]
//! ```
#![expect(clippy::print_stdout, reason = "a program that prints what it measured")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rollout_protocol::id::TryId;
use rollout_protocol::record::TrialRecord;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_protocol::wire::position::Incarnation;
use rollout_worker::environment::Owner;
use rollout_worker::executor::Finished;
use rollout_worker::queue::embedded::EmbeddedQueue;
use rollout_worker::queue::embedded::model::{BrokerModel, BrokerModelConfig};
use rollout_worker::queue::traits::Dispatch;
use rollout_worker::service::{Runner, ShutdownLevel, Worker, WorkerConfig, WorkerProfile};
use rollout_worker::store::MemoryStore;
use rollout_worker::supervise;
use rollout_worker::testing::{SampleRun, passed_trial};
use rollout_worker::work::trial::TrialContext;

#[derive(Debug)]
struct Noop;

#[async_trait]
impl Runner for Noop {
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord> {
        passed_trial(&context)
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|text| text.parse().ok());
    let items = arguments.next().unwrap_or(500_000);
    let window = arguments.next().unwrap_or(1024);
    model_alone(items);
    through_the_worker(items, window).await;
}

/// The work stream without anything around it, in batches of 256.
fn model_alone(items: u32) {
    let store = MemoryStore::default();
    let sample = SampleRun::store(&store);
    let mut model = BrokerModel::new(Incarnation(1), BrokerModelConfig::default());
    let (began, cpu) = (Instant::now(), cpu());
    for first in (0..items).step_by(256) {
        let now = began.elapsed();
        let offers: Vec<_> =
            (first..first + 256).map(|n| sample.offer(n, TryId::first(1))).collect();
        model.offer(&offers);
        let tokens: Vec<_> = model.pull(now, 256).iter().map(|d| d.token).collect();
        model.progress(now, &tokens);
        model.ack(&tokens);
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "model: {:.0} operations/s (offer, pull, progress, ack), {:.2} us of CPU each",
        f64::from(items) * 4.0 / seconds,
        cpu_since(cpu).as_secs_f64() * 1e6 / f64::from(items) / 4.0,
    );
}

async fn through_the_worker(items: u32, window: u32) {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let store = Arc::new(MemoryStore::default());
    let sample = SampleRun::store(&store);
    let queue = Arc::new(EmbeddedQueue::default());
    let config = WorkerConfig {
        worker: "bench".parse().expect("a valid name"),
        owner: Owner::current(dir.path().to_owned()),
        dir: dir.path().to_owned(),
        pool: "default".into(),
        slots: window,
        budget: ResourceBudget::default(),
        profile: WorkerProfile::default().into_fixed(),
        lease: Duration::from_secs(60),
        suspicious_window: None,
        max_offline: None,
        spool_bytes: u64::MAX,
    };
    let worker = Worker::new(config, queue.clone(), store, Arc::new(Noop));
    let (stop, shutdown) = tokio::sync::watch::channel(ShutdownLevel::No);
    let working = supervise::spawn("worker", worker.run(shutdown));
    let (began, cpu) = (Instant::now(), cpu());
    let driver = supervise::spawn("driver", drive(queue, sample, items, window));
    driver.await.expect("the driver does not panic");
    let seconds = began.elapsed().as_secs_f64();
    stop.send_replace(ShutdownLevel::Finish);
    working.await.expect("the worker does not panic");
    println!(
        "worker and queue: {items} items at window {window}: {:.0} items/s, {:.2} us of CPU each",
        f64::from(items) / seconds,
        cpu_since(cpu).as_secs_f64() * 1e6 / f64::from(items),
    );
}

async fn drive(queue: Arc<EmbeddedQueue>, sample: SampleRun, items: u32, window: u32) {
    let (mut offered, mut reported, mut position) = (0, 0, None);
    while reported < items {
        let more = (reported + window).min(items) - offered;
        if more > 0 {
            let offers: Vec<_> =
                (offered..offered + more).map(|n| sample.offer(n, TryId::first(1))).collect();
            queue.offer(&offers).await.expect("in this process");
            offered += more;
        }
        let wait = Duration::from_secs(5);
        let read =
            queue.reports(sample.run, position, 4096, wait).await.expect("a known place").reports;
        let last = read.last().expect("work goes on").position;
        reported += u32::try_from(read.len()).expect("few");
        position = Some(last);
        queue.mark_journaled(sample.run, last).await.expect("in this process");
    }
}

/// User and system time of this process, in ticks of 10 ms.
fn cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = text.rsplit(')').next().expect("a name").split_whitespace().collect();
    fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks")
}

fn cpu_since(ticks: u64) -> Duration {
    Duration::from_millis((cpu() - ticks) * 10)
}
