//! Readers of a run's reports from a position.
//!
//! A reader is a consumer without acknowledgements. It is kept from call to call; a call that does
//! not continue where the last one ended gets a new reader. Before a reader is created, the
//! incarnation and the report at the position are compared: a server that lost the end of the
//! stream reuses sequences, and a reader from the position would skip the reports that have them
//! now.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::position::{
    Incarnation, PositionedReport, ReportBatch, ReportCursor, ReportPosition,
};
use rollout_protocol::wire::report::Report;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::pools::{ExpectedPools, ExpectedRunPools};
use crate::nats::client::{CONSUMER_DELETE, NatsClient};
use crate::nats::delivery_metadata::DeliveryMetadata;
use crate::nats::error::NatsError;

/// Reports requested at once.
const FETCH_BATCH: usize = 2048;
/// How long one request waits for reports.
const FETCH_EXPIRY: Duration = Duration::from_secs(5);
/// Minimum wait for the first answer to a request, whatever the caller's deadline: even a call that
/// does not wait sees the reports that are present.
const MIN_ANSWER_WAIT: Duration = Duration::from_millis(100);
/// A consumer that is unused for this long is removed by the server: one whose process was killed, or whose
/// user may not remove it. A reader asks every [`FETCH_EXPIRY`]; one that slept gets a new consumer.
const INACTIVITY_LIMIT: Duration = Duration::from_secs(15);

/// The readers, by run.
#[derive(Debug)]
pub(super) struct NatsReportReaders {
    pools: Arc<ExpectedPools>,
    readers: Mutex<HashMap<RunId, Arc<tokio::sync::Mutex<Option<NatsReportReader>>>>>,
}

#[derive(Debug)]
struct NatsReportReader {
    run: RunId,
    client: Client,
    keeps_consumers: Arc<AtomicBool>,
    pools: Arc<ExpectedRunPools>,
    incarnation: Incarnation,
    connection: u64,
    /// Where the last call ended.
    position: Option<ReportPosition>,
    read: VecDeque<PositionedReport>,
    /// Sequence of the last message that arrived, if no batch has returned it yet.
    arrived: Option<u64>,
    ignored: WarningLimiter,
    inbox: String,
    next: String,
    /// Subject of the request that removes the consumer.
    delete: String,
    arriving: Subscriber,
    /// Reports that the open request may still deliver, and until when it waits.
    open: Option<(usize, Instant)>,
}

impl NatsReportReaders {
    pub(super) fn new(pools: Arc<ExpectedPools>) -> Self {
        Self { pools, readers: Mutex::default() }
    }

    /// Reports after `from`. `None` when that position does not exist in the current stream.
    pub(super) async fn read(
        &self,
        client: &NatsClient,
        run: RunId,
        from: Option<ReportPosition>,
        max: usize,
        deadline: Instant,
    ) -> Result<Option<ReportBatch>, NatsError> {
        let pools = self.pools.for_run(run);
        let reader_slot = {
            let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
            readers.entry(run).or_default().clone()
        };
        let mut place = reader_slot.lock().await;
        loop {
            let incarnation = client.current_incarnation().await?;
            let connection = client.connection()?;
            let continues = |reader: &NatsReportReader| {
                (reader.position, reader.incarnation, reader.connection)
                    == (from, incarnation, connection)
            };
            let reader = match place.take().filter(continues) {
                Some(reader) => reader,
                None if !position_exists(client, run, incarnation, from).await? => return Ok(None),
                None => {
                    NatsReportReader::open(client, run, &pools, from, incarnation, connection)
                        .await?
                }
            };
            let reader = place.insert(reader);
            match reader.next_batch(client, max, deadline).await {
                Ok(batch) => {
                    reader.position = batch.reports.last().map(|last| last.position).or(from);
                    return Ok(Some(batch));
                }
                // The consumer was removed, or the server has a new incarnation.
                Err(fault) if fault.is_missing() && Instant::now() < deadline => {
                    *place = None;
                    client.check_incarnation().await?;
                }
                Err(fault) => {
                    *place = None;
                    return Err(fault);
                }
            }
        }
    }
}

