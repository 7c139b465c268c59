//! A session of a run: from its document to its end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::shared_limit::LimitUser;
use rollout_base::supervise;
use rollout_base::traces::Tracer;
use rollout_engine::{LockWaitPolicy, RunError};
use rollout_protocol::Timestamp;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::control::StopLevel;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::commands::enforce;
use super::failure::{Explain, RunFailure, RunFault, SessionFailure};
use super::hosted_run::{HostedRun, HostedSession};
use super::id::HostedRunId;
#[cfg(feature = "nats")]
use super::policy::DEFAULT_POOL;
use super::principal::AllowedVariables;
use super::progress::SessionProgress;
use super::record::{HostedKind, HostedOutcome, HostedRunEnd, HostedRunRecord, WantedState};
use super::state_dir::StoredId;
use super::submit::{CheckFault, checked_job, is_set};
use super::{Daemon, executor, run_size, search};
use crate::config::{CliSetting, ErrorKind, FetchAccess, HostAccess, JobOptions};
use crate::events::MaterializeMode;
use crate::launch::LaunchError;
use crate::launch::exit;
#[cfg(feature = "nats")]
use crate::launch::nats::RemoteOptions;
use crate::launch::run::{self as launch, RunOutcome, RunRequest, StopSource};
use crate::plan::{self, PreparedJob};

/// Stops that wait for a session.
pub(super) const STOP_CAPACITY: usize = 4;

/// A session that has not started, and its stops.
pub(super) fn session(run: &HostedRun) -> (HostedSession, mpsc::Receiver<StopLevel>) {
    let (stops, stopped) = mpsc::channel(STOP_CAPACITY);
    let progress = Arc::new(SessionProgress::new(run.kind(), run.former_progress(), run.feed()));
    (HostedSession { progress, stops }, stopped)
}

/// The end of a session.
pub(super) enum SessionEnd {
    /// Everything is settled.
    Completed { code: u8 },
    /// The run was cancelled before it started.
    NeverStarted,
    /// The daemon stops.
    Stopped,
    /// The document is invalid: no session of it can start.
    Invalid(RunFailure),
    /// It failed, and can be tried again.
    Failed(SessionFailure),
}

/// Runs a session to its end and writes the record.
pub(super) async fn drive(
    daemon: &Daemon,
    run: &Arc<HostedRun>,
    session: HostedSession,
    stops: mpsc::Receiver<StopLevel>,
) {
    let progress = Arc::clone(&session.progress);
    let end = match run.kind() {
        HostedKind::Job | HostedKind::Executor => {
            let commands = enforce(Arc::clone(run), progress.stage());
            let _commanding = supervise::spawn("run commands", commands);
            run_session(daemon, run, &session, stops).await
        }
        HostedKind::Tree => search::run(daemon, run, &session, stops).await,
    };
    match &end {
        SessionEnd::Invalid(failure) | SessionEnd::Failed(SessionFailure { failure, .. }) => {
            tracing::error!("run {}: {}", run.id(), failure.message);
        }
        SessionEnd::Completed { .. } => tracing::info!("run {} has ended", run.id()),
        SessionEnd::NeverStarted | SessionEnd::Stopped => {}
    }
    let reached = progress.snapshot();
    let end = with_disk_fault(daemon, run, end, reached.settled).await;
    let written = run.note(&daemon.dir, |record| {
        record.progress = reached;
        record.progress.running = 0;
        note_end(record, end);
    });
    if let Err(error) = written.await {
        // The run directory has everything: the next session finds that nothing is left to run.
        tracing::error!("cannot note the end of a session of run {}: {error}", run.id());
        daemon.writes.record_failed(&error);
    }
    progress.end();
}

