//! The session of a farm's users.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise::{self, Task};
use rollout_engine::{EngineOutcome, RunError};
use rollout_protocol::farm::{AckReceipt, CancelReceipt, FarmStatus};
use rollout_protocol::farm::{AdmissionRefusal, GroupId, GroupRequest, SubmitReceipt};
use rollout_protocol::id::RunId;
use rollout_protocol::wire::control::StopLevel;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::engine::{FarmEngine, OpenedFarm};
use super::request::FarmRequest;
use crate::launch::LaunchError;
use crate::workloads::farm::{CompletionPage, FarmDocuments, FarmEnded, FarmHandle, UnknownTask};

/// Stops that wait for the run.
const STOP_CAPACITY: usize = 4;

/// Why a group was not admitted or not cancelled.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The farm refuses it.
    #[error(transparent)]
    Refused(#[from] AdmissionRefusal),
    /// Its documents cannot be made.
    #[error("cannot admit the group: {0}")]
    Task(#[from] UnknownTask),
    /// The session has ended.
    #[error(transparent)]
    Ended(#[from] FarmEnded),
}

/// An open farm. Dropping the session kills the run; the next session continues it.
#[derive(Debug)]
pub struct FarmSession {
    run: RunId,
    run_dir: PathBuf,
    handle: FarmHandle,
    documents: Arc<FarmDocuments>,
    stops: FarmStops,
    ended: Mutex<oneshot::Receiver<FarmOutcome>>,
    /// Tells workers the state of model calls.
    _calls: Option<Task<()>>,
}

/// The end of a farm's session.
pub type FarmOutcome = Result<EngineOutcome, LaunchError>;

/// Stops the run when it is dropped.
#[derive(Debug)]
struct FarmStops(mpsc::Sender<StopLevel>);

impl Drop for FarmStops {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.0.try_send(StopLevel::Kill);
    }
}

impl FarmSession {
    /// Opens a farm, or continues one: plans its tasks, takes the lock of its run, replays the
    /// journal, and starts or finds its workers. Everything that earlier sessions answered holds. A
    /// caller that drops the future kills the run.
    ///
    /// # Errors
    /// [`LaunchError`]; nothing was changed then.
    pub async fn open(request: FarmRequest) -> Result<Self, LaunchError> {
        let opened = Self::open_unless(request, std::future::pending()).await?;
        opened.ok_or_else(|| RunError::PartEnded("the farm").into())
    }

    /// Opens a farm as [`open`](Self::open) does, unless `stopped` ends before: then its run has ended
    /// when this returns `None`. Parts of tasks that are being packed then end by themselves, and
    /// remove their directory.
    ///
    /// # Errors
    /// [`LaunchError`]; nothing was changed then.
    pub async fn open_unless(
        request: FarmRequest,
        stopped: impl Future<Output = ()>,
    ) -> Result<Option<Self>, LaunchError> {
        let (stops, stops_of_run) = mpsc::channel(STOP_CAPACITY);
        let stops = FarmStops(stops);
        let (send, opened) = oneshot::channel();
        let mut ended = run_on_thread(request, stops_of_run, send)?;
        let opened = tokio::select! {
            opened = opened => opened,
            () = stopped => {
                drop(stops);
                // It was stopped, whatever it says.
                let _outcome = join(&mut ended).await;
                return Ok(None);
            }
        };
        match opened {
            Ok(OpenedFarm { run, run_dir, handle, documents, calls }) => {
                let ended = Mutex::new(ended);
                Ok(Some(Self { run, run_dir, handle, documents, stops, ended, _calls: calls }))
            }
            Err(_) => match join(&mut ended).await {
                Err(error) => Err(error),
                Ok(_) => Err(RunError::PartEnded("the farm").into()),
            },
        }
    }

    /// The run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// The run directory.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// A handle of the farm, which may outlive the session.
    pub fn handle(&self) -> &FarmHandle {
        &self.handle
    }

    /// The farm's tasks, and the documents of groups.
    pub fn documents(&self) -> &Arc<FarmDocuments> {
        &self.documents
    }

    /// Submits a group. The same request again has no further effect.
    ///
    /// # Errors
    /// [`SubmitError`]; after [`SubmitError::Ended`] the group may have been admitted.
    pub async fn submit(&self, request: GroupRequest) -> Result<SubmitReceipt, SubmitError> {
        let group = self.documents.admit(request).await?;
        Ok(self.handle.submit(group).await??)
    }

    /// Reads completions as [`FarmHandle::completions`] does.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn completions(
        &self,
        consumer: &str,
        after: u64,
        limit: usize,
        wait: Duration,
    ) -> Result<CompletionPage, FarmEnded> {
        self.handle.completions(consumer, after, limit, wait).await
    }

    /// Acknowledges completions as [`FarmHandle::acknowledge`] does.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn acknowledge(
        &self,
        consumer: &str,
        completions: Vec<u64>,
    ) -> Result<AckReceipt, FarmEnded> {
        self.handle.acknowledge(consumer, completions).await
    }

    /// Cancels a group as [`FarmHandle::cancel`] does.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn cancel(&self, group: GroupId) -> Result<CancelReceipt, SubmitError> {
        Ok(self.handle.cancel(group).await??)
    }

    /// Pauses the farm as [`FarmHandle::pause`] does.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn pause(&self) -> Result<FarmStatus, FarmEnded> {
        self.handle.pause().await
    }

    /// Ends a pause as [`FarmHandle::resume`] does.
    ///
    /// # Errors
    /// [`FarmEnded`].
    pub async fn resume(&self, version: Option<u64>) -> Result<FarmStatus, FarmEnded> {
        self.handle.resume(version).await
    }

    /// The state of the farm.
    pub fn status(&self) -> FarmStatus {
        self.handle.status()
    }

    /// Closes the farm, and waits until every sample has ended and every completion is acknowledged.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn close(mut self) -> FarmOutcome {
        // It may have ended already.
        let _ended = self.handle.close().await;
        join(self.ended.get_mut()).await
    }

    /// Waits for the end of the session. The first caller gets the outcome.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn wait(&self) -> FarmOutcome {
        join(&mut *self.ended.lock().await).await
    }

    /// Asks for the end of the session, as [`stop`](Self::stop) does, without waiting for it.
    pub fn request_stop(&self, level: StopLevel) {
        // It may have ended already; one with full stops is being stopped.
        let _ended = self.stops.0.try_send(level);
    }

    /// Ends the session without waiting for samples that have not begun, and with `Kill` for none.
    /// The next session continues.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn stop(mut self, level: StopLevel) -> FarmOutcome {
        // It may have ended already.
        let _ended = self.stops.0.send(level).await;
        join(self.ended.get_mut()).await
    }
}

/// Runs a farm on a thread of its own, with the tasks and the timers of this runtime: the run may not
/// depend on how often its users look at it.
fn run_on_thread(
    request: FarmRequest,
    stops: mpsc::Receiver<StopLevel>,
    opened: oneshot::Sender<OpenedFarm>,
) -> Result<oneshot::Receiver<FarmOutcome>, LaunchError> {
    let (send, ended) = oneshot::channel();
    let runtime = Handle::current();
    let started = supervise::thread("farm", move || {
        let result = runtime.block_on(Box::pin(FarmEngine { request, stops, opened }.run()));
        // A user that has gone needs no result.
        let _gone = send.send(result);
    });
    match started {
        // The thread ends with the run. Its end is the message on the channel.
        Ok(_detached) => Ok(ended),
        Err(error) => Err(LaunchError::Outputs(error)),
    }
}

async fn join(ended: &mut oneshot::Receiver<FarmOutcome>) -> FarmOutcome {
    ended.await.map_err(|_| RunError::PartEnded("the farm"))?
}
