//! Opening a run directory: lock, replay, a new epoch.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use rollout_base::{durable, supervise};
use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::RunId;
use rollout_protocol::item_name::ItemName;
use rollout_protocol::record::Settlement;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use rollout_protocol::version::RUN_FORMAT;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::delivery::PreviousPools;
use tokio::sync::mpsc;

use super::lock::{self, LockError, LockGrant, LockOptions, RunLock};
use super::manifest::RunManifest;
use super::open_error::{self, OpenError};
use super::records::{RecordsFileSet, RecordsWriter};
use super::reopen::{ReopenSelection, SupersededResults};
use super::replay::{CoreReplay, restore_executions};
use super::{Fence, Planner, RunError};
use crate::core::{
    Core, CoreEffect, CoreSettings, ItemSettlement, JournalRecord, PredecessorSegment,
    RemoteTimeouts, SessionStart, Takeover,
};
use crate::journal::{
    self, JOURNAL_FORMAT, JournalError, JournalMirror, JournalWriter, MirrorError, ReplaySummary,
    RunLayout,
};

/// Number of settled trials that the refusal of another plan names.
const MAX_NAMED_TRIALS: usize = 20;

/// Events sent at once while previous settlements are replayed.
const REPLAY_BATCH: usize = 256;

/// Options for opening a run.
#[derive(Debug, Clone)]
pub struct RunOpenOptions {
    /// The run directory.
    pub layout: RunLayout,
    /// Name of the job.
    pub job: String,
    /// Digest of the plan.
    pub plan: Digest,
    /// Items that may be offered and unreported at a time.
    pub permits: usize,
    /// When infrastructure failures are tried again.
    pub retry: RetryPolicy,
    /// How the lock is taken.
    pub lock: LockOptions,
    /// Timeouts, for a run with remote workers.
    pub timeouts: RemoteTimeouts,
    /// Budgets of model calls.
    pub budget: RunBudget,
    /// Settled trials that run again.
    pub reopen: Option<ReopenSelection>,
}

/// A run that this process owns.
#[derive(Debug)]
pub struct OpenRun {
    pub(super) layout: RunLayout,
    pub(super) job: String,
    pub(super) plan: Digest,
    pub(super) run: RunId,
    pub(super) epoch: u32,
    pub(super) created_at: Timestamp,
    pub(super) core: Core,
    pub(super) writer: JournalWriter,
    pub(super) records: RecordsWriter,
    /// The record files that the manifest of this session names until its end.
    pub(super) record_files: RecordsFileSet,
    pub(super) fence: Fence,
    pub(super) previous_pools: PreviousPools,
    /// Epochs that reopened settled items.
    pub(super) reopenings: BTreeSet<u32>,
    pub(super) takeover: Option<Takeover>,
}

impl OpenRun {
    /// The run's id.
    pub fn id(&self) -> RunId {
        self.run
    }

    /// Number of the session, from 1.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Its directory.
    pub fn layout(&self) -> &RunLayout {
        &self.layout
    }

    /// A check whether this process still owns the run.
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// The takeover from a previous owner, if there was one.
    pub fn takeover(&self) -> Option<&Takeover> {
        self.takeover.as_ref()
    }

    /// The state that the journal gives.
    pub fn core(&self) -> &Core {
        &self.core
    }
}

/// Takes the lock and opens the run. A stop ends the wait for another owner.
///
/// # Errors
/// [`RunError`]; only the lock's own files were written then.
pub async fn open_run(
    options: RunOpenOptions,
    planner: Box<dyn Planner>,
    events: mpsc::Sender<Vec<RunEvent>>,
    stops: &mut mpsc::Receiver<StopLevel>,
) -> Result<(OpenRun, RunLock, Box<dyn Planner>), RunError> {
    let root = options.layout.root().to_owned();
    let of = root.clone();
    let made = supervise::blocking(move || durable::create_directory(&of)).await;
    made.map_err(|source| OpenError::Directory { path: root, source })?;
    let acquired = RunLock::acquire(&options.layout, &options.lock, stops).await;
    let (lock, grant) = acquired.map_err(OpenError::from_lock)?;
    if let Some(mirror) = &options.lock.mirror
        && let Err(source) = mirror.synchronize(&options.layout).await
    {
        let _lost = lock.release(None).await;
        return Err(OpenError::Journal { source }.into());
    }
    let opened = supervise::blocking(move || {
        open_locked(options, grant, &*planner, &events).map(|run| (run, planner))
    })
    .await;
    match opened {
        Ok((run, planner)) => {
            lock.publish_durable_state(run.durable_state(&*planner));
            Ok((run, lock, planner))
        }
        Err(error) => {
            // The session changed nothing, so nothing has to be waited for. The error of opening is
            // the first cause.
            let _lost = lock.release(None).await;
            Err(error)
        }
    }
}

