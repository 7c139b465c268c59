//! Paths inside a run directory, except those of trials.

use std::path::{Path, PathBuf};

/// The paths of one run directory.
#[derive(Debug, Clone)]
pub struct RunLayout {
    root: PathBuf,
    manifest: &'static str,
}

impl RunLayout {
    /// The layout below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), manifest: "manifest.json" }
    }

    /// The layout of a tree search below `root`. Its `manifest.json` is the search's own manifest,
    /// so the header of the run's state has another name.
    pub fn for_search(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), manifest: "engine.json" }
    }

    /// Whether the directory is that of a tree search. A simulated search has no engine.
    pub fn is_search(root: &Path) -> bool {
        let is_simulated = || root.join("node_ideas").is_dir() && !Self::new(root).plan().exists();
        Self::for_search(root).manifest().exists() || is_simulated()
    }

    /// The run directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file whose lock the owner holds. Never renamed, rewritten or removed.
    pub fn lock(&self) -> PathBuf {
        self.root.join("run.lock")
    }

    /// The owner of the lock, for people.
    pub fn lock_info(&self) -> PathBuf {
        self.root.join("run.lock.json")
    }

    /// The job as it was configured, templates unexpanded.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.json")
    }

    /// The plan.
    pub fn plan(&self) -> PathBuf {
        self.root.join("plan.json")
    }

    /// Location of the blob store.
    pub fn store(&self) -> PathBuf {
        self.root.join("store.json")
    }

    /// Settings of the job that a resumption without the job file needs.
    pub fn resume(&self) -> PathBuf {
        self.root.join("resume.json")
    }

    /// The control socket of the run's coordinator.
    pub fn control(&self) -> PathBuf {
        self.root.join("control.json")
    }

    /// The manifest: the header of the run's state.
    pub fn manifest(&self) -> PathBuf {
        self.root.join(self.manifest)
    }

    /// Items that wait for a worker that could run them, while there are any.
    pub fn waiting(&self) -> PathBuf {
        self.root.join("waiting.json")
    }

    /// Since when and why the queue is out of reach, while it is.
    pub fn queue_outage(&self) -> PathBuf {
        self.root.join("outage.json")
    }

    /// Aggregated results.
    pub fn result(&self) -> PathBuf {
        self.root.join("result.json")
    }

    /// Directory of the journal's segments.
    pub fn journal(&self) -> PathBuf {
        self.root.join("journal")
    }

    /// The segment of an epoch.
    pub fn segment(&self, epoch: u32) -> PathBuf {
        self.journal().join(format!("{epoch:06}.log"))
    }

    /// The durable length of the segment of an epoch.
    pub fn durable_length(&self, epoch: u32) -> PathBuf {
        self.journal().join(format!("{epoch:06}.durable"))
    }

    /// Directory of the terminal records.
    pub fn records(&self) -> PathBuf {
        self.root.join("records")
    }

    /// The n-th file of terminal records, from 1.
    pub fn record_file(&self, n: u32) -> PathBuf {
        self.records().join(format!("{n:06}.jsonl"))
    }

    /// Working directory of an embedded run; removed when it has ended.
    pub fn work(&self) -> PathBuf {
        self.root.join(".work")
    }

    /// Worker directories of an embedded run: spool and scratch.
    pub fn workers(&self) -> PathBuf {
        self.work().join("workers")
    }

    /// Sandboxes of an embedded run.
    pub fn sandboxes(&self) -> PathBuf {
        self.work().join("sandboxes")
    }
}