/// Removes the consumer: a server limits their number, and many sessions may end within the time after which it
/// removes one itself. Waits for nothing.
impl Drop for NatsReportReader {
    fn drop(&mut self) {
        if !self.keeps_consumers.load(Ordering::Relaxed) {
            let (delete, inbox) = (self.delete.clone(), self.inbox.clone());
            let _sent = self.client.publish_with_reply(delete, inbox, Bytes::new()).now_or_never();
        }
    }
}

/// Whether the position exists in the current stream.
pub(super) async fn position_exists(
    client: &NatsClient,
    run: RunId,
    incarnation: Incarnation,
    from: Option<ReportPosition>,
) -> Result<bool, NatsError> {
    let Some(from) = from else { return Ok(true) };
    if from.incarnation != incarnation {
        return Ok(false);
    }
    let Some(stored) = client.message_at(&client.names.reports, from.sequence).await? else {
        return Ok(false);
    };
    let report = serde_json::from_slice::<Report>(&stored.payload);
    let of_run = client.names.parse_report(&stored.subject, run).is_some();
    Ok(of_run && report.is_ok_and(|r| from.matches(&r)))
}

impl NatsReportReader {
    async fn open(
        client: &NatsClient,
        run: RunId,
        pools: &Arc<ExpectedRunPools>,
        from: Option<ReportPosition>,
        incarnation: Incarnation,
        connection: u64,
    ) -> Result<Self, NatsError> {
        let inbox = client.inner.new_inbox();
        let arriving = (client.inner.subscribe(inbox.clone()).await)
            .map_err(|error| NatsError::Unreachable(error.to_string()))?;
        let (stream, filter) = (&client.names.reports, client.names.run_reports(run));
        let name = format!("reader-{:016x}", rand::random::<u64>());
        let mut config = json!({
            "name": name, "ack_policy": "none", "replay_policy": "instant",
            "filter_subject": filter, "mem_storage": true, "num_replicas": 1,
            "inactive_threshold": u64::try_from(INACTIVITY_LIMIT.as_nanos()).unwrap_or(u64::MAX),
        });
        match from {
            None => config["deliver_policy"] = "all".into(),
            Some(from) => {
                config["deliver_policy"] = "by_start_sequence".into();
                config["opt_start_seq"] = (from.sequence + 1).into();
            }
        }
        let verb = format!("CONSUMER.CREATE.{stream}.{name}.{filter}");
        let body = json!({ "stream_name": stream, "config": config, "action": "create" });
        client.api_call::<Value>(&verb, &body).await?;
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
        let delete = format!("{CONSUMER_DELETE}{stream}.{name}");
        let read = VecDeque::new();
        let pools = Arc::clone(pools);
        let (arrived, ignored) = (None, WarningLimiter::default());
        Ok(Self {
            run,
            client: client.inner.clone(),
            keeps_consumers: client.keeps_consumers(),
            pools,
            incarnation,
            connection,
            position: from,
            read,
            arrived,
            ignored,
            inbox,
            next,
            delete,
            arriving,
            open: None,
        })
    }

    /// The reports that arrived, at most `max`; `None` when no message did.
    fn take_batch(&mut self, max: usize) -> Option<ReportBatch> {
        if self.read.is_empty() || max == 0 {
            let sequence = self.arrived.take()?;
            let read_to = Some(ReportCursor { incarnation: self.incarnation, sequence });
            return Some(ReportBatch { reports: Vec::new(), read_to });
        }
        let count = max.min(self.read.len());
        let mut batch = ReportBatch::from(self.read.drain(..count).collect::<Vec<_>>());
        if self.read.is_empty()
            && let (Some(sequence), Some(read_to)) = (self.arrived.take(), &mut batch.read_to)
        {
            read_to.sequence = sequence;
        }
        Some(batch)
    }

