//! Removing reports that the journal holds. At most a few times a second: a journal is written far
//! more often.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::id::RunId;
use rollout_protocol::wire::position::ReportPosition;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::reports::is_there;
use crate::queue::nats::fault::Fault;
use crate::queue::nats::link::Link;
use crate::supervise::{self, Task};

/// Time between two rounds of purges.
const PAUSE: Duration = Duration::from_millis(200);

/// What is to be purged.
#[derive(Debug)]
pub(super) struct Purges {
    wanted: Arc<Wanted>,
    _task: Task<()>,
}

#[derive(Debug, Default)]
struct Wanted {
    below: Mutex<HashMap<RunId, ReportPosition>>,
    more: Notify,
}

impl Wanted {
    fn below(&self) -> MutexGuard<'_, HashMap<RunId, ReportPosition>> {
        self.below.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, run: RunId, position: ReportPosition) {
        // The later word counts: a server that lost the end of the stream uses sequences again.
        self.below().insert(run, position);
    }
}

impl Purges {
    pub(super) fn start(link: Arc<Link>) -> Self {
        let wanted = Arc::<Wanted>::default();
        let task = supervise::spawn("purges", purge(link, wanted.clone()));
        Self { wanted, _task: task }
    }

    pub(super) fn up_to(&self, run: RunId, position: ReportPosition) {
        self.wanted.put(run, position);
        self.wanted.more.notify_one();
    }
}

async fn purge(link: Arc<Link>, wanted: Arc<Wanted>) {
    loop {
        wanted.more.notified().await;
        let below = std::mem::take(&mut *wanted.below());
        for (run, position) in below {
            // A position of another life, or of an end of the stream that was lost, would delete
            // what nobody has read.
            let life = link.wait_for_life().await;
            let purged = match is_there(&link, run, life, Some(position)).await {
                Ok(true) => purge_below(&link, run, position.sequence).await,
                Ok(false) => continue,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = purged {
                tracing::debug!("reports of run {run} are not purged: {fault}");
                let mut below = wanted.below();
                below.entry(run).or_insert(position);
                wanted.more.notify_one();
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn purge_below(link: &Link, run: RunId, below: u64) -> Result<(), Fault> {
    let verb = format!("STREAM.PURGE.{}", link.names.reports);
    let filter = link.names.run_reports(run);
    link.api::<Value>(&verb, &json!({ "filter": filter, "seq": below })).await?;
    Ok(())
}
