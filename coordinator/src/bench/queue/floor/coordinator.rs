//! The half that offers.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rollout_protocol::id::{ItemId, TryId};
use rollout_worker::supervise;
use serde_json::json;

use super::line::{Publisher, Puller};
use super::{Floor, READER};
use crate::bench::queue::helper::{Helper, Part};
use crate::bench::queue::{Fault, Once};
use crate::bench::usage::Meter;

/// Reports between two purges of what was read.
const PURGE_EVERY: u64 = 4096;

/// Requests for reports ask for this many.
const REPORTS: usize = 2048;

/// Runs the loop for so many items, each with so many bytes of journal in `directory`.
pub(in crate::bench::queue) async fn run(
    floor: &Floor,
    items: u64,
    journal_bytes: usize,
    directory: &Path,
    meter: &Meter,
) -> Result<Once, Fault> {
    let client = async_nats::connect(&floor.url).await.map_err(Fault::of("connect"))?;
    floor.prepare(&client).await?;
    let helper = Helper::start(&Part::Floor(floor.clone())).await?;
    let offers = Publisher::new(&client).await?;
    let reports = Puller::new(&client, &floor.reports(), READER, REPORTS).await?;
    let file = Arc::new(File::create(directory.join("floor.log"))?);
    let work = Work { floor: floor.clone(), items, journal_bytes, client, offers, reports, file };
    let (before, start) = (meter.read(), Instant::now());
    // A task of its own, as the engine of a run is.
    let working = supervise::spawn("floor", work.go());
    working.await.map_err(|panic| Fault::Worker(panic.to_string()))??;
    let took = start.elapsed();
    let used = meter.read().since(&before);
    let worker = helper.finish().await?;
    Ok(Once::new(items, took, used, worker))
}

/// What the loop works with.
struct Work {
    floor: Floor,
    items: u64,
    journal_bytes: usize,
    client: async_nats::Client,
    offers: Publisher,
    reports: Puller,
    file: Arc<File>,
}

impl Work {
    async fn go(self) -> Result<(), Fault> {
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
            reports.ask().await?;
            tokio::select! {
                arrived = reports.arrived() => {
                    gathered += arrived?.len() as u64;
                }
                answers = offers.acknowledged() => acknowledged += answers?.len() as u64,
                Some(written) = writing.next(), if !writing.is_empty() => {
                    let written = written?;
                    (free, settled) = (free + written, settled + written);
                    if settled - purged >= PURGE_EVERY {
                        purged = settled;
                        purge(&client, &floor, settled).await?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn offer_subject(floor: &Floor) -> String {
    let (item, try_id) = (ItemId::from_bytes(rand::random()), TryId { epoch: 1, n: 1 });
    format!("{}.v1.work.default.c0.{}.{item}.{try_id}", floor.namespace, floor.run)
}

/// Appends as much as the journal would for so many items, and makes it durable.
async fn write(file: Arc<File>, items: u64, bytes: usize) -> std::io::Result<u64> {
    supervise::blocking(move || {
        let size = bytes * usize::try_from(items).unwrap_or(usize::MAX);
        (&*file).write_all(&vec![b'x'; size])?;
        file.sync_data()?;
        Ok(items)
    })
    .await
}

/// Removes what was read, as runs do. The answer tells nothing new.
async fn purge(client: &async_nats::Client, floor: &Floor, below: u64) -> Result<(), Fault> {
    let subject = format!("$JS.API.STREAM.PURGE.{}", floor.reports());
    let body = json!({ "filter": floor.report_subject(), "seq": below }).to_string();
    let sent = client.publish_with_reply(subject, client.new_inbox(), body.into()).await;
    sent.map_err(Fault::of("purge"))
}