/// Replays the journal and begins a new epoch. Previous settlements are sent to `events` and to the
/// records on the way. Blocks.
fn open_locked(
    options: RunOpenOptions,
    grant: LockGrant,
    planner: &dyn Planner,
    events: &mpsc::Sender<Vec<RunEvent>>,
) -> Result<OpenRun, RunError> {
    let RunOpenOptions { layout, job, plan, permits, retry, timeouts, budget, reopen, lock } =
        options;
    let (pool, mirror) = (lock.kv.map(|shared| shared.info.pool), lock.mirror);
    let (root, epoch) = (layout.root().to_owned(), grant.epoch);
    let manifest = RunManifest::read(&layout)?;
    let damaged = |source| OpenError::Journal { source };
    let index = journal::SegmentIndex::read(&layout).map_err(damaged)?;
    let (reopened, previous_pools) = (index.reopenings().map_err(damaged)?, index.pools());
    let extent = reopened.extent();
    let unchanged = reopen.is_none() && reopened.times.is_empty();
    let mut reopenings = reopenings(&reopened, manifest.as_ref());
    // The manifest of this session must not name files that hold superseded records.
    let kept = manifest.as_ref().filter(|_| unchanged);
    let record_files = kept.map_or_else(Default::default, |kept| record_files_of_plan(kept, plan));
    let records = RecordsWriter::start(&layout, epoch, record_files.sealed.clone())?;
    let durable = durable_lengths(manifest.as_ref(), &grant);

    let run = RunId::from_bytes([0; 16]);
    let core = Core::new(CoreSettings { run, epoch, permits, retry, timeouts }).with_budget(budget);
    let replayed = CoreReplay::new(core, SupersededResults::new(reopened.times, reopen));
    let mut replaying = JournalReplayer::new(replayed, planner, events, &records, &job, epoch);
    let replay = index.replay(&durable, extent, |at, record| replaying.apply(at, record));
    let replay = replay.map_err(damaged)?;
    replaying.send();
    let JournalReplayer { replay: replayed, changed, kept, removed, .. } = replaying;
    let (mut core, mut superseded) = replayed.into_parts();
    check_plan(&root, changed, removed, &superseded)?;
    let now = Timestamp::now();
    let run = replay.as_ref().map(|replay| replay.first.1.run).or(grant.run);
    let run = run.unwrap_or_else(|| RunId::from_bytes(rand::random()));
    let created_at = replay.as_ref().map_or(now, |replay| replay.first.0);
    core.begin_session(run, retry);
    core.set_agents_of_lanes(planner.agents_of_lanes());
    let former = replay.as_ref().map(|replay| replay.head);
    sync_former(&layout, former)?;
    let start = session_start(planner, run, plan, retry, former, &grant);
    let opened = SessionStart { reopened: superseded.chosen().to_vec(), pool, ..start };
    core.apply(now, JournalRecord::Opened(Box::new(opened.clone())), &mut Vec::new());
    restore_executions(&mut core, now, &opened.reopened, &mut superseded);
    reopenings.extend((!opened.reopened.is_empty()).then_some(epoch));
    let writer = begin_epoch(&layout, now, opened, mirror)?;
    if replay.is_none() {
        send_started(events, &job, run, epoch, planner.total(), created_at);
    }
    send_opened(events, grant.takeover.clone(), now);
    warn_of_kept_results(&kept, events);
    warn_of_torn_tail(replay.as_ref(), events);
    Ok(OpenRun {
        layout,
        job,
        plan,
        run,
        epoch,
        created_at,
        core,
        writer,
        records,
        record_files,
        fence: grant.fence,
        takeover: grant.takeover,
        previous_pools,
        reopenings,
    })
}

/// A previous owner may have died between a write and its sync: records that this session builds on
/// must not vanish.
fn sync_former(layout: &RunLayout, former: Option<PredecessorSegment>) -> Result<(), OpenError> {
    let synced = former.map_or(Ok(()), |former| journal::sync_segment(layout, former.epoch));
    synced.map_err(|source| OpenError::Journal { source })
}

/// Epochs, and how much of their segments is known to be durable.
fn durable_lengths(manifest: Option<&RunManifest>, grant: &LockGrant) -> Vec<(u32, u64)> {
    let noted = manifest.map(|m| (m.journal.epoch, m.journal.durable_bytes));
    let confirmed = grant.durable_prefix.map(|head| (head.epoch, head.bytes));
    noted.into_iter().chain(confirmed).collect()
}

