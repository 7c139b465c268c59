//! Opening a run directory: lock, replay, a new epoch.

use std::path::PathBuf;
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::RunId;
use rollout_protocol::record::Settlement;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::version::RUN_FORMAT;
use tokio::sync::mpsc;

use super::lock::{self, LockError, RunLock};
use super::manifest::Manifest;
use super::records::RecordsWriter;
use super::{Planner, RunError};
use crate::core::{Bounds, Core, Effect, Opened, Record, Settings, Settled};
use crate::journal::{self, JournalError, Layout, Replay, Survey, Writer};

/// Settled trials named in the refusal of another plan.
const NAMED: usize = 20;

/// Events sent at once while former settlements are replayed.
const REPLAY_BATCH: usize = 256;

/// What to open.
#[derive(Debug, Clone)]
pub struct Opening {
    /// The run directory.
    pub layout: Layout,
    /// Name of the job.
    pub job: String,
    /// Digest of the plan.
    pub plan: Digest,
    /// Items that may be offered and unreported at a time.
    pub permits: usize,
    /// When infrastructure failures are tried again.
    pub retry: RetryPolicy,
}

/// A run that this process owns.
#[derive(Debug)]
pub struct OpenRun {
    pub(super) layout: Layout,
    pub(super) job: String,
    pub(super) plan: Digest,
    pub(super) run: RunId,
    pub(super) epoch: u32,
    pub(super) created_at: Timestamp,
    pub(super) core: Core,
    pub(super) writer: Writer,
    pub(super) records: RecordsWriter,
    pub(super) manifest: Option<Manifest>,
}

impl OpenRun {
    /// The run.
    pub fn id(&self) -> RunId {
        self.run
    }

    /// What the journal says.
    pub fn core(&self) -> &Core {
        &self.core
    }
}

/// Why a run directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be made.
    #[error("cannot create the run directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another process owns the run.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The journal is damaged.
    #[error("the run in {} cannot be resumed", root.display())]
    Journal {
        /// The run directory.
        root: PathBuf,
        /// Why.
        #[source]
        source: JournalError,
    },
    /// Trials were settled under something else than the plan says now.
    #[error(
        "{count} settled trials of the run in {} ran under another definition, among them {}",
        root.display(),
        names.join(", ")
    )]
    Changed {
        /// The run directory.
        root: PathBuf,
        /// How many.
        count: usize,
        /// The first of them.
        names: Vec<String>,
        /// What differs from the plan of the last sitting, a line each.
        differences: Vec<String>,
    },
}

