//! The run lock: one process owns a run.
//!
//! # In the run directory
//! `run.lock` is locked by its owner (flock) and never renamed, rewritten or removed: where the file
//! system is of this kernel alone, that is all there is to ask. `run.lock.json` says who it is, and
//! beats every five seconds. On a file system that other hosts may share, and for an owner that is
//! stopped, the note decides: nobody compares clocks, the note is watched until it changed (its
//! owner lives) or was the same for the stale time.
//!
//! # On a board
//! A run whose workers are elsewhere has an entry on a board, too, under its id, changed only by
//! compare-and-set. It names the owner and the journal's durable [`Head`](crate::engine::journal::Head), so
//! that a copy of the run directory that lacks something cannot win. Reports are forgotten only up
//! to the position that an entry of this owner confirmed. Silence of the server never costs the
//! owner its run, only another one's entry does.
//!
//! # Why a woken owner is harmless
//! Each epoch has its own journal segment, created exclusively, and the next owner writes down how
//! much of the one before counts. A lock that is lost is therefore only a reason to stop, never what
//! keeps the results right.

mod board;
mod directory;
mod entry;
mod judge;
mod keeper;
mod note;
mod owner;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_protocol::id::RunId;
use rollout_protocol::limits::LOCK_STALE;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::ReportPosition;
use rollout_worker::queue::traits::{Board, Dispatch, QueueError};
use rollout_worker::supervise::{self, Task};
use tokio::sync::{mpsc, watch};

use self::board::{BoardLock, Look, Place, View};
use self::directory::{Attempt, Contender, DirectoryLock, Held};
pub use self::entry::RunEntry;
use self::keeper::Kept;
pub use self::owner::{FileId, LockOwner};
use super::manifest::RunState;
use super::{Keeper, News, RunError, Standing};
use crate::engine::core::Takeover;
use crate::engine::journal::{self, Head, JournalError, Lack, Layout, Survey};

/// Time between two looks at a directory that may be somebody else's.
const POLL: Duration = Duration::from_millis(500);

/// How a run is taken.
#[derive(Debug, Clone, Default)]
pub struct Taking {
    /// How patiently.
    pub patience: Patience,
    /// Where other hosts ask, if workers are elsewhere.
    pub shared: Option<Shared>,
}

/// How patient the taking of a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How long an owner says nothing before it is taken over.
    pub stale: Duration,
    /// Take the run over at once, whoever has it.
    pub force: bool,
    /// Watch an owner that may be dead. Otherwise the run is its as long as nothing is proven.
    pub wait: bool,
    /// Watch also one whose process exists, in case it is stopped or hangs.
    pub hung: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stale: LOCK_STALE, force: false, wait: true, hung: false }
    }
}

/// Where other hosts ask for the owner, and what they are told of the run.
#[derive(Debug, Clone)]
pub struct Shared {
    /// The board.
    pub board: Arc<dyn Board>,
    /// What is told.
    pub facts: RunFacts,
}

/// What an entry says of a run beside its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFacts {
    /// Name of the job.
    pub job: String,
    /// Pool of its workers.
    pub pool: String,
    /// Identity of its blob store.
    pub store: String,
}

/// The lock of a run, held while this value lives. When the process dies, however it dies, others
/// can prove it.
#[derive(Debug)]
pub struct RunLock {
    // Let go of first.
    kept: Option<Kept>,
    directory: DirectoryLock,
}

/// What came with the lock.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) run: Option<RunId>,
    pub(crate) owner: LockOwner,
    pub(crate) epoch: u32,
    /// What of the journal others know to be durable.
    pub(crate) head: Option<Head>,
    pub(crate) takeover: Option<Takeover>,
    pub(crate) shared: bool,
    pub(crate) fence: Fence,
}

/// Somebody else has the run now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it was taken over by {by}")]
pub struct Lost {
    /// Who.
    pub by: String,
}

/// Tells whether this process still owns the run directory.
#[derive(Debug, Clone)]
pub struct Fence {
    held: Arc<Held>,
    checked: Instant,
}

