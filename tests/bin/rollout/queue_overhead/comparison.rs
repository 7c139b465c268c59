//! Product and floor, measured alternately, so that both see the same state of the machine.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream;
use futures_util::TryStreamExt as _;
use rollout_coordinator::bench::DispatchBenchError;
use rollout_queue::nats::{
    BindError, ConnectError, InvalidNatsName, NatsOptionsError, NatsSetupError,
};
use rollout_queue::traits::QueueError;
use rollout_tests::noop_worker::NoopWorkerError;
use serde::Serialize;

use crate::queue_overhead::floor::FloorConfig;
use crate::queue_overhead::usage::{CpuMeter, CpuUsage};
use crate::queue_overhead::{floor, product};

/// Parameters of a measurement.
#[derive(Debug, Clone)]
pub(crate) struct QueueBench {
    /// The server.
    pub(crate) url: String,
    /// Its process id, to measure its processor time; it must be on this host.
    pub(crate) server: Option<u32>,
    /// Trials of each measurement.
    pub(crate) items: u32,
    /// Measurements of product and floor each, of which the median counts.
    pub(crate) rounds: u32,
    /// Directory to write to.
    pub(crate) directory: PathBuf,
}

/// One window, measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct QueueComparison {
    /// Trials at a time.
    pub(crate) window: u32,
    /// Trials of each measurement.
    pub(crate) items: u32,
    /// Trials per second, the median.
    pub(crate) trials_per_second: f64,
    /// Trials per second of the floor, the median.
    pub(crate) floor_per_second: f64,
    /// The median of the rounds' ratios.
    pub(crate) ratio: f64,
    /// The ratio of each round.
    pub(crate) ratios: Vec<f64>,
    /// Processor time per trial, microseconds.
    pub(crate) cpu_us_per_trial: CpuPerTrial,
    /// The same of the floor.
    pub(crate) floor_cpu_us_per_trial: CpuPerTrial,
    /// Bytes of an offer.
    pub(crate) offer_bytes: usize,
    /// Bytes of a report.
    pub(crate) report_bytes: usize,
    /// Bytes of journal per trial.
    pub(crate) journal_bytes_per_trial: usize,
}

/// Processor time per trial, microseconds, medians.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct CpuPerTrial {
    /// Of the coordinator.
    pub(crate) coordinator: f64,
    /// Of the worker.
    pub(crate) worker: f64,
    /// Of the server, if its process is known.
    pub(crate) server: Option<f64>,
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueMeasurement {
    per_second: f64,
    cpu: CpuPerTrial,
}

impl QueueMeasurement {
    pub(crate) fn new(items: u64, took: Duration, used: CpuUsage, worker: Duration) -> Self {
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / items as f64;
        Self {
            per_second: items as f64 / took.as_secs_f64(),
            cpu: CpuPerTrial {
                coordinator: each(used.own),
                worker: each(worker),
                server: used.server.map(each),
            },
        }
    }
}

/// Error of a measurement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueueBenchError {
    /// The library or the server.
    #[error("cannot {what}: {reason}")]
    Nats {
        /// The attempted action.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// The server.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The connection ended.
    #[error("the connection to the server was closed")]
    Closed,
    /// The worker process.
    #[error("the worker process {0}")]
    Worker(String),
    /// The worker.
    #[error("the worker failed: {0}")]
    Noop(#[from] NoopWorkerError),
    /// The address.
    #[error(transparent)]
    Options(#[from] NatsOptionsError),
    /// A name.
    #[error(transparent)]
    Name(#[from] InvalidNatsName),
    /// The server cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Streams cannot be created.
    #[error(transparent)]
    Setup(#[from] NatsSetupError),
    /// The pool cannot be bound to the store.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] DispatchBenchError),
    /// The disk failed.
    #[error("the disk failed while it was measured")]
    Io(#[from] std::io::Error),
}

impl QueueBenchError {
    pub(crate) fn from_display<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Nats { what, reason: error.to_string() }
    }
}

/// Measures one window. Dropping it leaves objects on the server: [`clear`] removes them.
///
/// # Errors
/// [`QueueBenchError`].
pub(crate) async fn measure(
    queue: &QueueBench,
    namespace: &str,
    window: u32,
) -> Result<QueueComparison, QueueBenchError> {
    let meter = CpuMeter { server: queue.server };
    let (mut products, mut floors) = (Vec::new(), Vec::new());
    let mut sizes = None;
    for round in 0..queue.rounds {
        let name = |kind| format!("{namespace}-{window}-{round}{kind}");
        let directory = queue.directory.join(format!("{window}-{round}"));
        std::fs::create_dir_all(&directory)?;
        let (once, found) = product::run(queue, &name('t'), window, &directory, &meter).await?;
        products.push(once);
        let product::MessageSizes { offer, report, journal, run } = found;
        let floor = FloorConfig {
            url: queue.url.clone(),
            namespace: name('f'),
            run,
            window: window as usize,
            offer_bytes: offer,
            report_bytes: report,
        };
        clear(&queue.url, namespace).await?;
        let items = u64::from(queue.items);
        floors.push(floor::run(&floor, items, journal, &directory, &meter).await?);
        clear(&queue.url, namespace).await?;
        sizes = Some((offer, report, journal));
    }
    let (offer_bytes, report_bytes, journal_bytes_per_trial) = sizes.unwrap_or_default();
    let ratios: Vec<f64> =
        products.iter().zip(&floors).map(|(p, f)| p.per_second / f.per_second).collect();
    Ok(QueueComparison {
        window,
        items: queue.items,
        trials_per_second: median(products.iter().map(|once| once.per_second)),
        floor_per_second: median(floors.iter().map(|once| once.per_second)),
        ratio: median(ratios.iter().copied()),
        ratios,
        cpu_us_per_trial: CpuPerTrial::median(&products),
        floor_cpu_us_per_trial: CpuPerTrial::median(&floors),
        offer_bytes,
        report_bytes,
        journal_bytes_per_trial,
    })
}

impl CpuPerTrial {
    fn median(measured: &[QueueMeasurement]) -> Self {
        let of =
            |part: fn(&CpuPerTrial) -> f64| median(measured.iter().map(|once| part(&once.cpu)));
        let server = measured.iter().filter_map(|once| once.cpu.server);
        Self {
            coordinator: of(|cpu| cpu.coordinator),
            worker: of(|cpu| cpu.worker),
            server: (server.clone().count() > 0).then(|| median(server)),
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A unique namespace.
pub(crate) fn namespace() -> String {
    format!("bench-{:08x}", rand::random::<u32>())
}

/// Removes every stream and bucket of the namespaces that begin with this.
///
/// # Errors
/// [`QueueBenchError`].
pub(crate) async fn clear(url: &str, namespace: &str) -> Result<(), QueueBenchError> {
    let client =
        async_nats::connect(url).await.map_err(QueueBenchError::from_display("connect"))?;
    let context = jetstream::new(client);
    let names: Vec<String> = context
        .stream_names()
        .try_collect()
        .await
        .map_err(QueueBenchError::from_display("list the streams"))?;
    let prefix = namespace.to_ascii_uppercase();
    for name in names {
        if name.strip_prefix("KV_").unwrap_or(&name).starts_with(&prefix) {
            context
                .delete_stream(&name)
                .await
                .map_err(QueueBenchError::from_display("delete a stream"))?;
        }
    }
    Ok(())
}