/// The end of a session, with the disk as its cause if that fails, and beside it if that has failed a short
/// time before. A document that was read from such
/// a disk is not known to be invalid.
async fn with_disk_fault(
    daemon: &Daemon,
    run: &HostedRun,
    end: SessionEnd,
    settled: u64,
) -> SessionEnd {
    if !matches!(end, SessionEnd::Invalid(_) | SessionEnd::Failed(_)) {
        return end;
    }
    let Some(fault) = daemon.disk_fault::<HostedRunId>().await else { return end };
    let failed = match end {
        SessionEnd::Invalid(failure) if fault.is_over => return SessionEnd::Invalid(failure),
        SessionEnd::Invalid(failure) => SessionFailure::from(failure),
        SessionEnd::Failed(failed) => failed,
        end => return end,
    };
    SessionEnd::Failed(run.disk_retries().failure(&fault, failed, Some(settled)).into())
}

fn note_end(record: &mut HostedRunRecord, end: SessionEnd) {
    let at = Timestamp::now();
    match end {
        SessionEnd::Completed { code } => {
            let outcome = match record.wanted {
                WantedState::Cancelled => HostedOutcome::Cancelled,
                WantedState::Running | WantedState::Paused => HostedOutcome::Completed,
            };
            record.end = Some(HostedRunEnd { at, outcome, code });
        }
        SessionEnd::NeverStarted => {
            record.end = Some(HostedRunEnd { at, outcome: HostedOutcome::Cancelled, code: 0 });
        }
        SessionEnd::Stopped => {}
        SessionEnd::Invalid(failure) => {
            let outcome = HostedOutcome::Failed;
            record.end = Some(HostedRunEnd { at, outcome, code: failure.code });
            record.failure = Some(failure);
        }
        SessionEnd::Failed(failed) => record.failure = Some(failed.failure),
    }
}

async fn run_session(
    daemon: &Daemon,
    run: &Arc<HostedRun>,
    session: &HostedSession,
    mut stops: mpsc::Receiver<StopLevel>,
) -> SessionEnd {
    let (user, variables) = (run.limit_user(), run.view().record.variables);
    let preparing = prepare(daemon, run.id(), &user, variables);
    let prepared = match prepared_unless_ended(run, &mut stops, preparing).await {
        Ok(prepared) => prepared,
        Err(end) => return end,
    };
    let tasks = prepared.datasets.iter().map(|dataset| dataset.tasks.len()).sum();
    if let Some(failure) = run_size::excess(&prepared.job, Some(tasks), daemon.options.max_trials) {
        return unprepared(run, PrepareFault::from(failure));
    }
    let request = match request(daemon, run, prepared, &session.progress, stops) {
        Ok(request) => request,
        Err(failure) => return unprepared(run, PrepareFault::from(failure)),
    };
    let launched = if run.kind() == HostedKind::Executor {
        executor::run(daemon, run, request, session.stops.clone()).await
    } else {
        launch_run(request).await
    };
    match launched {
        Ok(outcome) => ended(daemon, run, &outcome),
        Err(error) => {
            let is_invalid = error.is_config() && !run.has_begun();
            let fault = RunFault::Launch(Box::new(error));
            let failed = SessionFailure::of(fault, daemon.options.explain);
            if failed.failure.code == ExitCode::Cancelled.code() {
                return SessionEnd::Stopped;
            }
            if is_invalid {
                SessionEnd::Invalid(failed.failure)
            } else {
                SessionEnd::Failed(failed)
            }
        }
    }
}

/// Prepares a session, of which nothing runs yet, unless a stop comes first, or the user cancels a run
/// that has not begun.
///
/// # Errors
/// The end of the session.
pub(super) async fn prepared_unless_ended<T>(
    run: &HostedRun,
    stops: &mut mpsc::Receiver<StopLevel>,
    preparing: impl Future<Output = Result<T, PrepareFault>>,
) -> Result<T, SessionEnd> {
    let is_new = !run.has_begun();
    let mut wanted = run.wanted();
    let prepared = tokio::select! {
        prepared = preparing => prepared,
        Some(_level) = stops.recv() => return Err(SessionEnd::Stopped),
        Ok(_) = wanted.wait_for(|wanted| *wanted == WantedState::Cancelled), if is_new => {
            return Err(SessionEnd::NeverStarted);
        }
    };
    let prepared = prepared.map_err(|fault| unprepared(run, fault))?;
    if is_new && *run.wanted().borrow() == WantedState::Cancelled {
        return Err(SessionEnd::NeverStarted);
    }
    Ok(prepared)
}