/// Epochs whose sessions reopened settled items. A repair joins sessions in one segment: only the
/// manifest keeps their epochs.
fn reopenings(reopened: &journal::Reopenings, manifest: Option<&RunManifest>) -> BTreeSet<u32> {
    let kept = manifest.into_iter().flat_map(|m| m.reopened.iter().flatten().copied());
    reopened.epochs.iter().copied().chain(kept).collect()
}

/// Tells that the session was not refused, and from whom it took the run over.
fn send_opened(events: &mpsc::Sender<Vec<RunEvent>>, takeover: Option<Takeover>, at: Timestamp) {
    let takeover =
        takeover.map(|Takeover { former, reason }| EventKind::LockTakeover { former, reason });
    let kinds = std::iter::once(EventKind::RunOpened).chain(takeover);
    send(events, kinds.map(|kind| RunEvent { at, kind }).collect());
}

/// The record files that hold the settlements of this plan. Those of another plan, or from before a
/// trial was reopened, may hold others.
fn record_files_of_plan(manifest: &RunManifest, plan: Digest) -> RecordsFileSet {
    if manifest.plan != plan {
        return RecordsFileSet::default();
    }
    RecordsFileSet { sealed: manifest.sealed.clone(), unsealed: manifest.unsealed.clone() }
}

/// Refuses the session when results belong to another plan or are no longer planned, or when a trial
/// to reopen has none.
fn check_plan(
    root: &Path,
    changed: Vec<String>,
    removed: BTreeSet<String>,
    superseded: &SupersededResults,
) -> Result<(), OpenError> {
    let (root, differences) = (root.to_owned(), Vec::new());
    if !changed.is_empty() {
        let count = changed.len();
        let names = changed.into_iter().take(MAX_NAMED_TRIALS).collect();
        return Err(OpenError::Changed { root, count, names, differences });
    }
    if !removed.is_empty() {
        let count = removed.len();
        let names = removed.into_iter().take(MAX_NAMED_TRIALS).collect();
        return Err(OpenError::Removed { root, count, names, differences });
    }
    let unsettled = superseded.unsettled();
    if unsettled.is_empty() {
        return Ok(());
    }
    Err(OpenError::NotSettled { root, unsettled: unsettled.to_string() })
}

/// The first record of this session.
fn session_start(
    planner: &dyn Planner,
    run: RunId,
    plan: Digest,
    retry: RetryPolicy,
    predecessor: Option<PredecessorSegment>,
    grant: &LockGrant,
) -> SessionStart {
    SessionStart {
        format: if planner.has_short_records() { JOURNAL_FORMAT } else { RUN_FORMAT },
        run,
        epoch: grant.epoch,
        plan,
        retry,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        owner: format!("{} pid {}", lock::host_name(), std::process::id()),
        former: predecessor,
        pool: None,
        holder: grant.shared.then_some(grant.owner.id),
        takeover: grant.takeover.clone(),
        replaces: Vec::new(),
        reopened: Vec::new(),
        reopened_within: Vec::new(),
    }
}

/// Creates the segment of an epoch. Where files cannot be locked, only one process can do this.
fn begin_epoch(
    layout: &RunLayout,
    at: Timestamp,
    opened: SessionStart,
    mirror: Option<Arc<dyn JournalMirror>>,
) -> Result<JournalWriter, RunError> {
    let exists = |error: &JournalError| match error {
        JournalError::Io { action: "create", source, .. } => {
            source.kind() == std::io::ErrorKind::AlreadyExists
        }
        JournalError::Mirror(MirrorError::Exists(_)) => true,
        _ => false,
    };
    JournalWriter::create_mirrored(layout, at, opened, mirror).map_err(|error| {
        if exists(&error) {
            let holder = "a process that started at the same moment".to_owned();
            return OpenError::Lock(LockError::Held { root: layout.root().to_owned(), holder })
                .into();
        }
        error.into()
    })
}

struct JournalReplayer<'a> {
    replay: CoreReplay,
    planner: &'a dyn Planner,
    events: &'a mpsc::Sender<Vec<RunEvent>>,
    records: &'a RecordsWriter,
    job: &'a str,
    epoch: u32,
    started: bool,
    batch: Vec<RunEvent>,
    changed: Vec<String>,
    /// Trials whose results of other settings or files are kept.
    kept: Vec<String>,
    /// Settled trials of the last session's plan that this plan lacks.
    removed: BTreeSet<String>,
}

