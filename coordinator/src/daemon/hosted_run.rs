//! A run of the daemon: its record and its session.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_base::shared_limit::LimitUser;
use rollout_engine::journal::RunLayout;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::wire::control::StopLevel;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

use super::disk_retries::DiskRetries;
use super::event_feed::{EventFeed, EventFollower, EventSource, HostedEvent, ReadTurns};
use super::executor::HostedExecutor;
use super::failure::{RunFailure, RunFault};
use super::id::HostedRunId;
use super::principal::limit_user;
use super::progress::{SessionProgress, SessionStage};
use super::record::{
    HostedKind, HostedOutcome, HostedProgress, HostedRunRecord, RecordError, WantedState,
};
use super::record_writes::{self, RecordOwner, RecordWrites};
use super::run_blobs::RunBlobs;
use super::state_dir::DaemonDir;

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HostedRunState {
    /// It waits for its start.
    Queued,
    /// It reads its job and makes its plan.
    Starting,
    /// Its trials run.
    Running,
    /// No trial begins; running ones go on.
    Paused,
    /// It was cancelled, and its trials end.
    Cancelling,
    /// Every trial has a result.
    Completed,
    /// It was cancelled, and every trial has ended.
    Cancelled,
    /// Nothing was started, its last session failed, or its session can keep no result at present: its
    /// failure says whether it continues by itself.
    Failed,
}

/// A run of the daemon.
#[derive(Debug)]
pub struct HostedRun {
    id: HostedRunId,
    kind: HostedKind,
    user: String,
    directory: PathBuf,
    feed: Arc<EventFeed>,
    inner: Mutex<RunInner>,
    wanted: watch::Sender<WantedState>,
    blobs: RunBlobs,
    writes: RecordWrites,
}

#[derive(Debug)]
struct RunInner {
    record: HostedRunRecord,
    session: Option<HostedSession>,
    /// Why the session can keep no result at present, if it cannot.
    session_fault: Option<RunFailure>,
    /// Whether it is one of those that may run at a time. A pause takes the place away.
    has_place: bool,
    /// The executor of the session, once it takes calls.
    executor: Option<Arc<HostedExecutor>>,
}

/// A session of a run in this process.
#[derive(Debug, Clone)]
pub(super) struct HostedSession {
    pub(super) progress: Arc<SessionProgress>,
    pub(super) stops: mpsc::Sender<StopLevel>,
}

/// A snapshot of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct HostedRunView {
    /// Its record, with the progress so far.
    pub record: HostedRunRecord,
    /// Its state.
    pub state: HostedRunState,
    /// Whether a session of it is in this process.
    pub is_live: bool,
}

impl HostedRun {
    pub(super) fn new(record: HostedRunRecord, directory: PathBuf, events: EventSource) -> Self {
        let feed = EventFeed::new(events);
        feed.set_over(has_stopped(&record));
        Self {
            id: record.id.clone(),
            kind: record.kind,
            user: record.user.clone(),
            directory,
            feed: Arc::new(feed),
            wanted: watch::Sender::new(record.wanted),
            blobs: RunBlobs::default(),
            inner: Mutex::new(RunInner {
                record,
                session: None,
                session_fault: None,
                has_place: false,
                executor: None,
            }),
            writes: RecordWrites::default(),
        }
    }

    /// Its id.
    pub fn id(&self) -> &HostedRunId {
        &self.id
    }

    /// Its kind.
    pub fn kind(&self) -> HostedKind {
        self.kind
    }

    /// The user who submitted it.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The user who submitted it, of limits that all users share.
    pub(super) fn limit_user(&self) -> LimitUser {
        limit_user(&self.user, self.inner().record.role)
    }

    /// Its run directory, which exists once its first session has begun.
    pub fn directory(&self) -> &PathBuf {
        &self.directory
    }

    /// Whether its first session has begun. One whose directory cannot be looked at may have.
    pub(super) fn has_begun(&self) -> bool {
        self.directory.try_exists().unwrap_or(true)
    }

    /// Parent of the directories of its workers in this process.
    pub fn workers(&self) -> PathBuf {
        RunLayout::new(&self.directory).workers()
    }

    /// A snapshot.
    pub fn view(&self) -> HostedRunView {
        let inner = self.inner();
        let (mut record, state) = (inner.record.clone(), inner.state());
        if let Some(fault) = inner.session_fault() {
            record.failure.get_or_insert_with(|| fault.clone());
        }
        let session = inner.session.clone();
        drop(inner);
        if let Some(session) = &session {
            record.progress = session.progress.snapshot();
        }
        HostedRunView { record, state, is_live: session.is_some() }
    }

    /// Whether it has this name and this state, if they are given.
    pub(super) fn matches(&self, name: Option<&str>, state: Option<HostedRunState>) -> bool {
        let inner = self.inner();
        let has_state = state.is_none_or(|state| state == inner.state());
        has_state && name.is_none_or(|name| name == inner.record.name)
    }