/// Why a job or a search cannot be prepared.
pub(super) struct PrepareFault {
    pub(super) failure: SessionFailure,
    /// Whether nothing else failed than fetches of repositories or registries.
    is_fetch: bool,
    /// Whether neither the host nor an option can change that.
    is_final: bool,
}

impl PrepareFault {
    /// The fault of a document that is refused.
    pub(super) fn of_check(fault: CheckFault, explain: Explain, document: &Path) -> Self {
        let (is_final, is_of_files) = (fault.is_final(), fault.is_of_files());
        let failure = SessionFailure { failure: fault.explain(explain, document), is_of_files };
        Self { failure, is_fetch: false, is_final }
    }

    /// The fault of a preparation that takes longer than `limit`.
    fn late(limit: Duration) -> Self {
        let hint = "continue the run, or start the server with a longer `--prepare-timeout`";
        let failure = RunFailure {
            code: ExitCode::OutOfReach.code(),
            message: format!("cannot prepare the run: its files are not read after {limit:?}"),
            details: Vec::new(),
            hints: vec![hint.to_owned()],
            is_temporary: false,
        };
        Self { failure: failure.into(), is_fetch: true, is_final: false }
    }
}

impl From<RunFailure> for PrepareFault {
    fn from(failure: RunFailure) -> Self {
        Self::from(SessionFailure::from(failure))
    }
}

impl From<SessionFailure> for PrepareFault {
    fn from(failure: SessionFailure) -> Self {
        Self { failure, is_fetch: false, is_final: false }
    }
}

/// The end of a session whose job or search cannot be prepared. A run that began before had a valid
/// document, so its host or the options of the daemon have changed, and may change again. A document
/// that names files of the host was accepted by an earlier program: its run ends.
fn unprepared(run: &HostedRun, fault: PrepareFault) -> SessionEnd {
    let can_continue = !fault.is_final && (fault.is_fetch || run.has_begun());
    if can_continue {
        SessionEnd::Failed(fault.failure)
    } else {
        SessionEnd::Invalid(fault.failure.failure)
    }
}

fn ended(daemon: &Daemon, run: &HostedRun, outcome: &RunOutcome) -> SessionEnd {
    if outcome.report.unwritten.count > 0 {
        let count = outcome.report.unwritten.count;
        tracing::warn!("run {}: cannot write the files of {count} trials", run.id());
    }
    // An executor that takes no more trials has ended though others of its plan have no result.
    let is_closed = run.kind() == HostedKind::Executor && run.takes_no_trials();
    if outcome.is_over_budget {
        return SessionEnd::Completed { code: ExitCode::OverBudget.code() };
    }
    if outcome.cancelled && (!is_closed || daemon.stopping().is_some()) {
        return SessionEnd::Stopped;
    }
    SessionEnd::Completed { code: exit::for_run(false, &outcome.report.tally, None).code() }
}

/// Prepares a session of a user with work that blocks, when there is a turn for it and for as long as
/// the operator allows. Work that goes on after that, or after this future, keeps its turn; it sees that
/// the sender of its argument was dropped.
pub(super) async fn in_turn<T: Send + 'static>(
    daemon: &Daemon,
    user: &LimitUser,
    work: impl FnOnce(watch::Receiver<()>) -> Result<T, PrepareFault> + Send + 'static,
) -> Result<T, PrepareFault> {
    let (_working, cancelled) = watch::channel(());
    let preparing = async move {
        let turn = daemon.preparations.acquire(user, 0, 1).await;
        supervise::blocking(move || {
            let _turn = turn;
            work(cancelled)
        })
        .await
    };
    let limit = daemon.options.prepare_timeout;
    let prepared = tokio::time::timeout(limit, preparing).await;
    prepared.unwrap_or_else(|_elapsed| Err(PrepareFault::late(limit)))
}