impl<'a> JournalReplayer<'a> {
    fn new(
        replay: CoreReplay,
        planner: &'a dyn Planner,
        events: &'a mpsc::Sender<Vec<RunEvent>>,
        records: &'a RecordsWriter,
        job: &'a str,
        epoch: u32,
    ) -> Self {
        Self {
            replay,
            planner,
            events,
            records,
            job,
            epoch,
            started: false,
            batch: Vec::new(),
            changed: Vec::new(),
            kept: Vec::new(),
            removed: BTreeSet::new(),
        }
    }

    fn apply(&mut self, at: Timestamp, record: JournalRecord) {
        if let JournalRecord::Opened(opened) = &record
            && !self.started
        {
            self.started = true;
            let total = self.planner.total();
            send_started(self.events, self.job, opened.run, self.epoch, total, at);
        }
        if let JournalRecord::Farm(record) = &record {
            self.planner.on_record(at, record);
        }
        let mut effects = self.replay.apply(at, record);
        for effect in effects.drain(..) {
            if let CoreEffect::Settled(settled) = effect {
                let spec = self.replay.core().settled_spec(&settled.item);
                self.planner.on_settled(&settled, spec);
                self.settled(*settled);
            }
        }
        self.replay.reuse(effects);
    }

    fn settled(&mut self, settled: ItemSettlement) {
        let Some(planned) = self.planner.find(&settled.item) else {
            self.removed.extend(self.planner.removed(&settled.item).map(|name| name.to_string()));
            return;
        };
        let name = self.planner.name(planned.ordinal);
        let Some(settled) = self.replay.superseded.take(settled, &name) else { return };
        if self.replay.core().settled_spec(&settled.item) != Some(planned.spec) {
            if !self.planner.keeps_result(&planned) {
                self.changed.push(name.to_string());
                return;
            }
            self.kept.push(name.to_string());
        }
        let at = settled.at;
        let commit = self.planner.commit(planned.ordinal);
        let settlement = Arc::new(settlement(settled, name, commit));
        self.batch.push(RunEvent {
            at,
            kind: EventKind::TrialSettled { ordinal: planned.ordinal, replayed: true, settlement },
        });
        if self.batch.len() >= REPLAY_BATCH {
            self.send();
        }
    }

    fn send(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let settlements = batch
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::TrialSettled { settlement, .. } => Some(Arc::clone(settlement)),
                _ => None,
            })
            .collect();
        if self.planner.keeps_settlements() {
            self.records.add(settlements);
        }
        send(self.events, batch);
    }
}

/// The terminal record of a settled item.
pub(super) fn settlement(
    settled: ItemSettlement,
    name: ItemName,
    task_git_commit_id: Option<String>,
) -> Settlement {
    let ItemSettlement { item, by, verdict, superseded, at, .. } = settled;
    Settlement { item, name, by, verdict, superseded, settled_at: at, task_git_commit_id }
}

fn send(events: &mpsc::Sender<Vec<RunEvent>>, batch: Vec<RunEvent>) {
    if !batch.is_empty() {
        // A reporter that ended has returned its own error; the run continues.
        drop(events.blocking_send(batch));
    }
}

fn send_started(
    events: &mpsc::Sender<Vec<RunEvent>>,
    job: &str,
    run: RunId,
    epoch: u32,
    total: u64,
    started_at: Timestamp,
) {
    let kind = EventKind::RunStarted { run, job: job.to_owned(), epoch, total, started_at };
    send(events, vec![RunEvent { at: Timestamp::now(), kind }]);
}

/// Tells of results that other settings or files gave: the figures of the run mix both.
fn warn_of_kept_results(kept: &[String], events: &mpsc::Sender<Vec<RunEvent>>) {
    if kept.is_empty() {
        return;
    }
    let names = &kept[..kept.len().min(MAX_NAMED_TRIALS)];
    let message = format!(
        "{} of other settings or files {} kept: {}",
        if kept.len() == 1 { "1 result".to_owned() } else { format!("{} results", kept.len()) },
        if kept.len() == 1 { "is" } else { "are" },
        open_error::first_names(names, kept.len())
    );
    send(events, vec![RunEvent { at: Timestamp::now(), kind: EventKind::Warning { message } }]);
}

fn warn_of_torn_tail(replay: Option<&ReplaySummary>, events: &mpsc::Sender<Vec<RunEvent>>) {
    let Some(torn) = replay.map(|replay| replay.torn_bytes).filter(|torn| *torn > 0) else {
        return;
    };
    let message = format!(
        "the last {torn} bytes of the journal were incomplete and never took effect; \
         the work that they recorded is done again"
    );
    send(events, vec![RunEvent { at: Timestamp::now(), kind: EventKind::Warning { message } }]);
}
