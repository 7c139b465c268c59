//! Trials of a run that its user starts one by one. A started trial is durable when its start is
//! answered: later sessions start it again, which has no effect on a trial that has begun.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_base::{durable, supervise};
use rollout_protocol::executor::{StartTrial, TrialHandle};
use rollout_protocol::id::ItemId;
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::{Mutex, mpsc};

use super::hosted_run::HostedRun;
use super::record::HostedKind;
use super::{Daemon, DaemonError, RecordError};
use crate::executor::{ExecutorError, RunExecutor, TrialExecutor};
use crate::launch::LaunchError;
use crate::launch::run::{RunOutcome, RunRequest};
use crate::plan::JobPlan;

/// The executor of a session, which takes calls.
#[derive(Debug)]
pub struct HostedExecutor {
    executor: RunExecutor,
    started: StartedTrials,
}

/// Why a trial was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The executor refused it.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The start could not be made durable. The same call may be repeated.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl HostedExecutor {
    /// Starts a trial, unless it was started before. Durable when this returns. Returns whether it
    /// is new.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(&self, request: StartTrial) -> Result<(TrialHandle, bool), StartError> {
        let handle = self.executor.start_trial(request).await?;
        let is_new = self.started.add(handle.item).await?;
        Ok((handle, is_new))
    }

    /// The calls about started trials.
    pub fn calls(&self) -> &dyn TrialExecutor {
        &self.executor
    }

    /// The plan whose trials can be started.
    pub fn plan(&self) -> &Arc<JobPlan> {
        self.executor.plan()
    }

    /// Starts the trials of earlier sessions, in their order.
    async fn start_again(&self, items: Vec<ItemId>) {
        let wanted: HashSet<ItemId> = items.iter().copied().collect();
        let planned = self.plan().trials().filter(|trial| wanted.contains(&trial.item));
        let mut planned: HashMap<_, _> = planned.map(|trial| (trial.item, trial)).collect();
        for item in items {
            let Some(trial) = planned.remove(&item) else { continue };
            let start = StartTrial { trial: trial.name, spec: trial.trial_ref };
            if let Err(error) = self.executor.start_trial(start).await {
                tracing::warn!("cannot start the trial {item} again: {error}");
            }
        }
    }
}

impl Daemon {
    /// The executor of a run.
    ///
    /// # Errors
    /// [`DaemonError`]: the run is no executor, waits for its start, has ended, or its last session
    /// failed.
    pub fn executor(&self, run: &HostedRun) -> Result<Arc<HostedExecutor>, DaemonError> {
        if run.kind() != HostedKind::Executor {
            let (action, reason) = ("use trials of", "it is no executor");
            return Err(DaemonError::Conflict { action, reason });
        }
        if let Some(executor) = run.executor() {
            return Ok(executor);
        }
        let record = run.view().record;
        match (record.end, record.failure) {
            // It starts when the disk takes writes.
            (None, Some(failure)) if failure.is_temporary => Err(DaemonError::NotOpen),
            (_, Some(failure)) => Err(DaemonError::SessionFailed(failure)),
            (Some(_), None) => Err(DaemonError::Ended),
            (None, None) => Err(DaemonError::NotOpen),
        }
    }
}

/// Runs a session until its user has finished it and every started trial has a result, or until it
/// is stopped. `stops` sends to the channel of the request.
pub(super) async fn run(
    daemon: &Daemon,
    run: &HostedRun,
    request: RunRequest,
    stops: mpsc::Sender<StopLevel>,
) -> Result<RunOutcome, LaunchError> {
    let (started, items) = StartedTrials::open(daemon.dir.started_trials(run.id()))
        .await
        .map_err(LaunchError::Outputs)?;
    let executor = RunExecutor::open_stoppable(request, stops).await?;
    let hosted = Arc::new(HostedExecutor { executor, started });
    hosted.start_again(items).await;
    run.set_executor(Some(Arc::clone(&hosted)));
    let mut changes = run.changes();
    let mut ended = std::pin::pin!(hosted.executor.wait_end());
    let ended = loop {
        if run.takes_no_trials() {
            hosted.executor.close();
            break ended.await;
        }
        tokio::select! {
            ended = &mut ended => break ended,
            // The sender lives as long as the run.
            _changed = changes.changed() => {}
        }
    };
    run.set_executor(None);
    ended
}

/// The file of started trials, which only grows.
#[derive(Debug)]
struct StartedTrials {
    path: PathBuf,
    known: Mutex<HashSet<ItemId>>,
}

impl StartedTrials {
    /// Opens the file and returns its trials, in the order of their starts.
    async fn open(path: PathBuf) -> std::io::Result<(Self, Vec<ItemId>)> {
        let from = path.clone();
        let items = supervise::blocking(move || read(&from)).await?;
        let known = Mutex::new(items.iter().copied().collect());
        Ok((Self { path, known }, items))
    }

    /// Adds a trial, durably. Returns whether it is new.
    async fn add(&self, item: ItemId) -> Result<bool, RecordError> {
        let mut known = self.known.lock().await;
        if known.contains(&item) {
            return Ok(false);
        }
        let path = self.path.clone();
        let written = supervise::blocking(move || append(&path, item)).await;
        written.map_err(RecordError::file("write", &self.path))?;
        known.insert(item);
        Ok(true)
    }
}

/// Reads the trials. A line that a crash cut is none: its start was not answered.
fn read(path: &Path) -> std::io::Result<Vec<ItemId>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(mut file) => file.read_to_end(&mut text)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut known = HashSet::new();
    let text = String::from_utf8_lossy(&text);
    let items = text.lines().filter_map(|line| line.parse().ok());
    Ok(items.filter(|item| known.insert(*item)).collect())
}

/// Appends a line. It begins with the end of a line, which a crash may have cut.
fn append(path: &Path, item: ItemId) -> std::io::Result<()> {
    let is_new = !path.exists();
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(format!("\n{item}\n").as_bytes())?;
    file.sync_data()?;
    if is_new && let Some(directory) = path.parent() {
        durable::sync_directory(directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn started_trials_are_kept_once_and_in_order_after_a_cut_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("r.trials");
        let item = |attempt| ItemId::for_trial("a", "d", "t", attempt);
        let (trials, items) = StartedTrials::open(path.clone()).await.expect("opened");
        assert_eq!(items, []);
        assert!(trials.add(item(2)).await.expect("written"));
        assert!(trials.add(item(1)).await.expect("written"));
        assert!(!trials.add(item(2)).await.expect("known"));
        let mut text = std::fs::read(&path).expect("a file");
        text.extend_from_slice(&item(3).to_string().as_bytes()[..9]);
        std::fs::write(&path, text).expect("written");
        let (trials, items) = StartedTrials::open(path.clone()).await.expect("opened");
        assert_eq!(items, [item(2), item(1)]);
        assert!(trials.add(item(4)).await.expect("written"));
        let (_, items) = StartedTrials::open(path).await.expect("opened");
        assert_eq!(items, [item(2), item(1), item(4)]);
    }
}
