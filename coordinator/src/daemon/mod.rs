//! A daemon that runs many jobs in one process. Each run has a record file, which is durable before
//! the submission is answered, and the usual run directory: every command reads it. A daemon that is
//! started again continues every run that has not ended, as `rollout resume` does.
//!
//! * `state_dir`, `record`: files of the daemon; `record_writes`: changes of a record
//! * `table`: the runs in memory; `hosted_run`: one of them; `schedule`: which run starts next
//! * `submit`: acceptance of documents, with `policy` and `tree_policy`, the operator's rules for them,
//!   and `run_size`, the limit on trials
//! * `datasets`: datasets that users upload; `unused_uploads`: their removal; `disk`: the disk that users
//!   share
//! * `control`: cancel, pause, continue, delete; `run_removal`: what is removed with a run or a farm
//! * `executor`: trials of a run that its user starts one by one
//! * `export`: results in the formats of other tools
//! * `inspect`: items and their files; `run_blobs`: the blobs of a run's results; `event_feed`: the
//!   durable events of a run for many readers
//! * `live_output`: output of trials that run
//! * `failure`: failures in words; `hidden_paths`: directories of the host that these do not name
//! * `search`: a session of a search; `search_log`: its events
//! * `driver`: a session of a run; `commands`: what its user wants of it; `progress`: its counts, folded
//!   from its events
//! * `farms`: farms, which have records of their own beside the runs
//! * `write_health`: whether the state directory takes writes; `write_faults`: its faults over time;
//!   `disk_retries`: sessions that failed with it
//!
//! It knows nothing of HTTP.

mod commands;
mod control;
mod datasets;
mod disk;
mod disk_retries;
mod driver;
mod error;
mod event_feed;
mod executor;
mod export;
mod failure;
mod farms;
mod hidden_paths;
mod hosted_run;
mod id;
mod inspect;
mod live_output;
mod policy;
mod principal;
mod progress;
mod record;
mod record_writes;
mod run_blobs;
mod run_removal;
mod run_size;
mod schedule;
mod search;
mod search_log;
mod state_dir;
mod submit;
mod table;
#[cfg(test)]
mod tests;
mod tree_policy;
mod unused_uploads;
mod write_faults;
mod write_health;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::shared_limit::{LimitCounts, LimitShares, LimitUser, SharedLimit};
use rollout_base::supervise::{self, Task};
use rollout_protocol::wire::control::StopLevel;
#[cfg(feature = "nats")]
use rollout_queue::nats::NatsOptions;
use rollout_store::StoreUrl;
use tokio::sync::{Notify, mpsc, oneshot};

pub use self::datasets::{AllowedUploads, SubmittedDocument};
pub use self::error::DaemonError;
pub use self::event_feed::{EventFollower, HostedEvent};
pub use self::executor::{HostedExecutor, StartError};
pub use self::export::HostedExport;
pub use self::failure::{Explain, RunFailure, RunFault};
pub use self::farms::{
    CompletionRead, FarmError, FarmPage, FarmQuery, FarmSubmission, GroupState, HostedFarm,
    HostedFarmEnd, HostedFarmRecord, HostedFarmState, HostedFarmView, RecordedCalls, SubmittedFarm,
};
pub use self::hosted_run::{HostedRun, HostedRunState, HostedRunView};
pub use self::id::{HostedFarmId, HostedId, HostedRunId, InvalidHostedId};
pub use self::inspect::{ItemDetail, ItemFiles, ItemPage, ItemQuery};
pub use self::policy::DocumentPolicy;
pub use self::principal::{AllowedVariables, Principal, Role};
pub use self::record::{
    HostedKind, HostedOutcome, HostedProgress, HostedRunEnd, HostedRunRecord, RecordError,
    WantedState,
};
pub use self::submit::{JobSubmission, SubmissionResult};
pub use self::table::{RunPage, RunQuery, RunTotals, UnreadableRun};
pub use self::unused_uploads::{UnusedUpload, UploadRemoval, remove_unused_uploads};

use self::disk::UserDisk;
use self::farms::HostedFarms;
#[cfg(feature = "nats")]
use self::live_output::OutputConnection;
use self::state_dir::DaemonDir;
use self::table::RunTable;
use self::write_health::WriteHealth;
use crate::launch::host::{HostPaths, OperatorOptions};
pub use crate::launch::live_output::{
    LiveOutput, LiveOutputError, LivePiece, RunningTrial, ShownOutput, is_output,
};
use crate::launch::slot_pool::SlotShare;

/// Longest wait of a stop for preparations whose sessions have ended.
const PREPARATIONS_END: Duration = Duration::from_secs(2);

