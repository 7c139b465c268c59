//! Reader of a run directory. It takes no lock and leaves nothing; the run may be live.
//!
//! The order of reading matters while another process writes: the lock file and the durable length
//! in the manifest come first, then the journal, so that the journal holds at least what they state.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::time::Duration;

use rollout_engine::journal::{ReplayExtent, RunLayout, SegmentIndex};
use rollout_engine::{ObservedOwner, RunError};
use rollout_protocol::Timestamp;
use rollout_protocol::id::ItemId;
use rollout_protocol::limits;
use serde::de::DeserializeOwned;

use super::documents::{ParsedDocuments, RunDocuments};
use super::fold::{EventReader, RunFold};
use super::run::{OwnerView, RunKind, RunView, RunViewState};
use super::{RunViewError, run};
use crate::plan::JobPlan;

/// The directory of a run, with the documents that were read when it was opened.
#[derive(Debug)]
pub struct RunDirectory {
    layout: RunLayout,
    kind: RunKind,
    parsed: ParsedDocuments,
    /// Whether its owner, if it has one, is on an unknown host.
    is_copy: bool,
    /// Age of the owner's last heartbeat, if its clock may differ from that of the reader.
    heartbeat_age: Option<Duration>,
}

impl RunDirectory {
    /// Opens the directory of a job or a search, and reads its documents.
    ///
    /// # Errors
    /// [`RunViewError`] when it is not a run directory, or a document is damaged or newer.
    pub fn open(root: &Path) -> Result<Self, RunViewError> {
        let (layout, kind) = match RunLayout::is_search(root) {
            true => (RunLayout::for_search(root), RunKind::Search),
            false => (RunLayout::new(root), RunKind::Job),
        };
        let documents = RunDocuments {
            lock: read(&layout.lock_info(), Some(limits::LOCK_FILE_BYTES))?,
            manifest: read(&layout.manifest(), None)?,
            plan: match kind {
                RunKind::Job => read(&layout.plan(), None)?,
                RunKind::Search => None,
            },
        };
        let is_run = documents.manifest.is_some()
            || documents.plan.is_some()
            || layout.journal().is_dir()
            || kind == RunKind::Search;
        if !is_run {
            let (path, what) = (root.to_owned(), "manifest.json");
            return Err(RunViewError::NotRunDirectory { path, what });
        }
        let parsed = documents.parse(&layout)?;
        Ok(Self { layout, kind, parsed, is_copy: false, heartbeat_age: None })
    }

    /// Reads it as a copy of a run that another host may own.
    #[must_use]
    pub fn without_owner(self) -> Self {
        Self { is_copy: true, ..self }
    }

    /// Sets the age of its owner's last heartbeat, which the clocks of two hosts do not show.
    #[must_use]
    pub fn with_heartbeat_age(self, age: Duration) -> Self {
        Self { heartbeat_age: Some(age), ..self }
    }

    /// Kind of the run.
    pub fn kind(&self) -> RunKind {
        self.kind
    }

    /// Its plan.
    ///
    /// # Errors
    /// [`RunViewError::NotRunDirectory`] when it has none.
    pub fn plan(&self) -> Result<&JobPlan, RunViewError> {
        self.parsed.plan.as_ref().ok_or_else(|| RunViewError::NotRunDirectory {
            path: self.layout.root().to_owned(),
            what: "plan.json",
        })
    }

    /// Reads the journal to its end and takes a snapshot. Everything about `watched` is kept, and
    /// events are passed to `events`. Blocks.
    ///
    /// # Errors
    /// [`RunViewError`] when the journal is damaged or newer.
    pub fn view(
        self,
        watched: Option<ItemId>,
        mut events: Option<EventReader<'_>>,
    ) -> Result<RunView, RunViewError> {
        let Self { layout, kind, parsed, is_copy, heartbeat_age } = self;
        let ParsedDocuments { manifest, plan, owner } = parsed;
        let heartbeat_age = match &owner {
            Some(owner) if !is_copy => heartbeat_age.or_else(|| age_of_lock(&layout, owner)),
            _ => heartbeat_age,
        };
        let now = match (heartbeat_age, &owner) {
            // The time on the clock of the owner.
            (Some(age), Some(owner)) => {
                owner.last_heartbeat_at().saturating_add(age).unwrap_or(Timestamp::MAX)
            }
            _ => Timestamp::now(),
        };
        let owner = owner.map(|owner| {
            let age = age(now, owner.last_heartbeat_at());
            (OwnerView::new(&owner, owner.is_dead(), age), owner.epoch())
        });
        let index = SegmentIndex::read(&layout)?;
        let job = manifest.as_ref().map(|manifest| manifest.job.clone());
        let job = job.unwrap_or_else(|| name_of(layout.root()));
        let total = manifest.as_ref().map_or(0, |manifest| manifest.total);
        let fold = RunFold::new(job, plan, total, index.reopenings()?.times);
        let mut fold = match watched {
            Some(item) => fold.watching(item),
            None => fold,
        };
        // Without an owner, every whole record counts: a new session would build on it.
        let owned = run::state(None, owner.as_ref().map(|(owner, epoch)| (owner, *epoch)));
        let extent = match owned {
            // A copy has durable records alone.
            RunViewState::Running | RunViewState::Silent if !is_copy => ReplayExtent::Durable,
            _ => ReplayExtent::Whole,
        };
        let noted = manifest.as_ref().map(|m| (m.journal.epoch, m.journal.durable_bytes));
        let noted: Vec<(u32, u64)> = noted.into_iter().collect();
        index.replay(&noted, extent, |at, record| {
            fold.apply(at, record, events.as_mut().map(|events| &mut **events as EventReader<'_>));
        })?;
        let view = RunView::new(fold, kind, manifest.as_ref(), owner, now);
        let waiting = read_hint(&layout.waiting()).unwrap_or_default();
        let view = view.with_hints(waiting, read_hint(&layout.queue_outage()));
        let recorded = heartbeat_age.or(view.header.updated_at.map(|at| age(now, at)));
        Ok(if is_copy { view.without_owner(recorded) } else { view })
    }
}

/// The content of a file that is only a hint: one that cannot be read is left out.
fn read_hint<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = read(path, Some(limits::LOCK_FILE_BYTES)).ok().flatten()?;
    serde_json::from_slice(&text).ok()
}

/// Time since the owner renewed its lock, by the clock of the file system, if that of its host and that
/// of this one seem to differ. `None` if it is not needed, or nothing can be written to the directory.
fn age_of_lock(layout: &RunLayout, owner: &ObservedOwner) -> Option<Duration> {
    let shown = Timestamp::now().duration_since(owner.last_heartbeat_at());
    let is_recent = Duration::try_from(shown).is_ok_and(|age| age <= limits::LOCK_STALE);
    if is_recent || owner.is_dead() {
        return None;
    }
    let renewed = std::fs::metadata(layout.lock_info()).ok()?.modified().ok()?;
    // It has no name, so that no other process sees it.
    let fresh = tempfile::tempfile_in(layout.root()).ok()?;
    let now = fresh.metadata().ok()?.modified().ok()?;
    Some(now.duration_since(renewed).unwrap_or_default())
}

/// Time since `at`. A clock that was set back shows none.
fn age(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or_default()
}

/// The last part of a path.
pub(super) fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a document; `None` when it is missing.
fn read(path: &Path, max_bytes: Option<u64>) -> Result<Option<Vec<u8>>, RunViewError> {
    let failed = |source| RunError::File { action: "read", path: path.to_owned(), source }.into();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(max_bytes.unwrap_or(u64::MAX)).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}
