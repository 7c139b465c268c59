//! Offering half of the floor.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_base::supervise;
use rollout_protocol::id::{ItemId, TryId};
use serde_json::json;

use super::messaging::{FloorPublisher, FloorPuller};
use super::{FloorConfig, READER};
use crate::queue_overhead::comparison::{QueueBenchError, QueueMeasurement};
use crate::queue_overhead::helper::{HelperProcess, HelperRole};
use crate::queue_overhead::usage::CpuMeter;

/// Reports between two purges of what was read.
const PURGE_INTERVAL: u64 = 4096;

/// Requests for reports ask for this many.
const MAX_REPORTS_PER_REQUEST: usize = 2048;

/// Runs the loop for `items` items, each with `journal_bytes` bytes of journal in `directory`.
pub(crate) async fn run(
    floor: &FloorConfig,
    items: u64,
    journal_bytes: usize,
    directory: &Path,
    meter: &CpuMeter,
) -> Result<QueueMeasurement, QueueBenchError> {
    let client =
        async_nats::connect(&floor.url).await.map_err(QueueBenchError::from_display("connect"))?;
    floor.prepare(&client).await?;
    let helper = HelperProcess::start(&HelperRole::Floor(floor.clone())).await?;
    let offers = FloorPublisher::new(&client).await?;
    let reports =
        FloorPuller::new(&client, &floor.reports(), READER, MAX_REPORTS_PER_REQUEST).await?;
    let file = Arc::new(File::create(directory.join("floor.log"))?);
    let work = FloorCoordinator {
        floor: floor.clone(),
        items,
        journal_bytes,
        client,
        offers,
        reports,
        file,
    };
    let (before, start) = (meter.read(), Instant::now());
    // A separate task, like the engine of a run.
    let working = supervise::spawn("floor", work.run());
    working.await.map_err(|panic| QueueBenchError::Worker(panic.to_string()))??;
    let took = start.elapsed();
    let used = meter.read().since(&before);
    let worker = helper.finish().await?;
    Ok(QueueMeasurement::new(items, took, used, worker))
}

/// State of the loop.
struct FloorCoordinator {
    floor: FloorConfig,
    items: u64,
    journal_bytes: usize,
    client: async_nats::Client,
    offers: FloorPublisher,
    reports: FloorPuller,
    file: Arc<File>,
}

impl FloorCoordinator {
    async fn run(self) -> Result<(), QueueBenchError> {
        let Self { floor, items, journal_bytes, client, mut offers, mut reports, file } = self;
        let payload = Bytes::from(vec![b'x'; floor.offer_bytes]);
        let (mut offered, mut acknowledged, mut settled) = (0, 0, 0);
        let (mut free, mut gathered, mut purged) = (floor.window as u64, 0, 0);
        let mut writing = FuturesUnordered::new();
        while settled < items || acknowledged < items {
            while free > 0 && offered < items {
                offers.publish(offered, offer_subject(&floor), payload.clone()).await?;
                (offered, free) = (offered + 1, free - 1);
            }
            if gathered > 0 && writing.is_empty() {
                writing.push(write(file.clone(), gathered, journal_bytes));
                gathered = 0;
            }
            reports.request().await?;
            tokio::select! {
                arrived = reports.next_messages() => {
                    gathered += arrived?.len() as u64;
                }
                answers = offers.next_acknowledged() => acknowledged += answers?.len() as u64,
                Some(written) = writing.next(), if !writing.is_empty() => {
                    let written = written?;
                    (free, settled) = (free + written, settled + written);
                    if settled - purged >= PURGE_INTERVAL {
                        purged = settled;
                        purge(&client, &floor, settled).await?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn offer_subject(floor: &FloorConfig) -> String {
    let (item, try_id) = (ItemId::from_bytes(rand::random()), TryId { epoch: 1, n: 1 });
    format!("{}.v1.work.default.c0.{}.{item}.{try_id}", floor.namespace, floor.run)
}

/// Appends as much as the journal would for `items` items, and makes it durable.
async fn write(file: Arc<File>, items: u64, bytes: usize) -> std::io::Result<u64> {
    supervise::blocking(move || {
        let size = bytes * usize::try_from(items).unwrap_or(usize::MAX);
        (&*file).write_all(&vec![b'x'; size])?;
        file.sync_data()?;
        Ok(items)
    })
    .await
}

/// Removes the reports that were read, as runs do. The answer is not needed.
async fn purge(
    client: &async_nats::Client,
    floor: &FloorConfig,
    below: u64,
) -> Result<(), QueueBenchError> {
    let subject = format!("$JS.API.STREAM.PURGE.{}", floor.reports());
    let body = json!({ "filter": floor.report_subject(), "seq": below }).to_string();
    let sent = client.publish_with_reply(subject, client.new_inbox(), body.into()).await;
    sent.map_err(QueueBenchError::from_display("purge"))
}
