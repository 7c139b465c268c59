//! Writer of trial directories as trials settle.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use rollout_base::backoff::OutageLog;
use rollout_base::supervise::{self, Task, TaskPanic};
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::record::Settlement;
use rollout_store::BlobStore;
use tokio::sync::{Mutex, mpsc};

use crate::events::StopAtOnce;
use crate::events::sink_warnings::SinkWarnings;
use crate::results::files::{FileError, MaterializeMode, TrialDirWriter, TrialFilesError};
use crate::results::report::TaskFactsIndex;

/// Trial directories written concurrently: enough for their syncs to overlap, few enough that
/// reading their blobs does not disturb the run.
const CONCURRENT_TRIAL_DIRS: usize = 16;

/// How long the files of a trial wait for an unavailable store. Later sessions write the missing
/// files.
const STORE_RETRY_PERIOD: Duration = Duration::from_secs(300);

/// Batches of events queued for the files before the run blocks.
const WAITING_BATCHES: usize = 16;

/// Trials whose files could not be written.
#[derive(Debug, Default)]
pub struct UnwrittenTrials {
    /// Number of these trials.
    pub count: u64,
    /// The first of them and its error.
    pub first: Option<(ItemName, TrialFilesError)>,
}

/// Writes trial directories as trials settle.
#[derive(Debug)]
pub(super) struct TrialFiles {
    batches: mpsc::Sender<Arc<Vec<RunEvent>>>,
    task: Task<Result<UnwrittenTrials, FileError>>,
}

impl TrialFiles {
    /// Starts writing the trials of `run`, whose directory exists and is owned by this session.
    pub(super) fn start(
        run: RunId,
        run_dir: &Path,
        materialize: MaterializeMode,
        store: Arc<dyn BlobStore>,
        tasks: Arc<TaskFactsIndex>,
        warnings: SinkWarnings,
        stopped: StopAtOnce,
    ) -> Self {
        let (batches, receiver) = mpsc::channel(WAITING_BATCHES);
        let run_dir = run_dir.to_owned();
        let task = supervise::spawn("trial files", async move {
            let writer = supervise::blocking(move || {
                TrialDirWriter::open(run, &run_dir, materialize, store, tasks).map(Arc::new)
            })
            .await?;
            let unwritten = write_all(&writer, receiver, &warnings, &stopped).await;
            supervise::blocking(move || writer.close()).await?;
            Ok(unwritten)
        });
        Self { batches, task }
    }

    /// Queues a batch; waits while the queue is full.
    pub(super) async fn send(&self, batch: Arc<Vec<RunEvent>>) {
        // A closed channel means that the task failed: `finish` returns the cause.
        let _closed = self.batches.send(batch).await;
    }

    /// Waits until all queued batches are written and durable.
    pub(super) async fn finish(self) -> Result<Result<UnwrittenTrials, FileError>, TaskPanic> {
        drop(self.batches);
        self.task.await
    }
}

async fn write_all(
    writer: &Arc<TrialDirWriter>,
    receiver: mpsc::Receiver<Arc<Vec<RunEvent>>>,
    warnings: &SinkWarnings,
    stopped: &StopAtOnce,
) -> UnwrittenTrials {
    let mut unwritten = UnwrittenTrials::default();
    let outage = OutageLog::new("reading results from the blob store");
    let outage = &outage;
    let mut turns = TrialTurns::default();
    let batches = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|batch| (batch, receiver))
    });
    let written = batches
        .then(|batch| {
            let trees = Arc::clone(writer);
            async move { stream::iter(unwritten_settlements(trees, batch).await) }
        })
        .flatten()
        .map(|settlement| {
            let turn = turns.turn(settlement.item);
            async move {
                let name = settlement.name.clone();
                let _turn = turn.lock_owned().await;
                (name, write_trial(writer, settlement, outage, stopped).await)
            }
        })
        .buffer_unordered(CONCURRENT_TRIAL_DIRS);
    let mut written = std::pin::pin!(written);
    while let Some((name, result)) = written.next().await {
        let error = match result {
            Ok(lost) => {
                if let Some(first) = lost.first() {
                    warnings.add_damaged_files(&name, first);
                }
                continue;
            }
            Err(error) => error,
        };
        warnings.add_unwritten_files(unwritten.count, &name, &error);
        unwritten.count += 1;
        unwritten.first.get_or_insert((name, error));
    }
    unwritten
}

