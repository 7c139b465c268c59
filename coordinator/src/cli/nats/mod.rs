//! Servers of NATS: their options and state, and the runs that they know.

mod doctor;
mod error;
mod live_run;
mod options;
#[cfg(feature = "serve")]
mod server_check;
mod setup;
mod workers;

pub(super) use self::doctor::{DoctorArgs, doctor};
pub(super) use self::live_run::{ServedRun, ServerAddress, copy_run};
pub(super) use self::options::{NatsArgs, RequiredNatsArgs};
#[cfg(feature = "serve")]
pub(super) use self::server_check::check_tls;
pub(super) use self::setup::{SetupArgs, setup};
pub(super) use self::workers::{WorkersArgs, workers};

/// Hint for a server without the streams and buckets of the namespace.
pub(super) const NOT_SET_UP_HINT: &str =
    "the NATS server is not set up for this namespace: start a run or run `rollout setup`";

/// Pool of jobs and workers that name none.
pub(in crate::cli) const POOL: &str = "default";