/// Takes the lock, replays the journal and begins a new epoch. Former settlements go to `events`
/// and to the records on the way. Blocks.
///
/// # Errors
/// [`RunError`]; nothing was written then but the lock's own files.
pub fn open(
    opening: Opening,
    planner: &dyn Planner,
    events: &mpsc::Sender<Vec<RunEvent>>,
) -> Result<(OpenRun, RunLock), RunError> {
    let Opening { layout, job, plan, permits, retry } = opening;
    let root = layout.root().to_owned();
    std::fs::create_dir_all(&root)
        .map_err(|source| OpenError::Directory { path: root.clone(), source })?;
    let lock = RunLock::acquire(&layout).map_err(OpenError::from)?;
    let manifest = Manifest::read(&layout)?;
    let damaged = |source| OpenError::Journal { root: root.clone(), source };
    let epoch = Survey::of(&layout).map_err(damaged)?.next_epoch();
    // Files that were sealed under another plan may hold other settlements.
    let same_plan = manifest.as_ref().filter(|manifest| manifest.plan == plan);
    let sealed = same_plan.map(|manifest| manifest.sealed.clone()).unwrap_or_default();
    let records = RecordsWriter::start(&layout, sealed)?;
    let durable = manifest.as_ref().map(|m| (m.journal.epoch, m.journal.durable_bytes));

    let bounds = Bounds::default();
    let settings = Settings { run: RunId::from_bytes([0; 16]), epoch, permits, retry, bounds };
    let mut replaying = Replaying {
        core: Core::new(settings),
        planner,
        events,
        records: &records,
        job: &job,
        epoch,
        started: false,
        batch: Vec::new(),
        changed: Vec::new(),
        effects: Vec::new(),
    };
    let replay = journal::replay(&layout, durable, |at, record| replaying.apply(at, record))
        .map_err(damaged)?;
    replaying.send();
    let Replaying { mut core, changed, .. } = replaying;
    if !changed.is_empty() {
        let count = changed.len();
        let names = changed.into_iter().take(NAMED).collect();
        return Err(OpenError::Changed { root, count, names, differences: Vec::new() }.into());
    }

    let now = Timestamp::now();
    let run = replay.as_ref().map_or_else(|| RunId::from_bytes(rand::random()), |r| r.first.1.run);
    let created_at = replay.as_ref().map_or(now, |replay| replay.first.0);
    core.begin(run, retry);
    let former = replay.as_ref().map(|replay| replay.head);
    // A former owner may have died between a write and its sync: what is built on must not vanish.
    if let Some(former) = former {
        journal::persist(&layout, former.epoch).map_err(damaged)?;
    }
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let owner = format!("{} pid {}", lock::host_name(), std::process::id());
    let opened = Opened { format: RUN_FORMAT, run, epoch, plan, retry, version, owner, former };
    let writer = Writer::create(&layout, now, opened)?;
    if replay.is_none() {
        send_started(events, &job, run, epoch, planner.total(), created_at);
    }
    warn_of_torn_tail(replay.as_ref(), events);
    let open =
        OpenRun { layout, job, plan, run, epoch, created_at, core, writer, records, manifest };
    Ok((open, lock))
}

struct Replaying<'a> {
    core: Core,
    planner: &'a dyn Planner,
    events: &'a mpsc::Sender<Vec<RunEvent>>,
    records: &'a RecordsWriter,
    job: &'a str,
    epoch: u32,
    started: bool,
    batch: Vec<RunEvent>,
    changed: Vec<String>,
    effects: Vec<Effect>,
}

impl Replaying<'_> {
    fn apply(&mut self, at: Timestamp, record: Record) {
        if let Record::Opened(opened) = &record
            && !self.started
        {
            self.started = true;
            let total = self.planner.total();
            send_started(self.events, self.job, opened.run, self.epoch, total, at);
        }
        let mut effects = std::mem::take(&mut self.effects);
        self.core.apply(at, record, &mut effects);
        for effect in effects.drain(..) {
            if let Effect::Settled(settled) = effect {
                self.settled(*settled);
            }
        }
        self.effects = effects;
    }

    fn settled(&mut self, settled: Settled) {
        let Some(planned) = self.planner.find(&settled.item) else { return };
        let trial = self.planner.name(planned.ordinal);
        if self.core.settled_spec(&settled.item) != Some(planned.spec) {
            self.changed.push(trial.to_string());
            return;
        }
        let at = settled.at;
        let settlement = Arc::new(settlement(settled, trial));
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
        self.records.add(settlements);
        send(self.events, batch);
    }
}

/// The terminal record of a settled item.
pub(super) fn settlement(
    settled: Settled,
    trial: rollout_protocol::spec::trial::TrialName,
) -> Settlement {
    let Settled { item, by, verdict, superseded, at, .. } = settled;
    Settlement { item, trial, by, verdict, superseded, settled_at: at }
}

fn send(events: &mpsc::Sender<Vec<RunEvent>>, batch: Vec<RunEvent>) {
    if !batch.is_empty() {
        // A reporter that is gone has told its own error; the run itself goes on.
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

fn warn_of_torn_tail(replay: Option<&Replay>, events: &mpsc::Sender<Vec<RunEvent>>) {
    let Some(torn) = replay.map(|replay| replay.torn_bytes).filter(|torn| *torn > 0) else {
        return;
    };
    let message = format!(
        "the last {torn} bytes of the journal were not whole and never took effect; \
         what they held is done again"
    );
    send(events, vec![RunEvent { at: Timestamp::now(), kind: EventKind::Warning { message } }]);
}
