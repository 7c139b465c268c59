//! The directory of a search: its paths and its manifest file.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Component, Path, PathBuf};

use rollout_base::{durable, fs_remove, regular_file};
use rollout_engine::journal::RunLayout;
use rollout_engine::{Fence, atomic_file};
use rollout_protocol::digest::DigestHasher;

use super::SearchError;
use crate::results::files::layout;
use crate::workloads::search::manifest::{CopiedFile, MANIFEST_VERSION, SearchManifest};
use crate::workloads::search::policy::decide::ArtifactLookup;
use crate::workloads::search::report::REPORTS;
use rollout_protocol::search::{EvalId, NodeId};

/// Maximum size of a manifest in bytes: far above any search.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// Name prefix of directories with discarded ideas.
pub(super) const DISCARDED_PREFIX: &str = ".old-";

/// Name prefix of directories for files that replace others.
const SCRATCH_PREFIX: &str = ".tmp-scratch-";

/// The directory of a search.
#[derive(Debug, Clone)]
pub struct SearchDirectory {
    layout: RunLayout,
}

impl SearchDirectory {
    /// The directory of a search at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { layout: RunLayout::for_search(root) }
    }

    /// Path of the directory.
    pub fn root(&self) -> &Path {
        self.layout.root()
    }

    /// Layout of the run: lock file and journal.
    pub fn layout(&self) -> &RunLayout {
        &self.layout
    }

    fn manifest_file(&self) -> PathBuf {
        self.root().join("manifest.json")
    }

    /// Directory of an eval.
    pub fn eval(&self, eval: EvalId) -> PathBuf {
        self.root().join("eval").join(eval.to_string())
    }

    /// Directory of a node's ideas.
    pub fn ideas(&self, node: NodeId) -> PathBuf {
        self.root().join("node_ideas").join(node.to_string())
    }

    /// Directory of a node's ideas while they are discarded.
    pub(super) fn discarded_ideas(&self, node: NodeId) -> PathBuf {
        self.root().join("node_ideas").join(format!("{DISCARDED_PREFIX}{node}"))
    }

    /// Directory of a node's context pack.
    pub fn context(&self, node: NodeId) -> PathBuf {
        self.root().join("context").join(node.to_string())
    }

    /// Resolves a path from the manifest; `None` unless it is below the directory.
    pub fn resolve_below(&self, path: &str) -> Option<PathBuf> {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        let path = Path::new(path);
        let good = path.components().next().is_some() && path.components().all(plain);
        good.then(|| self.root().join(path))
    }

    /// Creates the required directories, durably.
    pub(super) fn create(&self) -> Result<(), SearchError> {
        for name in ["artifacts", "context", "node_ideas", "eval", "journal"] {
            let path = self.root().join(name);
            durable::create_directory(&path).map_err(SearchError::io("create", &path))?;
        }
        Ok(())
    }

    /// Creates a temporary directory for files that replace others: it is on their file system. Only the
    /// owner of the search may do so, and those that killed owners left are removed.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn create_scratch(&self) -> std::io::Result<tempfile::TempDir> {
        self.remove_scratch()?;
        tempfile::Builder::new().prefix(SCRATCH_PREFIX).tempdir_in(self.root())
    }

    fn remove_scratch(&self) -> std::io::Result<()> {
        for entry in fs::read_dir(self.root())? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(SCRATCH_PREFIX.as_bytes()) {
                fs_remove::remove_blocking(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes temporary files of killed owners.
    pub(super) fn remove_unfinished(&self) -> Result<(), SearchError> {
        self.remove_scratch().map_err(SearchError::io("clean", self.root()))?;
        let evals = self.root().join("eval");
        let mut dirs = vec![self.root().join("artifacts")];
        for entry in fs::read_dir(&evals).map_err(SearchError::io("list", &evals))? {
            dirs.push(entry.map_err(SearchError::io("list", &evals))?.path());
        }
        for place in dirs.into_iter().filter(|place| place.is_dir()) {
            atomic_file::remove_unfinished(&place).map_err(SearchError::io("clean", &place))?;
        }
        Ok(())
    }

    /// Reads the manifest; `None` if there is none.
    ///
    /// # Errors
    /// [`SearchError`] if it is unreadable, damaged, of another version or the manifest of a job.
    pub fn read(&self) -> Result<Option<SearchManifest>, SearchError> {
        let path = self.manifest_file();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SearchError::io("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_MANIFEST_BYTES)
            .read_to_end(&mut bytes)
            .map_err(SearchError::io("read", &path))?;
        let damaged = |reason| SearchError::Damaged { path: path.clone(), reason };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let version = value.get("manifest_version").and_then(serde_json::Value::as_u64);
        if version.is_none() && value.get("job").is_some() {
            return Err(SearchError::Job { root: self.root().to_owned() });
        }
        if version != Some(u64::from(MANIFEST_VERSION)) {
            let found = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
            return Err(damaged(format!(
                "its version is {found}, but this rollout reads {MANIFEST_VERSION}"
            )));
        }
        serde_json::from_value(value).map(Some).map_err(|error| damaged(error.to_string()))
    }

    /// Reads the manifest of a search that must exist.
    ///
    /// # Errors
    /// As [`SearchDirectory::read`], and if there is no manifest.
    pub fn manifest(&self) -> Result<SearchManifest, SearchError> {
        self.read()?.ok_or_else(|| SearchError::NotFound { root: self.root().to_owned() })
    }

    /// Replaces the manifest atomically, unless another process owns the search.
    pub(super) fn write(
        &self,
        manifest: &SearchManifest,
        fence: &Fence,
    ) -> Result<(), SearchError> {
        fence.check()?;
        Ok(atomic_file::write_json(&self.manifest_file(), manifest)?)
    }

    /// Replaces the command line that started the search, unless another process owns it.
    pub(super) fn write_invocation(
        &self,
        invocation: &serde_json::Value,
        fence: &Fence,
    ) -> Result<(), SearchError> {
        fence.check()?;
        Ok(atomic_file::write_json(&self.root().join(layout::INVOCATION), invocation)?)
    }

    /// Writes the reports again.
    ///
    /// # Errors
    /// [`SearchError::File`].
    pub fn write_reports(&self, manifest: &SearchManifest) -> Result<(), SearchError> {
        for (name, render) in REPORTS {
            self.write_report(name, &render(manifest))?;
        }
        Ok(())
    }

    /// Replaces one report.
    ///
    /// # Errors
    /// [`SearchError::File`].
    pub fn write_report(&self, name: &str, text: &str) -> Result<(), SearchError> {
        let path = self.root().join(name);
        atomic_file::replace(&path, text.as_bytes()).map_err(SearchError::io("write", &path))
    }

    /// Copies a file to `to` below the directory, completely or not at all, and returns its digest.
    pub(super) fn copy(&self, from: &Path, to: &str) -> Result<CopiedFile, SearchError> {
        let target = self.root().join(to);
        let parent = target.parent().unwrap_or(self.root());
        let write = |error| SearchError::io("write", &target)(error);
        let mut source = regular_file::open(from).map_err(SearchError::io("open", from))?;
        let mut temporary = tempfile::Builder::new()
            .prefix(atomic_file::TEMPORARY_PREFIX)
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(parent)
            .map_err(write)?;
        let mut digest = DigestHasher::default();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = source.read(&mut buffer).map_err(SearchError::io("read", from))?;
            if read == 0 {
                break;
            }
            digest.update(&buffer[..read]);
            temporary.write_all(&buffer[..read]).map_err(write)?;
        }
        temporary.as_file().sync_all().map_err(write)?;
        temporary.persist(&target).map_err(|error| write(error.error))?;
        sync(parent)?;
        Ok(CopiedFile {
            source_path: from.to_string_lossy().into_owned(),
            copied_to_path: to.to_owned(),
            sha256: digest.finish().hex(),
        })
    }
}

impl ArtifactLookup for SearchDirectory {
    fn exists(&self, path: &str) -> bool {
        // Paths outside count as well: another rule refuses them.
        self.root().join(path).is_file()
    }
}

/// Makes the entries of a directory durable.
pub(super) fn sync(directory: &Path) -> Result<(), SearchError> {
    durable::sync_directory(directory).map_err(SearchError::io("sync", directory))
}

/// Removes a directory with its contents; a missing one is no error.
pub(super) fn remove_all(path: &Path) -> Result<(), SearchError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(SearchError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_of_killed_owner_is_removed_by_the_next_one() {
        let temp = tempfile::tempdir().expect("a directory");
        let directory = SearchDirectory::new(temp.path());
        directory.create().expect("made");
        let leave = || directory.create_scratch().expect("made").keep();
        let first = leave();
        fs::write(first.join("output"), "x").expect("written");
        let second = leave();
        assert!(!first.exists() && second.is_dir());
        directory.remove_unfinished().expect("cleaned");
        assert!(!second.exists() && temp.path().join("eval").is_dir());
    }

    #[test]
    fn manifest_of_job_is_not_called_damaged() {
        let temp = tempfile::tempdir().expect("a directory");
        let manifest = r#"{"format": 1, "job": "j"}"#;
        fs::write(temp.path().join("manifest.json"), manifest).expect("writable");
        let found = SearchDirectory::new(temp.path()).manifest();
        assert!(matches!(found, Err(SearchError::Job { .. })), "{found:?}");
    }
}
