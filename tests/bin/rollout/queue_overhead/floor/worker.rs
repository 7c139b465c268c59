//! Working half of the floor.

use std::collections::HashMap;

use async_nats::Client;
use bytes::Bytes;
use rollout_base::supervise;

use super::messaging::{FloorPublisher, FloorPuller};
use super::{CONSUMER, FloorConfig};
use crate::queue_overhead::comparison::QueueBenchError;

/// Reports every offer.
#[derive(Debug)]
pub(crate) struct FloorWorker {
    client: Client,
    floor: FloorConfig,
    offers: FloorPuller,
    reports: FloorPublisher,
}

impl FloorWorker {
    pub(crate) async fn connect(floor: FloorConfig) -> Result<Self, QueueBenchError> {
        let client = async_nats::connect(&floor.url)
            .await
            .map_err(QueueBenchError::from_display("connect"))?;
        let mut offers = FloorPuller::new(&client, &floor.work(), CONSUMER, floor.window).await?;
        offers.request().await?;
        let reports = FloorPublisher::new(&client).await?;
        Ok(Self { client, floor, offers, reports })
    }

    /// Works until it is dropped.
    pub(crate) async fn run(self) -> Result<(), QueueBenchError> {
        let working = supervise::spawn("floor", self.report());
        working.await.map_err(|panic| QueueBenchError::Worker(panic.to_string()))?
    }

    async fn report(mut self) -> Result<(), QueueBenchError> {
        let payload = Bytes::from(vec![b'x'; self.floor.report_bytes]);
        let subject = self.floor.report_subject();
        let (mut number, mut unacknowledged) = (0, HashMap::new());
        loop {
            self.offers.request().await?;
            tokio::select! {
                offers = self.offers.next_messages() => for offer in offers? {
                    number += 1;
                    unacknowledged.insert(number, offer.reply.ok_or(QueueBenchError::Closed)?);
                    self.reports.publish(number, subject.clone(), payload.clone()).await?;
                },
                reported = self.reports.next_acknowledged() => for number in reported? {
                    let Some(reply) = unacknowledged.remove(&number) else { continue };
                    let acknowledged = self.client.publish(reply, Bytes::from_static(b"+ACK")).await;
                    acknowledged.map_err(QueueBenchError::from_display("acknowledge"))?;
                },
            }
        }
    }
}