/// Reads the job of a run or a farm of a user with its datasets. That ends with this future.
pub(super) async fn prepare<I: StoredId + Clone + Send + 'static>(
    daemon: &Daemon,
    id: &I,
    user: &LimitUser,
    variables: AllowedVariables,
) -> Result<PreparedJob, PrepareFault> {
    let dir = Arc::clone(&daemon.dir);
    let (id, policy) = (id.clone(), daemon.policy_of(user));
    let (explain, is_remote) = (daemon.options.explain, daemon.is_remote());
    let work = move |cancelled| {
        let path = dir.document(&id);
        // The operator's rules may have changed since the submission.
        if let Err(fault) = checked_job(&path, &policy, &variables, is_remote) {
            return Err(PrepareFault::of_check(fault, explain, &path));
        }
        let is_set = |name: &str| is_set(&variables, name, is_remote);
        let (jobs, name) = (dir.jobs().display().to_string(), id.to_string());
        let settings = vec![
            CliSetting::text("name", "name", &name),
            CliSetting::text("jobs_dir", "jobs_dir", &jobs),
        ];
        let host = HostAccess::Listed(&policy);
        let fetch = FetchAccess { network: policy.network.clone(), cancelled: Some(cancelled) };
        let images = policy.images.clone();
        let options = JobOptions { settings, host, fetch, images, ..JobOptions::new(&is_set) };
        plan::read(Some(&path), &options).map_err(|errors| {
            let is_fetch = errors.errors.iter().all(|error| error.kind == ErrorKind::FetchFailed);
            let fault = RunFault::Config(errors).without_path(&path);
            let failure = SessionFailure::of(fault, explain);
            PrepareFault { failure, is_fetch, is_final: false }
        })
    };
    in_turn(daemon, user, work).await
}

fn request(
    daemon: &Daemon,
    run: &HostedRun,
    prepared: PreparedJob,
    progress: &Arc<SessionProgress>,
    stops: mpsc::Receiver<StopLevel>,
) -> Result<RunRequest, RunFailure> {
    let options = &daemon.options;
    let PreparedJob { job, datasets, .. } = prepared;
    #[cfg(feature = "nats")]
    let remote = remote(daemon, job.pool.as_deref())?;
    let request = RunRequest {
        job,
        datasets,
        store: options.store.clone(),
        store_cache_mb: options.store_cache_mb,
        // Records and blobs have everything that a client can ask for.
        materialize: Some(MaterializeMode::None),
        sink: None,
        invocation: None,
        sinks: vec![progress.sink()],
        // Only an earlier daemon can own a run of this directory, and this one has its lock.
        wait_policy: LockWaitPolicy::default(),
        reopen: None,
        accept_changed: false,
        #[cfg(feature = "nats")]
        remote,
        stops: StopSource::Channel(stops),
        on_demand: None,
        host: options.host.clone(),
        operator: options.operator.clone(),
        tracer: Tracer::default(),
        slots: Some(daemon.slot_share(run.limit_user(), run.view().record.priority)),
    };
    Ok(request)
}

/// The server and the pool of a document.
#[cfg(feature = "nats")]
pub(super) fn remote(
    daemon: &Daemon,
    pool: Option<&str>,
) -> Result<Option<RemoteOptions>, RunFailure> {
    let Some(options) = daemon.options.nats.clone() else { return Ok(None) };
    let name = pool.unwrap_or(DEFAULT_POOL);
    let pool = name.parse().map_err(|error| RunFailure {
        code: ExitCode::Config.code(),
        message: format!("cannot use the pool `{name}`: {error}"),
        details: Vec::new(),
        hints: Vec::new(),
        is_temporary: false,
    })?;
    // Trials on workers outlive the daemon: its next session takes their results.
    Ok(Some(RemoteOptions { options, pool, unplaceable_timeout: None, hand_over: true }))
}

/// Runs a job on a thread of its own: a run may not depend on other work of this process.
async fn launch_run(request: RunRequest) -> Result<RunOutcome, LaunchError> {
    let (send, ended) = oneshot::channel();
    let runtime = Handle::current();
    let started = supervise::thread("run", move || {
        let result = runtime.block_on(Box::pin(launch::run(request)));
        // A driver that has gone needs no result.
        let _gone = send.send(result);
    });
    match started {
        Ok(_detached) => ended.await.map_err(|_| RunError::PartEnded("the run"))?,
        Err(error) => Err(LaunchError::Outputs(error)),
    }
}
