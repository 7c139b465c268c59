//! Floor of the server and the disk for the same messages: a bare loop over the client library.
//!
//! Topology, window, subjects, message sizes, stream settings and rule of syncing are those of a
//! run over the queue. It has nothing else: no states, no retries, no lost messages.
//! * coordinator: publishes offers, reads reports from a consumer without acknowledgements, appends
//!   as many bytes to a file as the journal would (one `fdatasync` for the reports that arrived
//!   during the last one), and offers as many again
//! * worker: pulls offers with requests that stay open, publishes a report of each, and
//!   acknowledges the offer when the report is acknowledged

mod coordinator;
mod messaging;
mod worker;

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, Stream};
use async_nats::jetstream::{self, Context};
use rollout_protocol::limits;
use serde::{Deserialize, Serialize};

pub(crate) use self::coordinator::run;
pub(crate) use self::worker::FloorWorker;
use crate::queue_overhead::comparison::QueueBenchError;

/// Configuration of both processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FloorConfig {
    pub(crate) url: String,
    pub(crate) namespace: String,
    /// The token of the run in subjects.
    pub(crate) run: String,
    pub(crate) window: usize,
    pub(crate) offer_bytes: usize,
    pub(crate) report_bytes: usize,
}

/// The durable consumer of offers.
const CONSUMER: &str = "default-c0";
/// The reader of reports.
const READER: &str = "reader";

impl FloorConfig {
    fn work(&self) -> String {
        format!("{}_WORK", self.namespace.to_ascii_uppercase())
    }

    fn reports(&self) -> String {
        format!("{}_REPORTS", self.namespace.to_ascii_uppercase())
    }

    fn report_subject(&self) -> String {
        format!("{}.v1.report.{}", self.namespace, self.run)
    }

    /// Creates streams and consumers with the settings that runs use.
    async fn prepare(&self, client: &async_nats::Client) -> Result<(), QueueBenchError> {
        let context = jetstream::new(client.clone());
        // As many copies as the product's streams get.
        let num_replicas = if client.server_info().cluster.is_some() { 3 } else { 1 };
        let work = Config {
            num_replicas,
            name: self.work(),
            subjects: vec![format!("{}.v1.work.>", self.namespace)],
            retention: RetentionPolicy::WorkQueue,
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            discard_new_per_subject: true,
            allow_direct: true,
            ..Config::default()
        };
        let offers = pull::Config {
            durable_name: Some(CONSUMER.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: limits::LEASE,
            max_ack_pending: 100_000,
            max_waiting: 16_384,
            filter_subject: format!("{}.v1.work.default.c0.>", self.namespace),
            ..pull::Config::default()
        };
        let stream = create_stream(&context, work).await?;
        stream
            .create_consumer(offers)
            .await
            .map_err(QueueBenchError::from_display("create a consumer"))?;
        let reports = Config {
            num_replicas,
            name: self.reports(),
            subjects: vec![format!("{}.v1.report.*", self.namespace)],
            max_messages_per_subject: i64::try_from(limits::REPORTS_PER_RUN).unwrap_or(i64::MAX),
            max_bytes: 1024 * 1024 * 1024,
            max_age: Duration::from_secs(30 * 24 * 3600),
            discard: DiscardPolicy::New,
            discard_new_per_subject: true,
            ..Config::default()
        };
        let reader = pull::Config {
            name: Some(READER.to_owned()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::None,
            memory_storage: true,
            filter_subject: self.report_subject(),
            ..pull::Config::default()
        };
        let stream = create_stream(&context, reports).await?;
        stream
            .create_consumer(reader)
            .await
            .map_err(QueueBenchError::from_display("create a consumer"))?;
        Ok(())
    }
}

async fn create_stream(context: &Context, config: Config) -> Result<Stream, QueueBenchError> {
    context.create_stream(config).await.map_err(QueueBenchError::from_display("create a stream"))
}
