//! Farms of the daemon. Each has a record file, which is durable before its opening is answered, and
//! a run directory with the journal of the farm. A daemon that is started again opens every farm that
//! was not closed. Farms do not count as runs: they live long, and take slots only for their samples.
//!
//! * `record`: files of farms; `table`: the farms in memory; `hosted_farm`: one of them
//! * `submit`: acceptance; `driver`: a session from its document to its end
//! * `control`: pause, resume, close; `deletion`: removal of farms and their executions
//! * `calls`: groups, completions and acknowledgements
//! * `samples`: records of samples and the calls of their agents

mod calls;
mod control;
mod deletion;
mod driver;
mod error;
mod hosted_farm;
mod record;
mod samples;
mod submit;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_base::shared_limit::{LimitShares, SharedLimit};
use rollout_base::supervise::{self, Task};
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

pub use self::calls::{CompletionRead, GroupState};
pub use self::error::FarmError;
pub use self::hosted_farm::{HostedFarm, HostedFarmState, HostedFarmView};
pub use self::record::{HostedFarmEnd, HostedFarmRecord};
pub use self::samples::RecordedCalls;
pub use self::submit::{FarmSubmission, SubmittedFarm};
pub use self::table::{FarmPage, FarmQuery};

use self::hosted_farm::FarmStage;
use self::table::FarmTable;
use super::Daemon;
use super::id::HostedFarmId;
use super::record::RecordError;
use super::state_dir::DaemonDir;

/// Farms that are opened at the same time: opening one reads its tasks and its journal.
pub(super) const CONCURRENT_OPENINGS: u64 = 4;

/// The farms of a daemon.
#[derive(Debug)]
pub(super) struct HostedFarms {
    table: Mutex<FarmTable>,
    /// Sessions in this process.
    drivers: Mutex<HashMap<HostedFarmId, Task<()>>>,
    openings: Arc<SharedLimit>,
    /// How hard the daemon stops, if it does.
    stopping: watch::Sender<Option<StopLevel>>,
}

impl HostedFarms {
    /// Reads the records of all farms. One that cannot be read is shown as such. Blocks.
    ///
    /// # Errors
    /// [`RecordError`] when the directory cannot be used.
    pub(super) fn open(dir: &DaemonDir) -> Result<Self, RecordError> {
        let mut table = FarmTable::default();
        for found in dir.records::<HostedFarmRecord>()? {
            match found.record {
                Ok(mut record) => {
                    // It is tried again.
                    record.failure = None;
                    let run_dir = dir.run_dir(&record.id);
                    table.insert(Arc::new(HostedFarm::new(record, run_dir)));
                }
                Err(error) => {
                    tracing::error!("cannot read the farm {}: {error}", found.id);
                    table.insert_unreadable(found.id, error.to_string());
                }
            }
        }
        Ok(Self {
            table: Mutex::new(table),
            drivers: Mutex::default(),
            openings: SharedLimit::new(LimitShares::new(CONCURRENT_OPENINGS)),
            stopping: watch::Sender::new(None),
        })
    }

    /// Whether none has a session in this process.
    pub(super) fn are_closed(&self) -> bool {
        self.drivers().is_empty()
    }

    /// Stops every session.
    pub(super) fn stop(&self, level: StopLevel) {
        self.stopping.send_modify(|known| *known = (*known).max(Some(level)));
    }

    /// All farms.
    pub(super) fn all(&self) -> Vec<Arc<HostedFarm>> {
        self.table().all()
    }

    /// The farms whose session left something that could not be noted, or is to be tried again.
    pub(super) fn unwritten(&self) -> Vec<Arc<HostedFarm>> {
        self.table().unwritten()
    }

    fn table(&self) -> MutexGuard<'_, FarmTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drivers(&self) -> MutexGuard<'_, HashMap<HostedFarmId, Task<()>>> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Daemon {
    /// Opens every farm that has no session and needs one.
    pub(super) fn open_farms(self: &Arc<Self>) {
        if self.stopping().is_some() || self.writes.is_failing() {
            return;
        }
        let due = self.farms.table().due(self.is_remote());
        for farm in due {
            farm.set_stage(FarmStage::Queued);
            let (daemon, driven) = (Arc::clone(self), Arc::clone(&farm));
            let driver = supervise::spawn("farm driver", async move {
                driver::drive(&daemon, &driven).await;
                driven.set_stage(FarmStage::Idle);
                daemon.farms.drivers().remove(driven.id());
                daemon.wake.notify_one();
            });
            let mut drivers = self.farms.drivers();
            // It may have ended already.
            if !matches!(*farm.stage().borrow(), FarmStage::Idle) {
                drivers.insert(farm.id().clone(), driver);
            }
        }
    }
}
