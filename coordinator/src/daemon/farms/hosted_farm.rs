//! A farm of the daemon: its record and its session.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::shared_limit::LimitUser;
use rollout_protocol::farm::FarmStatus;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

use super::error::FarmError;
use super::record::HostedFarmRecord;
use crate::daemon::disk_retries::DiskRetries;
use crate::daemon::failure::RunFailure;
use crate::daemon::id::HostedFarmId;
use crate::daemon::principal::limit_user;
use crate::daemon::record::RecordError;
use crate::daemon::record_writes::{self, RecordOwner, RecordWrites};
use crate::daemon::state_dir::DaemonDir;
use crate::launch::farm::FarmSession;

/// How long a request waits for a farm that is being opened.
const OPEN_WAIT: Duration = Duration::from_secs(10);

/// When to send a request again to a farm that is not open.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// State of a farm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HostedFarmState {
    /// It waits to be opened.
    Queued,
    /// It reads its job, makes its plan and reads its journal.
    Starting,
    /// Its samples run.
    Running,
    /// No sample begins; running ones go on.
    Paused,
    /// It admits no more groups.
    Closed,
    /// Its last session failed, or its session can keep no result at present: its failure says whether
    /// it continues by itself.
    Failed,
}

impl HostedFarmState {
    /// Its word in documents and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Closed => "closed",
            Self::Failed => "failed",
        }
    }
}

/// The session of a farm in this process.
#[derive(Debug, Clone)]
pub(super) enum FarmStage {
    /// There is none.
    Idle,
    /// It waits for others that are being opened.
    Queued,
    /// It is being opened.
    Opening,
    /// It is open.
    Open(Arc<FarmSession>),
}

/// A farm of the daemon.
#[derive(Debug)]
pub struct HostedFarm {
    id: HostedFarmId,
    user: String,
    directory: PathBuf,
    record: Mutex<HostedFarmRecord>,
    stage: watch::Sender<FarmStage>,
    /// Why its session can keep no result at present, if it cannot.
    session_fault: Mutex<Option<RunFailure>>,
    /// Bytes that it held when its last session ended.
    last_held: AtomicU64,
    writes: RecordWrites,
}

/// A snapshot of a farm.
#[derive(Debug, Clone, PartialEq)]
pub struct HostedFarmView {
    /// Its record.
    pub record: HostedFarmRecord,
    /// Its state.
    pub state: HostedFarmState,
    /// The state of its groups and samples, if it is open or has ended.
    pub status: Option<FarmStatus>,
}

impl HostedFarm {
    pub(super) fn new(record: HostedFarmRecord, directory: PathBuf) -> Self {
        Self {
            id: record.id.clone(),
            user: record.user.clone(),
            directory,
            record: Mutex::new(record),
            stage: watch::Sender::new(FarmStage::Idle),
            session_fault: Mutex::default(),
            last_held: AtomicU64::new(0),
            writes: RecordWrites::default(),
        }
    }

    /// Its id.
    pub fn id(&self) -> &HostedFarmId {
        &self.id
    }

    /// The user who opened it.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The user who opened it, of limits that all users share.
    pub(super) fn limit_user(&self) -> LimitUser {
        limit_user(&self.user, self.record().role)
    }

    /// The directory of its run, which exists once its first session has begun.
    pub fn directory(&self) -> &PathBuf {
        &self.directory
    }

    /// A snapshot.
    pub fn view(&self) -> HostedFarmView {
        // One lock after the other: others take them in another order.
        let mut record = self.record().clone();
        let stage = self.stage.borrow().clone();
        let fault = self.session_fault().clone();
        let status = match &stage {
            FarmStage::Open(session) => Some(session.status()),
            FarmStage::Idle | FarmStage::Queued | FarmStage::Opening => None,
        };
        let status = status.or_else(|| record.end.as_ref().map(|end| end.status.clone()));
        let mut state = state(&record, &stage, status.as_ref());
        let is_live = matches!(stage, FarmStage::Open(_)) && record.end.is_none();
        if let Some(fault) = fault.filter(|_| is_live) {
            state = HostedFarmState::Failed;
            record.failure.get_or_insert(fault);
        }
        HostedFarmView { record, state, status }
    }

