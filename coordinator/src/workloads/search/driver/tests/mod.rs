//! Tests of whole searches with a simulated backend, in real directories.

mod context_packs;
mod crashes;
mod defects;
mod requests;
mod scores;
mod user_ideas;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rollout_engine::{LockOptions, LockWaitPolicy, RunLock};
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::mpsc;

use super::simulated::SimulatedBackend;
use super::*;
use crate::config::{Diagnostics, TreeFile, TreeOptions, TreeOverrides, read_tree};
use crate::workloads::search::manifest::{SearchManifest, StopReason};
use crate::workloads::search::report::REPORTS;

/// A directory with a search in it.
pub(super) struct SearchFixture {
    directory: tempfile::TempDir,
    more: &'static str,
    parallel: u32,
}

impl SearchFixture {
    pub(super) fn new() -> Self {
        Self::with("")
    }

    /// A search whose file has these additional lines.
    fn with(more: &'static str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("base.csv"), "config_id,status,speed\n0,ok,1\n")
            .expect("written");
        Self { directory, more, parallel: 1 }
    }

    fn parallel(mut self, parallel: u32) -> Self {
        self.parallel = parallel;
        self
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn tree(&self) -> TreeFile {
        let file = self.path().join("tree.yaml");
        let text = format!(
            "tree_run_id: run\nroot_baseline_csv: base.csv\nideas_per_node: 4\nbeam_width: 2\n\
             sweep_config_limit: 5\neval_retries: 1\nenvironment: {{type: process}}\ncommands:\n  \
             ideas: {{run: a}}\n  implement: {{run: b}}\n  sweep: {{run: c}}\n{}\n",
            self.more
        );
        std::fs::write(&file, text).expect("written");
        let overrides = TreeOverrides {
            runs_root: Some(self.path().join("runs")),
            max_parallel_evals: Some(self.parallel),
            ..TreeOverrides::default()
        };
        let is_set = |_: &str| true;
        let options = TreeOptions { overrides, ..TreeOptions::for_command_line(&is_set) };
        let mut problems = Diagnostics::default();
        let tree = read_tree(&file, &options, &mut problems);
        problems.finish(tree).expect("no faults").0.expect("a search")
    }

    fn opening(&self) -> SearchOpenOptions {
        SearchOpenOptions {
            tree: self.tree(),
            dry_run: true,
            resume: true,
            rerun_evals: false,
            force_regenerate_ideas: false,
            clock: ManifestClock::Counted,
            invocation: None,
        }
    }

    fn backend(&self) -> SimulatedBackend {
        let tree = self.tree();
        SimulatedBackend::new(tree.run_dir(), &tree)
    }

    async fn open<W: SearchBackend + Send + 'static>(
        &self,
        opening: SearchOpenOptions,
        backend: W,
    ) -> Result<(SearchSession<W>, RunLock), SearchError> {
        self.lock_and_open(false, opening, backend).await
    }

    /// Opens the search, by force if necessary.
    async fn lock_and_open<W: SearchBackend + Send + 'static>(
        &self,
        force: bool,
        opening: SearchOpenOptions,
        backend: W,
    ) -> Result<(SearchSession<W>, RunLock), SearchError> {
        let (_keep, mut stops) = mpsc::channel::<StopLevel>(1);
        let wait_policy = LockWaitPolicy { wait: false, force, ..LockWaitPolicy::default() };
        let lock_options = LockOptions { wait_policy, ..LockOptions::default() };
        lock_and_open(opening, &lock_options, backend, Arc::new(AtomicBool::new(false)), &mut stops)
            .await
    }

    /// Runs the search to its end, in one session.
    pub(super) async fn run(&self) -> SearchManifest {
        let (mut session, _lock) = self.open(self.opening(), self.backend()).await.expect("opened");
        session.run().expect("to its end");
        session.manifest().clone()
    }

    /// Runs a session for the given number of writes. Returns whether the search ended before.
    async fn run_session(&self, writes: u32) -> bool {
        let (mut session, _lock) = self.open(self.opening(), self.backend()).await.expect("opened");
        session.writes_left = Some(writes);
        match session.run() {
            Ok(_) => true,
            Err(SearchError::Backend(BackendError::Stopped)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn into_directory(self) -> tempfile::TempDir {
        self.directory
    }

    pub(super) fn root(&self) -> std::path::PathBuf {
        self.path().join("runs/run")
    }

    /// The manifest and all reports on disk, without the number of concurrent evals.
    fn files(&self) -> Vec<String> {
        let read = |name: &str| std::fs::read_to_string(self.root().join(name)).expect(name);
        let parallel = format!("\"max_parallel_evals\": {}", self.parallel);
        let mut files = vec![read("manifest.json").replace(&parallel, "\"max_parallel_evals\": -")];
        files.extend(REPORTS.iter().map(|(name, _)| read(name)));
        files
    }
}

/// Fails unless two searches wrote the same files, and shows the first difference.
#[track_caller]
fn assert_same(what: &str, one: &[String], other: &[String]) {
    for (one, other) in one.iter().zip(other) {
        let lines = one.lines().zip(other.lines()).enumerate();
        if let Some((at, (one, other))) = lines.into_iter().find(|(_, (a, b))| a != b) {
            panic!("{what}: line {}: {one} / {other}", at + 1);
        }
        assert_eq!(one.len(), other.len(), "{what}");
    }
}

#[tokio::test]
async fn simulated_search_has_every_outcome_and_cleans_up() {
    let lab = SearchFixture::new();
    let done = lab.run().await;
    assert_eq!(done.state.stop_reason, Some(StopReason::MaxDepthReached));
    assert_eq!((done.evaluations.len(), done.nodes.len()), (4 + 8 + 8, 1 + 2 + 2 + 2));
    let reasons: std::collections::BTreeSet<_> = done
        .evaluations
        .values()
        .map(|eval| eval.decision.as_ref().expect("decided").promotion_reason.map(|r| r.as_str()))
        .collect();
    for reason in [
        Some("should_explore"),
        Some("mixed_primary_not_regressed"),
        Some("should_explore_false"),
        Some("primary_regressed"),
        Some("incomplete_or_failed_rows"),
        Some("missing_primary_delta"),
        Some("no_changes"),
        Some("eval_not_completed"),
        Some("beyond_beam_width"),
    ] {
        assert!(reasons.contains(&reason), "{reason:?} not in {reasons:?}");
    }
    // Only the checkouts of the last frontier, and those whose removal failed.
    let names = |kind: &str| {
        let entries = std::fs::read_dir(lab.root().join(kind)).expect(kind);
        entries.filter(|e| e.as_ref().is_ok_and(|e| e.path().is_dir())).count()
    };
    assert_eq!(names("wt"), done.state.frontier_node_ids.len());
    assert_eq!(names("cand"), done.state.deferred_cleanup.len());
    assert_eq!(names("eval"), done.evaluations.len());
}

#[tokio::test]
async fn search_repeated_leaves_equal_files() {
    let (one, other) = (SearchFixture::new(), SearchFixture::new());
    one.run().await;
    other.run().await;
    assert_same("repeated", &one.files(), &other.files());
    // Opening an ended search changes nothing.
    other.run().await;
    assert_same("opened again", &one.files(), &other.files());
}

#[tokio::test]
async fn search_with_parallel_evals_leaves_equal_files() {
    let one = SearchFixture::new();
    one.run().await;
    for parallel in [2, 3, 8] {
        let other = SearchFixture::new().parallel(parallel);
        other.run().await;
        assert_same(&format!("{parallel} at once"), &one.files(), &other.files());
    }
}
