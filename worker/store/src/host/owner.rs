//! Owners: the processes that created environments and files.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::process;

/// Longest text parsed as an owner: labels come from outside.
const LABEL_BYTES: usize = 8 * 1024;

/// Identifies the process that owns environments, so that its death can be proven.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// Host name; followed by `/` and a token for the machine, if the machine's id is known.
    pub host: String,
    /// Boot id of the host's kernel.
    pub boot_id: String,
    /// Inode of the process's PID namespace: a pid is meaningless outside it.
    pub pid_namespace: u64,
    /// Process id.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// User of the process.
    pub uid: u32,
    /// The worker directory whose lock the process holds while it lives.
    pub lock: PathBuf,
}

/// Decides whether an owner is proven dead.
pub trait DeadOwners: Send + Sync {
    /// True only with proof; doubt is false.
    fn is_dead(&self, owner: &Owner) -> bool;
}

impl Owner {
    /// This process, which holds the lock of the worker directory `lock`. Values that the system
    /// does not provide stay empty or zero, and prove nothing.
    pub fn current(lock: PathBuf) -> Self {
        Self {
            host: process::host(),
            boot_id: process::boot_id(),
            pid_namespace: process::pid_namespace(),
            pid: std::process::id(),
            start_ticks: process::own_start_ticks(),
            uid: rustix::process::getuid().as_raw(),
            lock,
        }
    }

    /// Name of its host; other machines may have the same.
    #[must_use]
    pub fn host_name(&self) -> &str {
        process::name_in(&self.host)
    }

    /// As label text: JSON without blanks.
    ///
    /// # Errors
    /// If the path of the lock is not UTF-8.
    pub fn to_label(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Parses the output of [`Owner::to_label`]; `None` for anything else.
    pub fn from_label(text: &str) -> Option<Self> {
        if text.len() > LABEL_BYTES { None } else { serde_json::from_str(text).ok() }
    }
}