    /// The consumer with this name; the first one without a name.
    pub(super) fn consumer(&self, name: Option<&str>) -> Result<String, FarmError> {
        let record = self.record();
        let mut consumers = record.settings.consumers.iter();
        let found = match name {
            Some(name) => consumers.find(|known| *known == name),
            None => consumers.next(),
        };
        let missing = || FarmError::NoConsumer(name.unwrap_or_default().to_owned());
        found.cloned().ok_or_else(missing)
    }

    /// Bytes that the groups need which it holds; without a session, those that the last one of this
    /// process held.
    pub(super) fn held_bytes(&self) -> u64 {
        let stage = self.stage.borrow().clone();
        match stage {
            FarmStage::Open(session) => session.handle().held_bytes(),
            FarmStage::Idle | FarmStage::Queued | FarmStage::Opening => {
                self.last_held.load(Ordering::Relaxed)
            }
        }
    }

    /// Its session. Waits a moment for one that is being opened.
    ///
    /// # Errors
    /// [`FarmError::Ended`], [`FarmError::Failed`], [`FarmError::NotOpen`] or
    /// [`FarmError::WaitsForDisk`].
    pub(super) async fn session(&self) -> Result<Arc<FarmSession>, FarmError> {
        let until = Instant::now() + OPEN_WAIT;
        let mut stage = self.stage.subscribe();
        loop {
            let now = stage.borrow_and_update().clone();
            match now {
                FarmStage::Open(session) => return Ok(session),
                FarmStage::Idle => self.check_open()?,
                FarmStage::Queued | FarmStage::Opening => {}
            }
            // The sender lives as long as the farm.
            if timeout_at(until, stage.changed()).await.is_err() {
                return Err(self.not_open());
            }
        }
    }

    /// The error of a request whose session has ended. Waits until the end of the session is noted.
    pub(super) async fn gone(&self) -> FarmError {
        let until = Instant::now() + OPEN_WAIT;
        let mut stage = self.stage.subscribe();
        loop {
            let is_noted = !matches!(*stage.borrow_and_update(), FarmStage::Open(_));
            if is_noted || timeout_at(until, stage.changed()).await.is_err() {
                return self.check_open().err().unwrap_or_else(|| self.not_open());
            }
        }
    }

    /// The error of a request that may be sent again.
    fn not_open(&self) -> FarmError {
        match has_temporary_failure(&self.record()) {
            true => FarmError::WaitsForDisk { retry_after: RETRY_AFTER },
            false => FarmError::NotOpen { retry_after: RETRY_AFTER },
        }
    }

    fn check_open(&self) -> Result<(), FarmError> {
        let record = self.record();
        match (&record.end, &record.failure) {
            _ if record.is_deleted => Err(FarmError::NotFound),
            (Some(_), _) => Err(FarmError::Ended),
            (None, Some(failure)) if !failure.is_temporary => {
                Err(FarmError::Failed(failure.clone()))
            }
            (None, _) => Ok(()),
        }
    }

    /// Whether its user has deleted it.
    pub(super) fn is_deleted(&self) -> bool {
        self.record().is_deleted
    }

    /// Whether executions of it may run on workers of a daemon that uses them. A session that has ended
    /// the farm has ended these, too.
    pub(super) fn has_remote_executions(&self, is_remote: bool) -> bool {
        // A directory that cannot be looked at may be there.
        is_remote && self.record().end.is_none() && self.directory.try_exists().unwrap_or(true)
    }

    /// Whether it needs a session: it is open, or was deleted while executions of it may run.
    pub(super) fn needs_session(&self, is_remote: bool) -> bool {
        let (can_open, is_deleted) = {
            let record = self.record();
            (record.end.is_none() && record.failure.is_none(), record.is_deleted)
        };
        can_open && (!is_deleted || self.has_remote_executions(is_remote))
    }

