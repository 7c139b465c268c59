//! Purges of reports that the journal holds. They run at most a few times a second: a journal is
//! written far more often.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::ReportPosition;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::reports::position_exists;
use crate::queue::nats::client::NatsClient;
use crate::queue::nats::error::NatsError;
use crate::supervise::{self, Task};

/// Time between two rounds of purges.
const PURGE_PAUSE: Duration = Duration::from_millis(200);

/// Purges reports in the background.
#[derive(Debug)]
pub(super) struct ReportPurger {
    wanted: Arc<PendingPurges>,
    _task: Task<()>,
}

#[derive(Debug, Default)]
struct PendingPurges {
    below: Mutex<HashMap<RunId, ReportPosition>>,
    more: Notify,
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
    pub(super) fn start(link: Arc<NatsClient>) -> Self {
        let wanted = Arc::<PendingPurges>::default();
        let task = supervise::spawn("purges", run_purges(link, wanted.clone()));
        Self { wanted, _task: task }
    }

    pub(super) fn purge_up_to(&self, run: RunId, position: ReportPosition) {
        self.wanted.set_below(run, position);
        self.wanted.more.notify_one();
    }
}

async fn run_purges(link: Arc<NatsClient>, wanted: Arc<PendingPurges>) {
    loop {
        wanted.more.notified().await;
        let below = std::mem::take(&mut *wanted.below());
        for (run, position) in below {
            // A position of another incarnation, or of a lost end of the stream, would delete
            // reports that no coordinator has read.
            let life = link.wait_for_incarnation().await;
            let purged = match position_exists(&link, run, life, Some(position)).await {
                Ok(true) => purge_below(&link, run, position.sequence).await,
                Ok(false) => continue,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = purged {
                tracing::debug!("cannot purge reports of run {run}: {fault}");
                let mut below = wanted.below();
                below.entry(run).or_insert(position);
                wanted.more.notify_one();
            }
        }
        tokio::time::sleep(PURGE_PAUSE).await;
    }
}

async fn purge_below(link: &NatsClient, run: RunId, below: u64) -> Result<(), NatsError> {
    let verb = format!("STREAM.PURGE.{}", link.names.reports);
    let filter = link.names.run_reports(run);
    link.api_call::<Value>(&verb, &json!({ "filter": filter, "seq": below })).await?;
    Ok(())
}
