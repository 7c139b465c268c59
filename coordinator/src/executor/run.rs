//! An executor on a run of this process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::supervise;
use rollout_engine::RunError;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::executor::{StartTrial, TrialHandle, TrialStatus};
use rollout_protocol::harness::ControlRequest;
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::record::{Execution, Settlement};
use rollout_protocol::reference::{ArtifactRef, OutputRef, TrialReferences};
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::wire::command::{IN_PROGRESS_PAUSE, RunCommand, TrialSelection};
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlRequest};
use rollout_store::BlobStore;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::live_events::live_events;
use super::recorded_events::BlobReader;
use super::states::TrialStates;
use super::{ExecutorError, TrialEventStream, TrialExecutor};
use crate::launch::LaunchError;
use crate::launch::on_demand::{OnDemandTrials, PreparedRun};
use crate::launch::run::{self as launch, RunOutcome, RunRequest, StopSource};
use crate::plan::JobPlan;
use crate::results::view;
use crate::workloads::job::TrialRequests;

/// How much longer than the harness the worker may take: to write a control and to read events.
const CONTROL_MARGIN: Duration = Duration::from_secs(60);

/// Stops that wait for the run.
const STOP_CAPACITY: usize = 4;

/// Runs the trials of a job's plan when they are requested. Workers are in this process, or on the
/// server that the [`RunRequest`] names.
///
/// The executor owns the run: [`finish`](Self::finish) it. Dropping the executor kills the run. It
/// can be opened again: results are kept, and trials that had begun are begun again.
#[derive(Debug)]
pub struct RunExecutor {
    run: RunId,
    parts: PreparedRun,
    requests: Arc<TrialRequests>,
    states: Arc<TrialStates>,
    stops: mpsc::Sender<StopLevel>,
    ended: Mutex<oneshot::Receiver<LaunchResult>>,
}

type LaunchResult = Result<RunOutcome, LaunchError>;

/// A run whose user has gone is killed, in order.
impl Drop for RunExecutor {
    fn drop(&mut self) {
        self.requests.close();
        // It may have ended already.
        let _ended = self.stops.try_send(StopLevel::Kill);
    }
}

impl RunExecutor {
    /// Opens a run: makes its plan, takes its lock, and starts or finds its workers. No trial starts
    /// except those that an earlier session began. `stops` and `on_demand` of the request are
    /// replaced.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn open(mut request: RunRequest) -> Result<Self, LaunchError> {
        let (stops, stopped) = mpsc::channel(STOP_CAPACITY);
        request.stops = StopSource::Channel(stopped);
        Self::open_stoppable(request, stops).await
    }

    /// Opens a run whose owner also stops it: `stops` sends to the channel of the request.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub(crate) async fn open_stoppable(
        mut request: RunRequest,
        stops: mpsc::Sender<StopLevel>,
    ) -> Result<Self, LaunchError> {
        let states = Arc::<TrialStates>::default();
        let requests = Arc::new(TrialRequests::with_listener(Arc::clone(&states) as _));
        let (send, prepared) = oneshot::channel();
        request.on_demand =
            Some(OnDemandTrials { requests: Arc::clone(&requests), prepared: send });
        request.sinks.push(states.sink());
        let mut ended = run_on_thread(request)?;
        let opened = async { Some((prepared.await.ok()?, states.wait_opened().await?)) };
        match opened.await {
            Some((parts, run)) => {
                let ended = Mutex::new(ended);
                Ok(Self { run, parts, requests, states, stops, ended })
            }
            None => match join(&mut ended).await {
                Err(error) => Err(error),
                // A run that ends before it is opened has returned its error.
                Ok(_) => Err(RunError::PartEnded("the run").into()),
            },
        }
    }

    /// The run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// The plan whose trials can be started.
    pub fn plan(&self) -> &Arc<JobPlan> {
        &self.parts.plan
    }

    /// Ends the run when every started trial has a result. Trials of the plan that were not started
    /// stay for a later session.
    ///
    /// # Errors
    /// [`LaunchError`]; results are kept.
    pub async fn finish(self) -> Result<RunOutcome, LaunchError> {
        self.close();
        self.wait_end().await
    }

    /// Takes no more trials: the run ends when every started one has a result.
    pub(crate) fn close(&self) {
        self.requests.close();
    }

    /// Waits until the run has ended, and returns its outcome, once.
    pub(crate) async fn wait_end(&self) -> Result<RunOutcome, LaunchError> {
        join(&mut *self.ended.lock().await).await
    }

    /// Ends the run without waiting for trials that have not begun, and with `Kill` for none. They
    /// stay for a later session.
    ///
    /// # Errors
    /// [`LaunchError`]; results are kept.
    pub async fn stop(self, level: StopLevel) -> Result<RunOutcome, LaunchError> {
        // First: a run that is open when it stops counts as stopped, whatever has a result.
        self.close();
        // The run may have ended already.
        let _ended = self.stops.send(level).await;
        self.wait_end().await
    }

    fn trial_name(&self, trial: &ItemId) -> Result<TrialName, ExecutorError> {
        let planned = self.parts.plan.trials().find(|planned| planned.item == *trial);
        let unknown = || ExecutorError::UnknownTrial { trial: trial.to_string() };
        planned.map(|planned| planned.name).ok_or_else(unknown)
    }

    async fn references(&self, trial: &ItemId) -> Result<TrialReferences, ExecutorError> {
        match self.states.status(trial)? {
            TrialStatus::Settled { settlement } => {
                references(&*self.parts.store, &settlement).await
            }
            other => Err(ExecutorError::NotSettled { state: other.as_str() }),
        }
    }
}