/// How a daemon works.
#[derive(Debug)]
pub struct DaemonOptions {
    /// Its state directory.
    pub directory: PathBuf,
    /// Blob store of all runs; by default one in the state directory.
    pub store: Option<StoreUrl>,
    /// Limit on the local cache of a store in a service, in MiB; 0 for none.
    pub store_cache_mb: u64,
    /// Runs at a time, without paused ones.
    pub max_running: usize,
    /// Runs that have not ended, beyond those that may run.
    pub max_queued: usize,
    /// Farms that have not ended. They do not count as runs.
    pub max_farms: usize,
    /// Trials of a run; `None` for as many as a run can have.
    pub max_trials: Option<u64>,
    /// Disk for uploaded datasets and exports, bytes.
    pub disk_bytes: u64,
    /// Executions of all runs, searches and farms at a time in this process.
    pub slots: usize,
    /// How long the deletion of a farm waits for its executions.
    pub removal_wait: Duration,
    /// How long a session may take to fetch and read the tasks of a run or a farm.
    pub prepare_timeout: Duration,
    /// Rules for documents.
    pub policy: DocumentPolicy,
    /// Paths of the host; by default those of this process.
    pub host: Option<HostPaths>,
    /// Options of the operator, in place of those of the host.
    pub operator: OperatorOptions,
    /// The server whose workers run the trials; without one they run in this process.
    #[cfg(feature = "nats")]
    pub nats: Option<NatsOptions>,
    /// Puts faults into words.
    pub explain: Explain,
}

impl DaemonOptions {
    /// Whether trials run on workers of a server.
    fn is_remote(&self) -> bool {
        #[cfg(feature = "nats")]
        return self.nats.is_some();
        #[cfg(not(feature = "nats"))]
        false
    }
}

/// A daemon.
#[derive(Debug)]
pub struct Daemon {
    dir: Arc<DaemonDir>,
    options: DaemonOptions,
    table: Mutex<RunTable>,
    farms: HostedFarms,
    /// Runs that an earlier daemon deleted and did not remove.
    deleted: Mutex<Vec<HostedRunId>>,
    /// Sessions in this process.
    drivers: Mutex<HashMap<HostedRunId, Task<()>>>,
    /// Requests that change runs.
    requests: Mutex<Vec<Task<()>>>,
    /// Notified when a run may start, or a session has ended.
    wake: Notify,
    /// Submissions are accepted one by one: a key is used once.
    submitting: tokio::sync::Mutex<()>,
    /// Checks of documents at a time.
    checks: Arc<SharedLimit>,
    /// Preparations of sessions at a time, with those whose session has ended meanwhile.
    preparations: Arc<SharedLimit>,
    stopping: Mutex<Option<StopLevel>>,
    /// Slots of executions.
    slots: Arc<SharedLimit>,
    /// Readings of journals at a time.
    reads: Arc<SharedLimit>,
    /// Exports at a time.
    exports: Arc<SharedLimit>,
    /// Uploads that are stored at a time, with those whose request has gone.
    storings: Arc<SharedLimit>,
    disk: Arc<UserDisk>,
    writes: WriteHealth,
    /// Requests for the output of trials on workers.
    #[cfg(feature = "nats")]
    output_connection: OutputConnection,
}

impl Daemon {
    /// Opens the state directory and reads the records of all runs. One that cannot be read is shown
    /// as such. Blocks.
    ///
    /// # Errors
    /// [`RecordError`] when the directory cannot be used.
    pub fn open(options: DaemonOptions) -> Result<Arc<Self>, RecordError> {
        let dir = Arc::new(DaemonDir::open(&options.directory)?);
        let slots = SharedLimit::new(LimitShares::whole(options.slots as u64));
        let preparations = options.max_running as u64 + farms::CONCURRENT_OPENINGS;
        let shared = |places| SharedLimit::new(LimitShares::new(places));
        let disk = UserDisk::open(dir.uploads(), dir.dataset_users(), options.disk_bytes)?;
        let disk = Arc::new(disk);
        let store = match &options.store {
            Some(StoreUrl::Directory(directory)) => Some(directory.as_path()),
            _ => None,
        };
        hidden_paths::hide_directories(&options.directory, store, |name| std::env::var_os(name));
        let farms = HostedFarms::open(&dir)?;
        let (mut table, mut deleted) = (RunTable::default(), Vec::new());
        for found in dir.records::<HostedRunRecord>()? {
            match found.record {
                Ok(record) if record.is_deleted => deleted.push(record.id),
                Ok(mut record) => {
                    // It is tried again.
                    if record.end.is_none() {
                        record.failure = None;
                    }
                    table.insert(dir.hosted(record));
                }
                Err(error) => {
                    tracing::error!("cannot read the run {}: {error}", found.id);
                    table.insert_unreadable(found.id, error.to_string());
                }
            }
        }
        Ok(Arc::new(Self {
            dir,
            options,
            slots,
            table: Mutex::new(table),
            farms,
            deleted: Mutex::new(deleted),
            drivers: Mutex::default(),
            requests: Mutex::default(),
            wake: Notify::new(),
            submitting: tokio::sync::Mutex::default(),
            checks: shared(submit::CONCURRENT_CHECKS),
            preparations: shared(preparations),
            stopping: Mutex::default(),
            reads: shared(inspect::CONCURRENT_READS),
            exports: shared(export::CONCURRENT_EXPORTS),
            storings: shared(datasets::CONCURRENT_STORINGS),
            disk,
            writes: WriteHealth::default(),
            #[cfg(feature = "nats")]
            output_connection: OutputConnection::default(),
        }))
    }

