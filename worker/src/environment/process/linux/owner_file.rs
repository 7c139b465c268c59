//! Who owns a sandbox: a file beside its directory, written before anything else of it exists and
//! removed after everything else of it is gone.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::environment::{EnvironmentLabels, Owner};

/// End of the names of claims.
const SUFFIX: &str = ".owner.json";

/// Largest claim: labels and a few paths.
const OWNER_FILE_BYTES: u64 = 64 * 1024;

/// Sandboxes of this process that somebody holds. What is ours and not among them was abandoned,
/// for instance by a `create` that nobody waited for.
static HELD_SANDBOXES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// What a claim says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct OwnerFile {
    /// Whose it is.
    pub(super) labels: EnvironmentLabels,
    /// Control groups made for it.
    #[serde(default)]
    pub(super) groups: Vec<PathBuf>,
    /// Whether it is to be kept.
    #[serde(default)]
    pub(super) preserved: bool,
    /// The process that wrote it, which is usually the owner.
    pub(super) writer: ProcessIdentity,
}

/// A process, as sure as it can be told apart from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    boot_id: String,
    pid_namespace: u64,
    pid: u32,
    start_ticks: u64,
}

impl ProcessIdentity {
    /// This process.
    pub(super) fn current() -> Self {
        let Owner { boot_id, pid_namespace, pid, start_ticks, .. } = Owner::current(PathBuf::new());
        Self { boot_id, pid_namespace, pid, start_ticks }
    }
}

impl OwnerFile {
    /// Writes the claim of the environment `id`, whole or not at all.
    pub(super) fn write(&self, base: &Path, id: &str) -> io::Result<()> {
        // Until it is whole it is in the owner's directory, and goes with the owner whatever happens.
        let owned = self.write_via(&self.labels.owner.lock, base, id);
        // An owner may have no directory, or one on another disk.
        owned.or_else(|_| self.write_via(base, base, id))
    }

    fn write_via(&self, directory: &Path, base: &Path, id: &str) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.persist(path(base, id)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Reads a claim of our own user; `None` when it is not ours or not readable.
    fn read(base: &Path, id: &str) -> Option<Self> {
        let path = path(base, id);
        let meta = fs::symlink_metadata(&path).ok()?;
        let ours = meta.uid() == rustix::process::geteuid().as_raw();
        if !meta.is_file() || !ours || meta.len() > OWNER_FILE_BYTES {
            return None;
        }
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Removes the claim.
    pub(super) fn remove(base: &Path, id: &str) -> io::Result<()> {
        match fs::remove_file(path(base, id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn path(base: &Path, id: &str) -> PathBuf {
    base.join(format!("{id}{SUFFIX}"))
}

/// Makes the directory of all sandboxes, for its owner only: what is inside may carry set-user-id
/// bits.
pub(super) fn make_base(base: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(base)
}

/// All environments that have a claim. A claim that cannot be read or is another user's is absent.
pub(super) fn read_all(base: &Path) -> io::Result<Vec<(String, Option<OwnerFile>)>> {
    let read = |id: String| {
        let claim = OwnerFile::read(base, &id);
        (id, claim)
    };
    Ok(list(base)?.into_iter().map(read).collect())
}

fn list(base: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(base) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        ids.extend(id.map(str::to_owned));
    }
    ids.sort();
    Ok(ids)
}

/// Shows that somebody in this process holds a sandbox.
#[derive(Debug)]
pub(super) struct SandboxHold(PathBuf);

impl SandboxHold {
    /// Holds the sandbox at `directory`.
    pub(super) fn new(directory: &Path) -> Self {
        lock_held_sandboxes().insert(directory.to_path_buf());
        Self(directory.to_path_buf())
    }

    /// Whether somebody holds the sandbox at `directory`.
    pub(super) fn exists(directory: &Path) -> bool {
        lock_held_sandboxes().contains(directory)
    }
}

impl Drop for SandboxHold {
    fn drop(&mut self) {
        lock_held_sandboxes().remove(&self.0);
    }
}

fn lock_held_sandboxes() -> std::sync::MutexGuard<'static, BTreeSet<PathBuf>> {
    HELD_SANDBOXES.lock().unwrap_or_else(PoisonError::into_inner)
}
