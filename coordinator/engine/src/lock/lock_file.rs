//! `run.lock.json`, the lock info: the owner of the run, beside the file that is locked.

use std::io::Write as _;
use std::path::Path;

use rollout_protocol::Timestamp;
use rollout_protocol::limits;
use serde::{Deserialize, Serialize};

use super::owner::LockOwner;
use crate::atomic_file::TEMPORARY_PREFIX;

/// Content of the lock info.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LockFile {
    /// The owner.
    pub(super) owner: LockOwner,
    /// Its host, for people.
    pub(super) hostname: String,
    /// Its process, for people.
    pub(super) pid: u32,
    /// Its epoch.
    pub(super) epoch: u32,
    /// When it took the lock.
    pub(super) created_at: Timestamp,
    /// When it was last alive. Only for people: clocks of two hosts are never compared.
    pub(super) last_heartbeat_at: Timestamp,
}

impl LockFile {
    pub(super) fn new(owner: LockOwner, epoch: u32) -> Self {
        let now = Timestamp::now();
        let (hostname, pid) = (super::host_name(), owner.process.pid);
        Self { owner, hostname, pid, epoch, created_at: now, last_heartbeat_at: now }
    }

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// Replaces the lock info at `path`. Not synced: it only states who is alive now.
    pub(super) fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        let directory = path.parent().unwrap_or(Path::new("."));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        let mut temporary = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .permissions(mode)
            .tempfile_in(directory)?;
        temporary.write_all(&text)?;
        temporary.persist(path).map(drop).map_err(|error| error.error)
    }

    /// Process, host, and since when it owns the run, for people.
    pub(super) fn describe(&self) -> String {
        format!("{} since {:.0}", self.owner.describe(), self.created_at)
    }

    /// Process, host, and when it took the run, for people.
    pub(super) fn describe_successor(&self) -> String {
        format!("{} at {:.0}", self.owner.describe(), self.created_at)
    }
}

/// The text of the lock info at `path`; `None` when there is none.
pub(super) fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    use std::io::Read as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(limits::LOCK_FILE_BYTES).read_to_end(&mut text)?;
    Ok(Some(text))
}