/// How long a check of the fence holds. Whoever slept for longer looks again before anything else.
const FENCE_HOLDS: Duration = Duration::from_secs(1);

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has the directory.
    #[error("the run in {} is owned by {holder}", root.display())]
    Held {
        /// The run directory.
        root: PathBuf,
        /// Who, as far as is known.
        holder: String,
    },
    /// Another process has the run, maybe with another copy of the directory.
    #[error("run {run} is owned by {holder}")]
    Elsewhere {
        /// The run.
        run: RunId,
        /// Who, as far as is known.
        holder: String,
    },
    /// The directory is a copy that lacks what the run has.
    #[error("the directory is a copy of run {run} that lacks results: {lack}; {holder} has them")]
    Copy {
        /// The run.
        run: RunId,
        /// What it lacks.
        lack: Lack,
        /// Who had the run last.
        holder: String,
    },
    /// The entry of the run is of a newer version.
    #[error("the server holds an entry for this run that this version cannot read")]
    Unreadable,
    /// The board does not work.
    #[error("the run's lock cannot be taken on the server")]
    Board(#[source] QueueError),
    /// The lock file cannot be used.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The journal is damaged.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A user did not want to wait for an owner any longer.
    #[error("stopped while its owner was being watched")]
    Interrupted,
}

impl LockError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

impl RunLock {
    /// Takes the lock of an existing run directory, and of the run where other hosts ask. A stop
    /// ends the wait for another owner; one that comes later stays in `stops`.
    ///
    /// # Errors
    /// [`LockError`].
    pub(crate) async fn acquire(
        layout: &Layout,
        taking: &Taking,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<(Self, Taken), LockError> {
        let patience = taking.patience;
        let (directory, mut takeover) = take_directory(layout, patience, stops).await?;
        let owner = directory.held().owner();
        let (survey_of, shared) = (layout.clone(), taking.shared.clone());
        let survey = supervise::blocking(move || Survey::of(&survey_of)).await?;
        let known = survey.openings().next().map(|opened| opened.run);
        let mut taken = Taken {
            run: known,
            owner: owner.clone(),
            epoch: directory.epoch(),
            head: None,
            takeover: None,
            shared: shared.is_some(),
            fence: Fence::of(directory.held()),
        };
        let mut kept = None;
        if let Some(Shared { board, facts }) = shared {
            let run = known.unwrap_or_else(|| RunId::from_bytes(rand::random()));
            let place = Place { board, run, look: look(layout.clone()), facts };
            let lock = tokio::select! {
                taken = BoardLock::acquire(place, owner, &patience) => taken,
                () = stopped(stops) => Err(LockError::Interrupted),
            };
            let (lock, over) = lock?;
            (taken.run, taken.head) = (Some(run), lock.head());
            taken.epoch = taken.epoch.max(lock.epoch());
            takeover = over.or(takeover);
            kept = Some(Kept::start(lock, Arc::clone(directory.held())));
        }
        directory.set_epoch(taken.epoch);
        taken.takeover = takeover;
        Ok((Self { kept, directory }, taken))
    }

    /// Takes the lock of an existing run directory alone, whatever its journal holds. A stop ends
    /// the wait for another owner.
    ///
    /// # Errors
    /// [`LockError`].
    pub(crate) async fn of_directory(
        layout: &Layout,
        patience: Patience,
        stops: &mut mpsc::Receiver<StopLevel>,
    ) -> Result<Self, LockError> {
        let (directory, _) = take_directory(layout, patience, stops).await?;
        Ok(Self { kept: None, directory })
    }

    /// The epoch that goes with the lock of the directory.
    pub(crate) fn epoch(&self) -> u32 {
        self.directory.epoch()
    }

    /// Whom the engine tells what is durable, if the run is on a board.
    pub fn keeper(&self) -> Option<Keeper> {
        self.kept.as_ref().map(|kept| Keeper::Lock(kept.standing.clone()))
    }

    /// Says what is durable.
    pub(super) fn tell(&self, standing: Standing) {
        if let Some(kept) = &self.kept {
            kept.standing.send_replace(Some(standing));
        }
    }

    /// The position up to which the board's entry of this owner covers the reports: they may be
    /// forgotten. Stays empty when the run is on no board.
    pub fn confirmed(&self) -> watch::Receiver<Option<ReportPosition>> {
        match &self.kept {
            Some(kept) => kept.confirmed.clone(),
            None => watch::channel(None).1,
        }
    }

    /// Comes back when somebody else has the run, and never otherwise.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let mut lost = self.directory.held().lost();
        async move {
            let found = lost.wait_for(Option::is_some).await.ok().and_then(|lost| lost.clone());
            match found {
                Some(lost) => lost,
                None => std::future::pending().await,
            }
        }
    }

