//! Owner files of sandboxes. An owner file is beside the sandbox's directory. It is written before
//! anything else of the sandbox exists and removed after everything else has been removed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rollout_base::durable;
use rollout_environment::{EnvironmentLabels, Owner};
use serde::{Deserialize, Serialize};

/// File name suffix of owner files.
const SUFFIX: &str = ".owner.json";

/// Largest owner file: labels and a few paths.
const OWNER_FILE_BYTES: u64 = 64 * 1024;

/// Sandboxes that are in use in this process. Those that this process wrote and that are not in
/// this set were abandoned, for instance by a cancelled `create`.
static HELD_SANDBOXES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Content of an owner file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct OwnerFile {
    /// Labels of the owner.
    pub(super) labels: EnvironmentLabels,
    /// Control groups made for it.
    #[serde(default)]
    pub(super) groups: Vec<PathBuf>,
    /// Whether reapers must keep it.
    #[serde(default)]
    pub(super) preserved: bool,
    /// The process that wrote it, usually the owner.
    pub(super) writer: ProcessIdentity,
}

/// What an owner file says.
#[derive(Debug)]
pub(super) enum OwnerClaim {
    /// Its content.
    Written(Box<OwnerFile>),
    /// Nothing: its content was never written to the disk, and the host lost its power. The processes
    /// of the sandbox ended with it.
    Lost,
    /// It is another user's, or of an unknown format, or cannot be read.
    Unknown,
}

/// The identity of a process, as unique as the system allows.
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
    /// Writes the owner file of the environment `id` atomically.
    pub(super) fn write(&self, base: &Path, id: &str) -> io::Result<()> {
        // Until complete it is in the owner's directory, and is removed with the owner in any case.
        let owned = self.write_via(&self.labels.owner.lock, base, id);
        // An owner may have no directory, or one on another disk.
        owned.or_else(|_| self.write_via(base, base, id))
    }

    fn write_via(&self, directory: &Path, base: &Path, id: &str) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        // Other sandboxes have no use for it after a power failure: they are removed in any case.
        if self.preserved {
            file.as_file().sync_all()?;
        }
        file.persist(path(base, id)).map_err(|error| error.error)?;
        if self.preserved {
            durable::sync_directory(base)?;
        }
        Ok(())
    }

    /// Reads the owner file of the environment `id`.
    fn read(base: &Path, id: &str) -> OwnerClaim {
        let path = path(base, id);
        let is_ours = |meta: &fs::Metadata| {
            let ours = meta.uid() == rustix::process::geteuid().as_raw();
            meta.is_file() && ours && meta.len() <= OWNER_FILE_BYTES
        };
        if !fs::symlink_metadata(&path).is_ok_and(|meta| is_ours(&meta)) {
            return OwnerClaim::Unknown;
        }
        let Ok(bytes) = fs::read(path) else { return OwnerClaim::Unknown };
        match serde_json::from_slice(&bytes) {
            Ok(owner_file) => OwnerClaim::Written(Box::new(owner_file)),
            // An owner file is renamed when it is whole.
            Err(_) if bytes.iter().all(|byte| *byte == 0) => OwnerClaim::Lost,
            Err(_) => OwnerClaim::Unknown,
        }
    }

    /// Removes the owner file.
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

/// Makes the directory of all sandboxes, accessible only to its owner: files inside may have
/// set-user-id bits.
pub(super) fn make_base(base: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(base)
}

/// All environments that have an owner file.
pub(super) fn read_all(base: &Path) -> io::Result<Vec<(String, OwnerClaim)>> {
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

/// Marks a sandbox as in use in this process.
#[derive(Debug)]
pub(super) struct SandboxHold(PathBuf);

impl SandboxHold {
    /// Marks the sandbox at `directory`.
    pub(super) fn new(directory: &Path) -> Self {
        lock_held_sandboxes().insert(directory.to_path_buf());
        Self(directory.to_path_buf())
    }

    /// Whether the sandbox at `directory` is in use.
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
