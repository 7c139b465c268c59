//! Purges of reports that the journal holds. They run at most a few times a second: a journal is
//! written far more often.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::supervise::{self, Task};
use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::ReportPosition;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::reports::position_exists;
use crate::nats::client::NatsClient;
use crate::nats::error::NatsError;

/// Time between two rounds of purges.
const PURGE_PAUSE: Duration = Duration::from_millis(200);

/// Purges reports in the background.
#[derive(Debug)]
pub(super) struct ReportPurger {
    pending: Arc<PendingPurges>,
    _task: Task<()>,
}

#[derive(Debug, Default)]
struct PendingPurges {
    below: Mutex<HashMap<RunId, ReportPosition>>,
    added: Notify,
}

impl PendingPurges {
    fn below(&self) -> MutexGuard<'_, HashMap<RunId, ReportPosition>> {
        self.below.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_below(&self, run: RunId, position: ReportPosition) {
        // The later position counts even if it is lower: a server that lost the end of the stream
        // reuses sequences.
        self.below().insert(run, position);
    }
}

impl ReportPurger {
    pub(super) fn start(client: Arc<NatsClient>) -> Self {
        let pending = Arc::<PendingPurges>::default();
        let task = supervise::spawn("purges", run_purges(client, pending.clone()));
        Self { pending, _task: task }
    }

    pub(super) fn purge_up_to(&self, run: RunId, position: ReportPosition) {
        self.pending.set_below(run, position);
        self.pending.added.notify_one();
    }
}

async fn run_purges(client: Arc<NatsClient>, pending: Arc<PendingPurges>) {
    loop {
        pending.added.notified().await;
        let below = std::mem::take(&mut *pending.below());
        for (run, position) in below {
            // A position of another incarnation, or of a lost end of the stream, would delete
            // reports that no coordinator has read.
            let incarnation = client.wait_for_incarnation().await;
            let purged = match position_exists(&client, run, incarnation, Some(position)).await {
                Ok(true) => purge_below(&client, run, position.sequence).await,
                Ok(false) => continue,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = purged {
                tracing::debug!("cannot purge reports of run {run}: {fault}");
                let mut below = pending.below();
                below.entry(run).or_insert(position);
                pending.added.notify_one();
            }
        }
        tokio::time::sleep(PURGE_PAUSE).await;
    }
}

/// Removes the run's reports below a sequence.
pub(super) async fn purge_below(
    client: &NatsClient,
    run: RunId,
    below: u64,
) -> Result<(), NatsError> {
    let verb = format!("STREAM.PURGE.{}", client.names.reports);
    let filter = client.names.run_reports(run);
    client.api_call::<Value>(&verb, &json!({ "filter": filter, "seq": below })).await?;
    Ok(())
}