/// The order of writes of the same trial: one that a user retried settles again, maybe before the
/// files of its former settlement are written.
#[derive(Debug, Default)]
struct TrialTurns(HashMap<ItemId, Weak<Mutex<()>>>);

impl TrialTurns {
    /// The lock of a trial's files. It serves its callers in their order.
    fn turn(&mut self, item: ItemId) -> Arc<Mutex<()>> {
        if self.0.len() >= 2 * CONCURRENT_TRIAL_DIRS {
            self.0.retain(|_, turn| turn.strong_count() > 0);
        }
        if let Some(turn) = self.0.get(&item).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Mutex::new(()));
        self.0.insert(item, Arc::downgrade(&turn));
        turn
    }
}

/// Writes the files of a settled trial. Retries while the store is unavailable, for at most
/// [`STORE_RETRY_PERIOD`], and not in a session that ends at once.
async fn write_trial(
    writer: &Arc<TrialDirWriter>,
    settlement: Arc<Settlement>,
    outage: &OutageLog,
    stopped: &StopAtOnce,
) -> Result<Vec<TrialFilesError>, TrialFilesError> {
    let (started, mut backoff) = (Instant::now(), outage.backoff());
    loop {
        let result = writer.write(Arc::clone(&settlement)).await;
        let pause = match &result {
            Err(TrialFilesError::Store { source, .. })
                if source.is_unanswered() && started.elapsed() < STORE_RETRY_PERIOD =>
            {
                backoff.wait_after_failure(source)
            }
            _ => {
                if result.is_ok() {
                    backoff.succeeded();
                }
                return result;
            }
        };
        tokio::select! {
            () = stopped.clone() => return result,
            () = pause => {}
        }
    }
}

/// The settlements of a batch whose files must be written: all new ones, and those of former
/// sessions whose result file is missing or damaged.
async fn unwritten_settlements(
    writer: Arc<TrialDirWriter>,
    batch: Arc<Vec<RunEvent>>,
) -> Vec<Arc<Settlement>> {
    let mut settled: Vec<(bool, Arc<Settlement>)> = (batch.iter())
        .filter_map(|event| match &event.kind {
            EventKind::TrialSettled { replayed, settlement, .. } => {
                Some((*replayed, Arc::clone(settlement)))
            }
            _ => None,
        })
        .filter(|(_, settlement)| writer.concerns(settlement))
        .collect();
    if settled.iter().any(|(replayed, _)| *replayed) {
        settled = supervise::blocking(move || {
            settled.retain(|(replayed, settled)| !replayed || !writer.is_written(settled));
            settled
        })
        .await;
    }
    settled.into_iter().map(|(_, settlement)| settlement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn writes_of_one_trial_take_turns_in_their_order() {
        let mut turns = TrialTurns::default();
        let item = |n: u8| ItemId::from_bytes([n; 16]);
        let first = turns.turn(item(0)).lock_owned().await;
        for n in 1..100 {
            assert!(turns.turn(item(n)).try_lock_owned().is_ok(), "others do not wait");
        }
        assert!(turns.0.len() <= 2 * CONCURRENT_TRIAL_DIRS, "ended turns are forgotten");
        let second = turns.turn(item(0));
        assert!(Arc::clone(&second).try_lock_owned().is_err(), "the first one goes on");
        drop(first);
        assert!(second.try_lock_owned().is_ok());
    }
}
