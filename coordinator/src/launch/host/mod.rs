//! What a process that runs trials has to do with its host: providers of environments, directories
//! that outlive it, and what dead processes left behind; and the whole of a worker process.

mod process;
mod provider_probe;
mod providers;
mod recovery;
mod state_dir;
mod user_dirs;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;

use rollout_worker::open_files;

pub use self::process::{SANDBOX_COMMAND, environment, sandbox_helper};
pub use self::providers::{check_services, provider, runner};
pub use self::recovery::{HostRecovery, reap, recover_dead_workers};
pub use self::state_dir::StateDir;
pub use self::user_dirs::{fetched_tasks, image_locks};
pub use self::worker::{RunnerDecorator, WorkerProcess};

/// Bytes of finished executions that wait on disk beyond which no more are begun.
pub const SPOOL_BYTES: u64 = 16 * 1024 * 1024 * 1024;

/// How many of `wanted` executions this process has open files for; says so when they are fewer.
pub fn limit_executions(wanted: u32) -> u32 {
    let fitting = open_files::max_executions(wanted);
    if fitting < wanted {
        let limit = open_files::limit().unwrap_or_default();
        tracing::warn!(
            "{fitting} at a time instead of {wanted}: this process may have {limit} files open; \
             raise the hard limit (`ulimit -Hn`, `LimitNOFILE=` of a service) to run more"
        );
    }
    fitting
}

/// What is of the host and outlives a process.
#[derive(Debug, Clone)]
pub struct HostPaths {
    /// Locks by which the processes of this host build an image once.
    pub image_locks: PathBuf,
    /// Program and first argument of the supervisor of sandboxes.
    pub sandbox_helper: Vec<OsString>,
}

#[cfg(test)]
mod tests;