    /// Whether it is to be opened.
    pub(super) fn is_due(&self, is_remote: bool) -> bool {
        let is_idle = matches!(*self.stage.borrow(), FarmStage::Idle);
        is_idle && self.needs_session(is_remote)
    }

    /// Changes with every stage.
    pub(super) fn stage(&self) -> watch::Receiver<FarmStage> {
        self.stage.subscribe()
    }

    pub(super) fn set_stage(&self, stage: FarmStage) {
        if !matches!(stage, FarmStage::Open(_)) {
            *self.session_fault() = None;
        }
        if let FarmStage::Open(session) = self.stage.send_replace(stage) {
            self.last_held.store(session.handle().held_bytes(), Ordering::Relaxed);
        }
    }

    /// Sets why its session can keep no result at present, if it cannot.
    pub(in crate::daemon) fn set_session_fault(&self, fault: Option<RunFailure>) {
        *self.session_fault() = fault;
    }

    /// See [`record_writes::update`].
    pub(super) async fn update<E: From<RecordError> + Send + 'static>(
        &self,
        dir: &Arc<DaemonDir>,
        change: impl FnOnce(&mut HostedFarmRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        record_writes::update(self, dir, change).await
    }

    /// See [`record_writes::note`].
    pub(super) async fn note(
        &self,
        dir: &Arc<DaemonDir>,
        change: impl FnOnce(&mut HostedFarmRecord),
    ) -> Result<(), RecordError> {
        record_writes::note(self, dir, change).await
    }

    /// Whether [`write_noted`](Self::write_noted) has something to do.
    pub(super) fn is_unwritten(&self) -> bool {
        self.writes.is_unwritten() || has_temporary_failure(&self.record())
    }

    /// See [`RecordWrites::retries`].
    pub(super) fn disk_retries(&self) -> &DiskRetries {
        self.writes.retries()
    }

    /// See [`record_writes::write_noted`].
    pub(in crate::daemon) async fn write_noted(
        &self,
        dir: &Arc<DaemonDir>,
    ) -> Result<bool, RecordError> {
        record_writes::write_noted(self, dir).await
    }

    pub(super) fn record(&self) -> MutexGuard<'_, HostedFarmRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session_fault(&self) -> MutexGuard<'_, Option<RunFailure>> {
        self.session_fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordOwner for HostedFarm {
    type Record = HostedFarmRecord;

    fn writes(&self) -> &RecordWrites {
        &self.writes
    }

    fn copy_record(&self) -> HostedFarmRecord {
        self.record().clone()
    }

    fn replace_record(&self, record: HostedFarmRecord) {
        *self.record() = record;
    }

    fn allow_retry(record: &mut HostedFarmRecord) -> bool {
        let is_allowed = has_temporary_failure(record);
        if is_allowed {
            record.failure = None;
        }
        is_allowed
    }
}

/// Whether the last session of a farm with this record failed with the disk, and is tried again. The removal
/// of a deleted farm opens it by itself.
fn has_temporary_failure(record: &HostedFarmRecord) -> bool {
    let is_temporary = record.failure.as_ref().is_some_and(|failure| failure.is_temporary);
    is_temporary && record.end.is_none() && !record.is_deleted
}

/// The state of a farm with this record; `status` is that of its session.
fn state(
    record: &HostedFarmRecord,
    stage: &FarmStage,
    status: Option<&FarmStatus>,
) -> HostedFarmState {
    if record.end.is_some() {
        return HostedFarmState::Closed;
    }
    match (stage, status) {
        (FarmStage::Open(_), Some(status)) if status.closed => HostedFarmState::Closed,
        (FarmStage::Open(_), Some(status)) if status.pause.is_some() => HostedFarmState::Paused,
        (FarmStage::Open(_), _) => HostedFarmState::Running,
        (FarmStage::Opening, _) => HostedFarmState::Starting,
        (FarmStage::Idle, _) if record.failure.is_some() => HostedFarmState::Failed,
        (FarmStage::Idle | FarmStage::Queued, _) => HostedFarmState::Queued,
    }
}
