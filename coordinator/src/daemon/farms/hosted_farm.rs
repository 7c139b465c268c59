//! A farm of the daemon: its record and its session.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::farm::FarmStatus;
use rollout_worker::shared_limit::LimitUser;
use rollout_worker::supervise;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

use super::error::FarmError;
use super::record::HostedFarmRecord;
use crate::daemon::id::HostedFarmId;
use crate::daemon::principal::limit_user;
use crate::daemon::record::RecordError;
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
    /// Its last session failed.
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
    /// Bytes that it held when its last session ended.
    last_held: AtomicU64,
    /// Whether the file has an earlier record: what a session left could not be noted. Changed by the
    /// holder of `writing`.
    is_unwritten: AtomicBool,
    /// Held while the record is written.
    writing: tokio::sync::Mutex<()>,
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
            last_held: AtomicU64::new(0),
            is_unwritten: AtomicBool::new(false),
            writing: tokio::sync::Mutex::new(()),
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
        let record = self.record().clone();
        let stage = self.stage.borrow().clone();
        let status = match &stage {
            FarmStage::Open(session) => Some(session.status()),
            FarmStage::Idle | FarmStage::Queued | FarmStage::Opening => None,
        };
        let status = status.or_else(|| record.end.as_ref().map(|end| end.status.clone()));
        let state = state(&record, &stage, status.as_ref());
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
    /// [`FarmError::Ended`], [`FarmError::Failed`] or [`FarmError::NotOpen`].
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
                return Err(FarmError::NotOpen { retry_after: RETRY_AFTER });
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
                let not_open = FarmError::NotOpen { retry_after: RETRY_AFTER };
                return self.check_open().err().unwrap_or(not_open);
            }
        }
    }

    fn check_open(&self) -> Result<(), FarmError> {
        let record = self.record();
        match (&record.end, &record.failure) {
            _ if record.is_deleted => Err(FarmError::NotFound),
            (Some(_), _) => Err(FarmError::Ended),
            (None, Some(failure)) => Err(FarmError::Failed(failure.clone())),
            (None, None) => Ok(()),
        }
    }

    /// Whether its user has deleted it.
    pub(super) fn is_deleted(&self) -> bool {
        self.record().is_deleted
    }

    /// Whether executions of it may run on workers of a daemon that uses them. A session that has ended
    /// the farm has ended these, too.
    pub(super) fn has_remote_executions(&self, is_remote: bool) -> bool {
        is_remote && self.record().end.is_none() && self.directory.exists()
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
        if let FarmStage::Open(session) = self.stage.send_replace(stage) {
            self.last_held.store(session.handle().held_bytes(), Ordering::Relaxed);
        }
    }

    /// Changes the record, durably; a change that `change` refuses has no effect.
    ///
    /// # Errors
    /// The refusal, or that of the file system.
    pub(super) async fn update<E: From<RecordError> + Send + 'static>(
        &self,
        dir: &Arc<DaemonDir>,
        change: impl FnOnce(&mut HostedFarmRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        let _turn = self.writing.lock().await;
        let mut record = self.record().clone();
        change(&mut record)?;
        if record == *self.record() {
            return Ok(());
        }
        write(dir, &record).await?;
        self.replace_record(record, false);
        Ok(())
    }

    /// Notes what a session left. It holds in this process even if it cannot be written: a session that
    /// failed must not begin again at once. [`HostedFarm::write_noted`] writes it later.
    ///
    /// # Errors
    /// That of the file system.
    pub(super) async fn note(
        &self,
        dir: &Arc<DaemonDir>,
        change: impl FnOnce(&mut HostedFarmRecord),
    ) -> Result<(), RecordError> {
        let _turn = self.writing.lock().await;
        let mut record = self.record().clone();
        change(&mut record);
        let written = write(dir, &record).await;
        self.replace_record(record, written.is_err());
        written
    }

    /// Whether something that a session left is not in the file.
    pub(super) fn is_unwritten(&self) -> bool {
        self.is_unwritten.load(Ordering::Relaxed)
    }

    /// Writes what could not be noted. A session that failed then failed with the same disk, as far as
    /// is known: the farm is opened again.
    ///
    /// # Errors
    /// That of the file system.
    pub(in crate::daemon) async fn write_noted(
        &self,
        dir: &Arc<DaemonDir>,
    ) -> Result<(), RecordError> {
        let _turn = self.writing.lock().await;
        if !self.is_unwritten() {
            return Ok(());
        }
        let mut record = self.record().clone();
        record.failure = None;
        write(dir, &record).await?;
        self.replace_record(record, false);
        Ok(())
    }

    fn replace_record(&self, record: HostedFarmRecord, is_unwritten: bool) {
        *self.record() = record;
        self.is_unwritten.store(is_unwritten, Ordering::Relaxed);
    }

    pub(super) fn record(&self) -> MutexGuard<'_, HostedFarmRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a record, durably.
async fn write(dir: &Arc<DaemonDir>, record: &HostedFarmRecord) -> Result<(), RecordError> {
    let (dir, record) = (Arc::clone(dir), record.clone());
    supervise::blocking(move || dir.write_record(&record)).await
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
