//! The directory of a search: paths, and the manifest as a file.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Component, Path, PathBuf};

use rollout_protocol::digest::DigestHasher;

use super::TreeError;
use crate::engine::journal::Layout;
use crate::engine::{Fence, file};
use crate::workloads::search::manifest::{Manifest, Provenance, VERSION};
use crate::workloads::search::policy::decide::Artifacts;
use crate::workloads::search::report::REPORTS;
use rollout_protocol::search::{EvalId, NodeId};

/// Bytes of a manifest: far above any search.
const MANIFEST_BYTES: u64 = 1 << 30;

/// Beginning of the names of directories with ideas that are thrown away.
pub(super) const OLD: &str = ".old-";

/// The directory of a search.
#[derive(Debug, Clone)]
pub struct Directory {
    layout: Layout,
}

impl Directory {
    /// The search in `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { layout: Layout::of_search(root) }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        self.layout.root()
    }

    /// Where the run lock and the journal are.
    pub fn layout(&self) -> &Layout {
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

    /// Where a node's ideas are while they are thrown away.
    pub(super) fn old_ideas(&self, node: NodeId) -> PathBuf {
        self.root().join("node_ideas").join(format!("{OLD}{node}"))
    }

    /// Directory of what a node's generator of ideas is told.
    pub fn context(&self, node: NodeId) -> PathBuf {
        self.root().join("context").join(node.to_string())
    }

    /// A path that a manifest names, if it is one below the directory.
    pub fn below(&self, path: &str) -> Option<PathBuf> {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        let path = Path::new(path);
        let good = path.components().next().is_some() && path.components().all(plain);
        good.then(|| self.root().join(path))
    }

    /// Makes what has to be there.
    pub(super) fn create(&self) -> Result<(), TreeError> {
        for name in ["artifacts", "context", "node_ideas", "eval", "journal"] {
            let path = self.root().join(name);
            fs::create_dir_all(&path).map_err(TreeError::io("create", &path))?;
        }
        Ok(())
    }

    /// Removes files that killed owners were about to put in place.
    pub(super) fn sweep(&self) -> Result<(), TreeError> {
        let evals = self.root().join("eval");
        let mut places = vec![self.root().join("artifacts")];
        for entry in fs::read_dir(&evals).map_err(TreeError::io("list", &evals))? {
            places.push(entry.map_err(TreeError::io("list", &evals))?.path());
        }
        for place in places.into_iter().filter(|place| place.is_dir()) {
            file::sweep(&place).map_err(TreeError::io("clean", &place))?;
        }
        Ok(())
    }

    /// Reads the manifest; nothing when there is none.
    ///
    /// # Errors
    /// [`TreeError`] when it cannot be read, or is damaged or of another version.
    pub fn read(&self) -> Result<Option<Manifest>, TreeError> {
        let path = self.manifest_file();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(TreeError::io("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(MANIFEST_BYTES).read_to_end(&mut bytes).map_err(TreeError::io("read", &path))?;
        let damaged = |reason| TreeError::Damaged { path: path.clone(), reason };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let version = value.get("manifest_version").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            let found = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
            return Err(damaged(format!("its version is {found}, this rollout reads {VERSION}")));
        }
        serde_json::from_value(value).map(Some).map_err(|error| damaged(error.to_string()))
    }

    /// Reads the manifest of a search that has to be there.
    ///
    /// # Errors
    /// As [`Directory::read`], and when there is none.
    pub fn manifest(&self) -> Result<Manifest, TreeError> {
        self.read()?.ok_or_else(|| TreeError::Nothing { root: self.root().to_owned() })
    }

    /// Replaces the manifest, unless the search is somebody else's by now: a reader sees the old or
    /// the new one.
    pub(super) fn write(&self, manifest: &Manifest, fence: &Fence) -> Result<(), TreeError> {
        fence.check()?;
        Ok(file::write_json(&self.manifest_file(), manifest)?)
    }

    /// Makes the reports anew.
    ///
    /// # Errors
    /// [`TreeError::File`].
    pub fn write_reports(&self, manifest: &Manifest) -> Result<(), TreeError> {
        for (name, render) in REPORTS {
            self.write_report(name, &render(manifest))?;
        }
        Ok(())
    }

    /// Replaces one report.
    ///
    /// # Errors
    /// [`TreeError::File`].
    pub fn write_report(&self, name: &str, text: &str) -> Result<(), TreeError> {
        let path = self.root().join(name);
        file::replace(&path, text.as_bytes()).map_err(TreeError::io("write", &path))
    }

    /// Copies a file to `to` below the directory, whole or not at all, and says what it was.
    pub(super) fn copy(&self, from: &Path, to: &str) -> Result<Provenance, TreeError> {
        let target = self.root().join(to);
        let parent = target.parent().unwrap_or(self.root());
        let write = |error| TreeError::io("write", &target)(error);
        let mut source = File::open(from).map_err(TreeError::io("open", from))?;
        let mut temporary = tempfile::Builder::new()
            .prefix(file::UNFINISHED)
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(parent)
            .map_err(write)?;
        let mut digest = DigestHasher::default();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = source.read(&mut buffer).map_err(TreeError::io("read", from))?;
            if read == 0 {
                break;
            }
            digest.update(&buffer[..read]);
            temporary.write_all(&buffer[..read]).map_err(write)?;
        }
        temporary.as_file().sync_all().map_err(write)?;
        temporary.persist(&target).map_err(|error| write(error.error))?;
        sync(parent)?;
        Ok(Provenance {
            source_path: from.to_string_lossy().into_owned(),
            copied_to_path: to.to_owned(),
            sha256: digest.finish().hex(),
        })
    }
}

impl Artifacts for Directory {
    fn exists(&self, path: &str) -> bool {
        // Also paths outside, which another rule refuses.
        self.root().join(path).is_file()
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync(directory: &Path) -> Result<(), TreeError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(TreeError::io("sync", directory))
}

/// Removes a directory with all in it; it may be gone already.
pub(super) fn remove_all(path: &Path) -> Result<(), TreeError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(TreeError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