    /// The next reports, at most `max`. Cancel-safe.
    async fn next_batch(
        &mut self,
        client: &NatsClient,
        max: usize,
        deadline: Instant,
    ) -> Result<ReportBatch, NatsError> {
        let least = Instant::now() + MIN_ANSWER_WAIT;
        let mut contact = client.connection_status();
        loop {
            while let Some(Some(message)) = self.arriving.next().now_or_never() {
                self.handle_message(client, &message)?;
            }
            if max == 0 {
                return Ok(ReportBatch::default());
            }
            if let Some(batch) = self.take_batch(max) {
                return Ok(batch);
            }
            let now = Instant::now();
            let asked = self.open.is_none_or(|(_, until)| until < now);
            if asked {
                self.request_reports(client).await?;
            }
            let max_wait = if asked { deadline.max(least) } else { deadline };
            if max_wait <= now {
                return Ok(ReportBatch::default());
            }
            let until = self.open.map_or(max_wait, |(_, until)| until.min(max_wait));
            tokio::select! {
                message = timeout_at(until, self.arriving.next()) => match message {
                    Ok(Some(message)) => self.handle_message(client, &message)?,
                    Ok(None) => return Err(NatsError::Unreachable("the connection is closed".into())),
                    Err(_) if until >= max_wait => return Ok(ReportBatch::default()),
                    Err(_) => {}
                },
                _ = contact.changed() => {
                    if client.connection()? != self.connection {
                        return Err(NatsError::Unreachable("the connection was lost".to_owned()));
                    }
                }
            }
        }
    }

    async fn request_reports(&mut self, client: &NatsClient) -> Result<(), NatsError> {
        let expires = u64::try_from(FETCH_EXPIRY.as_nanos()).unwrap_or(u64::MAX);
        let ask = json!({ "batch": FETCH_BATCH, "expires": expires }).to_string();
        // A lost answer is not waited for much longer than the request lasts.
        self.open = Some((FETCH_BATCH, Instant::now() + FETCH_EXPIRY + MIN_ANSWER_WAIT));
        let sent =
            client.inner.publish_with_reply(self.next.clone(), self.inbox.clone(), ask.into());
        sent.await.map_err(|error| NatsError::Unreachable(error.to_string()))
    }

    fn handle_message(&mut self, client: &NatsClient, message: &Message) -> Result<(), NatsError> {
        match message.status {
            None => {}
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => {
                self.open = None;
                return Ok(());
            }
            // The consumer was removed, or moves to another server.
            Some(_) => return Err(NatsError::NoResponders(self.next.clone())),
        }
        if let Some((left, _)) = &mut self.open {
            *left -= 1;
            if *left == 0 {
                self.open = None;
            }
        }
        let Some(meta) = message.reply.as_deref().and_then(DeliveryMetadata::parse) else {
            return Ok(());
        };
        client.incarnation.observe_report(meta.sequence);
        self.arrived = Some(meta.sequence);
        match self.parse_report(client, message) {
            Ok(report) => {
                let position = ReportPosition::for_report(self.incarnation, meta.sequence, &report);
                self.read.push_back(PositionedReport { position, report });
            }
            Err(why) => {
                if let Some(more) = self.ignored.record() {
                    let (sequence, run) = (meta.sequence, self.run);
                    tracing::warn!(
                        "ignored message {sequence}, which is not a report for run {run}: {why} \
                         ({more} more like it since the last warning)"
                    );
                }
            }
        }
        Ok(())
    }

    /// The report, or why the message is ignored.
    fn parse_report(&self, client: &NatsClient, message: &Message) -> Result<Report, String> {
        let length = message.payload.len();
        if length > limits::REPORT_BYTES {
            return Err(format!("{length} bytes are too large"));
        }
        let report = serde_json::from_slice::<Report>(&message.payload);
        let report = report.map_err(|error| error.to_string())?;
        let pool = client.names.parse_report(&message.subject, self.run);
        let Some(pool) = pool.filter(|_| report.run == self.run) else {
            return Err("it belongs to another run".to_owned());
        };
        if self.pools.accepts(pool, report.try_id) {
            Ok(report)
        } else {
            Err(format!("it came from the pool `{pool}`, to which its try was not offered"))
        }
    }
}