    /// Lets the queue forget what is confirmed, and tells the engine when the lock is lost, while
    /// the task lives.
    pub fn attend(
        &self,
        run: RunId,
        dispatch: Arc<dyn Dispatch>,
        to: mpsc::Sender<News>,
    ) -> Task<()> {
        let (lost, mut confirmed) = (self.lost(), self.confirmed());
        supervise::spawn("lock news", async move {
            let forget = async {
                while confirmed.changed().await.is_ok() {
                    let position = *confirmed.borrow_and_update();
                    let Some(position) = position else { continue };
                    if let Err(error) = dispatch.journalled(run, position).await {
                        // The next position covers this one.
                        tracing::debug!("reports could not be purged: {error}");
                    }
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                lost = lost => {
                    // An engine that ended does not care.
                    drop(to.send(News::Failed(RunError::LockLost(lost))).await);
                }
                () = forget => {}
            }
        })
    }

    /// Whether the run is still ours, for whoever is about to replace a file of the run directory.
    pub fn fence(&self) -> Fence {
        Fence::of(self.directory.held())
    }

    /// Lets the run go where other hosts ask: in this state, or as it was before when nothing came
    /// of the sitting. The directory stays locked until this value is dropped.
    ///
    /// # Errors
    /// [`Lost`] when it was somebody else's by then: what this sitting did last does not count.
    pub async fn release(&self, state: Option<RunState>) -> Result<(), Lost> {
        if let Some(kept) = &self.kept {
            kept.release(state).await;
        }
        self.fence().check()
    }
}

impl Fence {
    fn of(held: &Arc<Held>) -> Self {
        Self { held: Arc::clone(held), checked: Instant::now() }
    }

    /// Looks whether somebody else has the run by now.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn check(&self) -> Result<(), Lost> {
        self.held.check()
    }

    /// The same, unless that was done a moment ago: for whoever asks again and again.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn check_when_due(&mut self) -> Result<(), Lost> {
        if self.checked.elapsed() >= FENCE_HOLDS {
            self.check()?;
            self.checked = Instant::now();
        }
        Ok(())
    }
}

async fn take_directory(
    layout: &Layout,
    patience: Patience,
    stops: &mut mpsc::Receiver<StopLevel>,
) -> Result<(DirectoryLock, Option<Takeover>), LockError> {
    let of = layout.clone();
    let mut contender = supervise::blocking(move || Contender::new(&of)).await?;
    loop {
        let (tried, attempt) = supervise::blocking(move || {
            let attempt = contender.attempt(&patience);
            (contender, attempt)
        })
        .await;
        match attempt? {
            Attempt::Taken(takeover) => {
                let lock = supervise::blocking(move || tried.hold()).await?;
                return Ok((lock, takeover));
            }
            Attempt::Wait => contender = tried,
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = stopped(stops) => return Err(LockError::Interrupted),
        }
    }
}

/// Comes back when a user asked for a stop.
async fn stopped(stops: &mut mpsc::Receiver<StopLevel>) {
    if stops.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Looks into a run directory for what the lock on a board depends on.
fn look(layout: Layout) -> Look {
    Arc::new(move |wanted| {
        let layout = layout.clone();
        Box::pin(supervise::blocking(move || view(&layout, wanted)))
    })
}

fn view(layout: &Layout, wanted: Option<Head>) -> Result<View, JournalError> {
    let survey = Survey::of(layout)?;
    let mut view = View {
        newest: survey.next_epoch() - 1,
        shared: survey.openings().any(|opened| opened.holder.is_some()),
        holder: survey.openings().next_back().and_then(|opened| opened.holder),
        ..View::default()
    };
    match wanted {
        Some(head) => view.lack = survey.lacks(head)?,
        None => view.head = survey.head()?,
    }
    if let Some(head) = view.head {
        // Its writer may have died before it was synced.
        journal::persist(layout, head.epoch)?;
    }
    Ok(view)
}

/// Name of this host.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
