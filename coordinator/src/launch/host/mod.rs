//! Host side of a process that runs trials: providers of environments, directories that outlive it,
//! recovery after dead processes, and the worker process.

mod process;
mod provider_probe;
mod providers;
mod recovery;
mod state_dir;
mod user_dirs;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;

use rollout_base::open_files;
use rollout_environment::CaBundle;

pub use self::process::{SANDBOX_COMMAND, environment};
pub use self::providers::{answering, check_services, provider, runner};
pub use self::recovery::{HostRecovery, reap, recover_dead_workers, remove_leftovers};
pub use self::state_dir::StateDir;
pub use self::user_dirs::{fetched_tasks, image_locks};
pub use self::worker::{RunnerDecorator, WorkerProcess};

/// Limit of finished executions that wait on disk, bytes; beyond it no more are started.
pub const SPOOL_BYTES: u64 = 16 * 1024 * 1024 * 1024;

/// How many of `wanted` executions the limit of open files allows; warns if they are fewer.
pub fn limit_executions(wanted: u32) -> u32 {
    let fitting = open_files::max_executions(wanted);
    if fitting < wanted {
        let limit = open_files::limit().unwrap_or_default();
        tracing::warn!(
            "running {fitting} at a time instead of {wanted}: this process may have {limit} files \
             open; raise the hard limit (`ulimit -Hn`, `LimitNOFILE=` of a service) to run more"
        );
    }
    fitting
}

/// Options of the operator of this host, which no document changes.
#[derive(Debug, Clone, Default)]
pub struct OperatorOptions {
    /// File of options of the provider `kubernetes`.
    pub kubernetes_config: Option<PathBuf>,
    /// CA bundle of environments and builds.
    pub ca_bundle: Option<CaBundle>,
}

/// Paths of the host that outlive a process.
#[derive(Debug, Clone)]
pub struct HostPaths {
    /// Locks by which the processes of this host build an image once.
    pub image_locks: PathBuf,
    /// Program and first argument of the supervisor of sandboxes.
    pub sandbox_helper: Vec<OsString>,
    /// Options of the operator.
    pub operator: OperatorOptions,
}

#[cfg(test)]
mod tests;
