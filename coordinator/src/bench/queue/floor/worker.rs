//! The half that works.

use std::collections::HashMap;

use async_nats::Client;
use bytes::Bytes;
use rollout_worker::supervise;

use super::line::{Publisher, Puller};
use super::{CONSUMER, Floor};
use crate::bench::queue::Fault;

/// Reports whatever is offered.
#[derive(Debug)]
pub(in crate::bench::queue) struct Worker {
    client: Client,
    floor: Floor,
    offers: Puller,
    reports: Publisher,
}

impl Worker {
    pub(in crate::bench::queue) async fn connect(floor: Floor) -> Result<Self, Fault> {
        let client = async_nats::connect(&floor.url).await.map_err(Fault::of("connect"))?;
        let mut offers = Puller::new(&client, &floor.work(), CONSUMER, floor.window).await?;
        offers.ask().await?;
        let reports = Publisher::new(&client).await?;
        Ok(Self { client, floor, offers, reports })
    }

    /// Works until it is dropped.
    pub(in crate::bench::queue) async fn work(self) -> Result<(), Fault> {
        let working = supervise::spawn("floor", self.report());
        working.await.map_err(|panic| Fault::Worker(panic.to_string()))?
    }

    async fn report(mut self) -> Result<(), Fault> {
        let payload = Bytes::from(vec![b'x'; self.floor.report_bytes]);
        let subject = self.floor.report_subject();
        let (mut number, mut unacknowledged) = (0, HashMap::new());
        loop {
            self.offers.ask().await?;
            tokio::select! {
                offers = self.offers.arrived() => for offer in offers? {
                    number += 1;
                    unacknowledged.insert(number, offer.reply.ok_or(Fault::Closed)?);
                    self.reports.publish(number, subject.clone(), payload.clone()).await?;
                },
                reported = self.reports.acknowledged() => for number in reported? {
                    let Some(reply) = unacknowledged.remove(&number) else { continue };
                    let acknowledged = self.client.publish(reply, Bytes::from_static(b"+ACK")).await;
                    acknowledged.map_err(Fault::of("acknowledge"))?;
                },
            }
        }
    }
}