    /// Starts runs and opens farms until the first stop, then waits for their sessions: the first stop
    /// drains them, the second ends them at once. Runs that have not ended go on when the daemon is started again.
    pub async fn run(self: Arc<Self>, mut stops: mpsc::Receiver<StopLevel>) {
        self.remove_deleted_runs();
        self.remove_deleted_farms();
        let _watching = supervise::spawn("state directory check", Arc::clone(&self).watch_writes());
        loop {
            self.start_runs();
            self.open_farms();
            let is_stopping = self.stopping().is_some();
            if is_stopping && self.drivers().is_empty() && self.farms.are_closed() {
                return self.await_preparations().await;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                level = stops.recv() => match level {
                    Some(level) => self.stop(level),
                    // Its owner has gone.
                    None => self.stop(StopLevel::Kill),
                },
            }
        }
    }

    /// The part in the slots of what a user runs with a priority.
    fn slot_share(&self, user: LimitUser, priority: i32) -> SlotShare {
        SlotShare { slots: Arc::clone(&self.slots), user, priority }
    }

    /// Waits a moment for preparations whose sessions have ended. They end soon, with the programs that
    /// they started, except those on a file system that does not answer.
    async fn await_preparations(&self) {
        let LimitCounts { free, held, .. } = self.preparations.counts();
        let all = LimitUser { name: String::new(), is_admin: true };
        let ended = self.preparations.acquire(&all, 0, free + held);
        if tokio::time::timeout(PREPARATIONS_END, ended).await.is_err() {
            tracing::warn!("files of runs are still being read; nothing waits for that");
        }
    }

    /// Whether the daemon takes submissions.
    ///
    /// # Errors
    /// The reason why it does not.
    pub fn check_ready(&self) -> Result<(), String> {
        if self.stopping().is_some() {
            return Err("the daemon is stopping".to_owned());
        }
        self.writes.fault().map_or(Ok(()), Err)
    }

    fn stop(&self, level: StopLevel) {
        let mut stopping = self.stopping();
        let is_harder = stopping.is_none_or(|former| level > former);
        if is_harder {
            *stopping = Some(level);
        }
        drop(stopping);
        self.farms.stop(level);
        for run in self.table().live() {
            if let Some(session) = run.session() {
                // A session with full stops is being stopped.
                let _stopping = session.stops.try_send(level);
            }
        }
    }

    /// Starts as many runs as may run, and continues paused ones.
    fn start_runs(self: &Arc<Self>) {
        if self.stopping().is_some() || self.writes.is_failing() {
            return;
        }
        self.drivers().retain(|_, driver| !driver.is_finished());
        loop {
            let next = self.table().next_to_start(self.running_shares());
            let Some(run) = next else { return };
            self.start(&run);
        }
    }

    fn start(self: &Arc<Self>, run: &Arc<HostedRun>) {
        let (session, stops) = driver::session(run);
        run.set_session(Some(session.clone()));
        let (daemon, driven) = (Arc::clone(self), Arc::clone(run));
        let driver = supervise::spawn("run driver", async move {
            driver::drive(&daemon, &driven, session, stops).await;
            driven.set_session(None);
            daemon.drivers().remove(driven.id());
            daemon.wake.notify_one();
        });
        let mut drivers = self.drivers();
        // It may have ended already.
        if run.is_live() {
            drivers.insert(run.id().clone(), driver);
        }
    }

    /// Does the work of a request to its end, also if its client goes: a half-done request would
    /// leave records that are not in the table.
    async fn finish<T: Send + 'static, E: From<DaemonError> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let (send, result) = oneshot::channel();
        let task = supervise::spawn("request", async move {
            let result = work.await;
            // A client that has gone needs no result.
            let _gone = send.send(result);
        });
        self.keep(task);
        result.await.map_err(|_| E::from(DaemonError::Unfinished))?
    }

    /// Keeps a task for as long as it runs.
    fn keep(&self, task: Task<()>) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.retain(|request| !request.is_finished());
        requests.push(task);
    }

    fn is_remote(&self) -> bool {
        self.options.is_remote()
    }

    /// The limit of running runs.
    fn running_shares(&self) -> LimitShares {
        LimitShares::new(self.options.max_running as u64)
    }

    fn table(&self) -> MutexGuard<'_, RunTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drivers(&self) -> MutexGuard<'_, HashMap<HostedRunId, Task<()>>> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deleted_runs(&self) -> MutexGuard<'_, Vec<HostedRunId>> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> MutexGuard<'_, Option<StopLevel>> {
        self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