    /// Its state.
    pub fn state(&self) -> HostedRunState {
        self.inner().state()
    }

    /// Changes when it may have new events, or another state.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.feed.changes()
    }

    /// Whether it has no session and will have none unless its user asks for one.
    pub fn is_over(&self) -> bool {
        self.inner().is_over()
    }

    /// A reader of its events.
    pub fn follow(&self) -> EventFollower {
        self.feed.follow()
    }

    /// Whether its user has deleted it: its files are gone, or go.
    pub fn is_deleted(&self) -> bool {
        self.inner().record.is_deleted
    }

    pub(super) fn feed(&self) -> Arc<EventFeed> {
        Arc::clone(&self.feed)
    }

    pub(super) async fn next_events(
        &self,
        after: u64,
        reads: ReadTurns<'_>,
    ) -> Result<Vec<HostedEvent>, RunFault> {
        self.feed.next(after, reads).await
    }

    /// Whether it waits for a start, or to continue after a pause, and with which priority.
    pub(super) fn queued_priority(&self) -> Option<i32> {
        let inner = self.inner();
        inner.waits().then_some(inner.record.priority)
    }

    /// Whether it has not ended: it runs, waits, is paused, or can be tried again.
    pub(super) fn is_open(&self) -> bool {
        let inner = self.inner();
        inner.session.is_some() || (inner.record.end.is_none() && !inner.record.is_deleted)
    }

    /// Whether it changes no more until it is removed: it has ended or is deleted, without a session, and its
    /// record is written.
    pub(super) fn is_settled(&self) -> bool {
        let inner = self.inner();
        let is_closed = inner.record.end.is_some() || inner.record.is_deleted;
        is_closed && inner.session.is_none() && !inner.has_place && !self.writes.is_unwritten()
    }

    /// Whether it is one of those that may run at a time.
    pub(super) fn has_place(&self) -> bool {
        self.inner().has_place
    }

    /// Makes it one of those that may run at a time, if it waits for that. Returns whether it has a
    /// session, which continues.
    pub(super) fn take_place(&self) -> Option<bool> {
        let mut inner = self.inner();
        if !inner.waits() {
            return None;
        }
        inner.has_place = true;
        let has_session = inner.session.is_some();
        self.tell(inner);
        Some(has_session)
    }

    /// Whether a session of it is in this process.
    pub(super) fn is_live(&self) -> bool {
        self.inner().session.is_some()
    }

    /// The session in this process.
    pub(super) fn session(&self) -> Option<HostedSession> {
        self.inner().session.clone()
    }

    pub(super) fn set_session(&self, session: Option<HostedSession>) {
        let mut inner = self.inner();
        inner.has_place = session.is_some() && inner.record.wanted != WantedState::Paused;
        inner.session = session;
        inner.session_fault = None;
        self.tell(inner);
    }

    /// Sets why its session can keep no result at present, if it cannot.
    pub(super) fn set_session_fault(&self, fault: Option<RunFailure>) {
        let mut inner = self.inner();
        if inner.session_fault != fault {
            inner.session_fault = fault;
            self.tell(inner);
        }
    }

    /// The executor of its session, once it takes calls.
    pub(super) fn executor(&self) -> Option<Arc<HostedExecutor>> {
        self.inner().executor.clone()
    }

    pub(super) fn set_executor(&self, executor: Option<Arc<HostedExecutor>>) {
        self.inner().executor = executor;
    }

    /// Whether an executor takes no more trials: its user has finished or cancelled it.
    pub(super) fn takes_no_trials(&self) -> bool {
        let inner = self.inner();
        inner.record.is_closed || inner.record.wanted == WantedState::Cancelled
    }

    /// Lets its users read blobs to which a result refers, before the result is in the journal.
    pub fn share_blobs<'a>(&self, blobs: impl IntoIterator<Item = &'a BlobRef>) {
        self.blobs.add_known(blobs);
    }

    /// The known blobs of its results.
    pub(super) fn blobs(&self) -> &RunBlobs {
        &self.blobs
    }

    /// The state that its session is to have: that which its user wants, but after a pause it continues
    /// when it has a place. Changes with every request.
    pub(super) fn wanted(&self) -> watch::Receiver<WantedState> {
        self.wanted.subscribe()
    }

    /// The progress of former sessions.
    pub(super) fn former_progress(&self) -> HostedProgress {
        self.inner().record.progress.clone()
    }

    /// See [`record_writes::update`].
    pub(super) async fn update<E: From<RecordError> + Send + 'static>(
        &self,
        dir: &Arc<DaemonDir>,
        change: impl FnOnce(&mut HostedRunRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        record_writes::update(self, dir, change).await
    }

    /// See [`record_writes::note`].
    pub(super) async fn note(
        &self,
        dir: &Arc<DaemonDir>,
        change: impl FnOnce(&mut HostedRunRecord),
    ) -> Result<(), RecordError> {
        record_writes::note(self, dir, change).await
    }

    /// Whether [`write_noted`](Self::write_noted) has something to do.
    pub(super) fn is_unwritten(&self) -> bool {
        self.writes.is_unwritten() || has_temporary_failure(&self.inner().record)
    }

    /// See [`RecordWrites::retries`].
    pub(super) fn disk_retries(&self) -> &DiskRetries {
        self.writes.retries()
    }

    /// See [`record_writes::write_noted`].
    pub(super) async fn write_noted(&self, dir: &Arc<DaemonDir>) -> Result<bool, RecordError> {
        record_writes::write_noted(self, dir).await
    }

    /// Tells its session what it is to do, and readers that it may have another state.
    fn tell(&self, inner: MutexGuard<'_, RunInner>) {
        self.wanted.send_replace(inner.told());
        let is_over = inner.is_over();
        drop(inner);
        self.feed.set_over(is_over);
        self.feed.changed();
    }

    fn inner(&self) -> MutexGuard<'_, RunInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordOwner for HostedRun {
    type Record = HostedRunRecord;

    fn writes(&self) -> &RecordWrites {
        &self.writes
    }

    fn copy_record(&self) -> HostedRunRecord {
        self.inner().record.clone()
    }

    fn replace_record(&self, record: HostedRunRecord) {
        let mut inner = self.inner();
        inner.has_place &= record.wanted != WantedState::Paused;
        inner.record = record;
        self.tell(inner);
    }

    fn allow_retry(record: &mut HostedRunRecord) -> bool {
        let is_allowed = has_temporary_failure(record);
        if is_allowed {
            record.failure = None;
        }
        is_allowed
    }
}