/// Runs a job on a thread of its own, with the tasks and the timers of this runtime: the run may not
/// depend on how often its user looks at it.
fn run_on_thread(request: RunRequest) -> Result<oneshot::Receiver<LaunchResult>, LaunchError> {
    let (send, ended) = oneshot::channel();
    let runtime = Handle::current();
    let started = supervise::thread("run", move || {
        let result = runtime.block_on(Box::pin(launch::run(request)));
        // A user that has gone needs no result.
        let _gone = send.send(result);
    });
    match started {
        // The thread ends with the run. Its end is the message on the channel.
        Ok(_detached) => Ok(ended),
        Err(error) => Err(LaunchError::Outputs(error)),
    }
}

async fn join(ended: &mut oneshot::Receiver<LaunchResult>) -> LaunchResult {
    ended.await.map_err(|_| RunError::PartEnded("the run"))?
}

/// The references of a settled trial. An execution whose report said everything left none.
pub(super) async fn references(
    store: &dyn BlobStore,
    settlement: &Settlement,
) -> Result<TrialReferences, ExecutorError> {
    let Some(by @ Execution { record: Some(blob), .. }) = &settlement.by else {
        return Ok(TrialReferences::default());
    };
    let record = view::record_of(store, settlement.item, by).await?;
    Ok(record.map(|record| TrialReferences::from_record(blob, &record)).unwrap_or_default())
}

#[async_trait]
impl TrialExecutor for RunExecutor {
    async fn start_trial(&self, request: StartTrial) -> Result<TrialHandle, ExecutorError> {
        let StartTrial { trial, spec } = request;
        let plan = &self.parts.plan;
        let planned = plan.ordinal(&trial).and_then(|ordinal| plan.trial(ordinal));
        let planned =
            planned.ok_or_else(|| ExecutorError::UnknownTrial { trial: trial.to_string() })?;
        if planned.trial_ref != spec {
            return Err(ExecutorError::OtherSpec { trial });
        }
        self.states.start(planned.item)?;
        if !self.requests.request(planned.ordinal) {
            return Err(ExecutorError::Ended);
        }
        Ok(TrialHandle { run: self.run, item: planned.item, trial })
    }

    async fn trial_status(&self, trial: ItemId) -> Result<TrialStatus, ExecutorError> {
        self.states.status(&trial)
    }

    fn trial_events(&self, trial: ItemId, from: u64) -> TrialEventStream {
        let PreparedRun { plan, store, .. } = &self.parts;
        live_events(Arc::clone(&self.states), Arc::clone(store), Arc::clone(plan), trial, from)
    }

    async fn send_control(
        &self,
        trial: ItemId,
        control: ControlRequest,
    ) -> Result<TrialControlReceipt, ExecutorError> {
        let status = self.states.status(&trial)?;
        if !matches!(status, TrialStatus::Running { .. }) {
            return Err(ExecutorError::NotRunning { state: status.as_str() });
        }
        let ControlRequest { action, label, requested_by, timeout, grace } = control;
        let request = TrialControlRequest {
            run: self.run,
            item: trial,
            action,
            label,
            requested_by,
            timeout_ms: milliseconds(timeout),
            grace_ms: milliseconds(grace),
        };
        let wait = timeout.saturating_add(CONTROL_MARGIN);
        let receipt = self.parts.control.trial_control(&request, wait).await?;
        receipt.ok_or(ExecutorError::NoAnswer)
    }

    async fn trial_output(&self, trial: ItemId) -> Result<Option<OutputRef>, ExecutorError> {
        Ok(self.references(&trial).await?.output)
    }

    async fn trial_artifacts(&self, trial: ItemId) -> Result<Vec<ArtifactRef>, ExecutorError> {
        Ok(self.references(&trial).await?.artifacts)
    }

    async fn read_artifact(&self, blob: &BlobRef) -> Result<BlobReader, ExecutorError> {
        Ok(self.parts.store.get(&blob.digest).await?)
    }

    async fn cancel_trial(&self, trial: ItemId) -> Result<(), ExecutorError> {
        if self.states.status(&trial)?.settlement().is_some() {
            return Ok(());
        }
        let TrialName { agent, dataset, task, attempt } = self.trial_name(&trial)?;
        let selection = TrialSelection {
            agent: Some(agent),
            dataset: Some(dataset),
            task: Some(task),
            attempt: Some(attempt),
        };
        loop {
            let command = RunCommand::Cancel { selection: selection.clone() };
            let receipt = self.parts.control.command(self.run, command).await?;
            match receipt.refused {
                Some(reason) => return Err(ExecutorError::Refused { reason }),
                None if receipt.in_progress => tokio::time::sleep(IN_PROGRESS_PAUSE).await,
                None => return Ok(()),
            }
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
