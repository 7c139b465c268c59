//! Trials as a service: start one, watch it, control it, fetch its results. The interface is the same
//! wherever trials run, and all results are references to blobs.
//!
//! * `traits`: the interface, [`TrialExecutor`]
//! * `run`: the implementation on a run of this process, [`RunExecutor`]; workers are in this process
//!   or on a server
//! * `states`: the statuses of its trials, folded from the events of the run
//! * `live_events`: events of a harness while its trial runs, and then those of the record
//! * `recorded_events`: events of a harness, read from the log of an execution that ended
//! * `remote`: the implementation on a server of `rollout serve`, `RemoteExecutor`
//! * `plan_run`: all trials of a plan, and their analysis tables, over any executor
//!
//! A [`RunExecutor`] is no second engine: it hands requests to the planner of a usual run. The run has
//! the usual directory, journal, lock, retries and result files, and every command reads it.

mod error;
mod live_events;
mod plan_run;
mod recorded_events;
#[cfg(feature = "serve")]
mod remote;
mod run;
mod states;
mod traits;

pub use error::ExecutorError;
pub use plan_run::{PlanTrial, run_plan, write_tables};
pub use recorded_events::{BlobReader, EventLogs, recorded_events};
#[cfg(feature = "serve")]
pub use remote::{
    RemoteExecutor, RemoteExecutorOptions, RemoteRunEnd, RemoteSubmission, TokenSource,
};
pub use run::RunExecutor;
pub use traits::{TrialEvent, TrialEventStream, TrialExecutor};