impl RunInner {
    /// Why its session can keep no result at present, if it has one that cannot.
    fn session_fault(&self) -> Option<&RunFailure> {
        let is_live = self.session.is_some() && self.record.end.is_none();
        self.session_fault.as_ref().filter(|_| is_live)
    }

    fn state(&self) -> HostedRunState {
        if self.session_fault().is_some() {
            return HostedRunState::Failed;
        }
        let stage = self.session.as_ref().map(|session| *session.progress.stage().borrow());
        match state(&self.record, stage) {
            HostedRunState::Starting | HostedRunState::Running if !self.has_place => {
                HostedRunState::Queued
            }
            state => state,
        }
    }

    fn is_over(&self) -> bool {
        self.session.is_none() && has_stopped(&self.record)
    }

    /// Whether it waits for a place among those that run.
    fn waits(&self) -> bool {
        let record = &self.record;
        let may_run = record.end.is_none() && record.failure.is_none() && !record.is_deleted;
        let wants = match record.wanted {
            WantedState::Running => true,
            WantedState::Paused => false,
            // A session needs no place to end.
            WantedState::Cancelled => self.session.is_none(),
        };
        may_run && wants && !self.has_place
    }

    /// The state that the session is to have.
    fn told(&self) -> WantedState {
        match self.record.wanted {
            WantedState::Running if self.session.is_some() && !self.has_place => {
                WantedState::Paused
            }
            wanted => wanted,
        }
    }
}

/// Whether a run with this record has ended, or waits for its user.
fn has_stopped(record: &HostedRunRecord) -> bool {
    record.end.is_some() || (record.failure.is_some() && !has_temporary_failure(record))
}

/// Whether the last session of a run with this record failed with the disk, and is tried again.
fn has_temporary_failure(record: &HostedRunRecord) -> bool {
    let is_temporary = record.failure.as_ref().is_some_and(|failure| failure.is_temporary);
    is_temporary && record.end.is_none() && !record.is_deleted
}

/// The state of a run with this record whose session, in this stage, has a place.
fn state(record: &HostedRunRecord, stage: Option<SessionStage>) -> HostedRunState {
    if let Some(end) = &record.end {
        return match end.outcome {
            HostedOutcome::Completed => HostedRunState::Completed,
            HostedOutcome::Cancelled => HostedRunState::Cancelled,
            HostedOutcome::Failed => HostedRunState::Failed,
        };
    }
    match (stage, record.wanted) {
        (None, _) if record.failure.is_some() => HostedRunState::Failed,
        (_, WantedState::Cancelled) => HostedRunState::Cancelling,
        (_, WantedState::Paused) => HostedRunState::Paused,
        (None, WantedState::Running) => HostedRunState::Queued,
        (Some(SessionStage::Opening), WantedState::Running) => HostedRunState::Starting,
        (Some(SessionStage::Opened | SessionStage::Ended), WantedState::Running) => {
            HostedRunState::Running
        }
    }
}
