//! Opens the directory of a new or existing search.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rollout_base::supervise;
use rollout_engine::{Fence, LockLostError, LockOptions, RunLock};
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::mpsc;

use super::{
    EvalResult, ManifestClock, SearchBackend, SearchDirectory, SearchError, SearchSession,
    baseline, context_digests, resume,
};
use crate::config::{TreeFile, tree_document};
use crate::workloads::search::manifest::{
    DuplicateIdeas, MANIFEST_VERSION, ManifestEvent, ManifestEventKind, NodeStatus, SearchManifest,
    SearchNode, SearchRoot, SearchRunConfig, SearchState,
};
use crate::workloads::search::policy;
use rollout_protocol::search::NodeId;

/// Path of the root's results.
const BASELINE: &str = "artifacts/root_baseline.csv";

/// Options for opening a search.
#[derive(Debug, Clone)]
pub struct SearchOpenOptions {
    /// The search.
    pub tree: TreeFile,
    /// Whether commands and repository are simulated.
    pub dry_run: bool,
    /// Whether to resume an existing search; otherwise it is refused.
    pub resume: bool,
    /// Whether to discard the results of the current depth.
    pub rerun_evals: bool,
    /// Whether to discard untried ideas.
    pub force_regenerate_ideas: bool,
    /// Source of times.
    pub clock: ManifestClock,
    /// How the search was started, for `invocation.json`; the file stays as it is when absent.
    pub invocation: Option<serde_json::Value>,
}

/// Proof that this process owns a search.
#[derive(Debug, Clone)]
pub struct SearchOwnership {
    /// Checks whether it still does.
    pub fence: Fence,
    /// The owner from whom it was taken over, if any.
    pub former: Option<String>,
}

/// Refuses an existing search that [`open`] would refuse: its manifest is invalid or of another
/// version, its configuration has changed, or it may not be resumed. Writes nothing, so that a
/// refused command leaves no session behind. Blocks.
///
/// # Errors
/// [`SearchError`].
pub fn check_existing(opening: &SearchOpenOptions) -> Result<(), SearchError> {
    let directory = SearchDirectory::new(opening.tree.run_dir());
    existing_manifest(&directory, opening).map(drop)
}

/// The manifest of an existing search with the current configuration.
fn existing_manifest(
    directory: &SearchDirectory,
    opening: &SearchOpenOptions,
) -> Result<Option<SearchManifest>, SearchError> {
    match directory.read()? {
        Some(_) if !opening.resume => {
            Err(SearchError::Exists { root: directory.root().to_owned() })
        }
        Some(manifest) => resume::check_config(directory, manifest, opening).map(Some),
        None => Ok(None),
    }
}

/// Takes the lock of a search and opens it. `stop` ends the session between two blocks.
///
/// # Errors
/// [`SearchError`].
pub async fn lock_and_open<W: SearchBackend + Send + 'static>(
    options: SearchOpenOptions,
    lock_options: &LockOptions,
    backend: W,
    stop: Arc<AtomicBool>,
    stops: &mut mpsc::Receiver<StopLevel>,
) -> Result<(SearchSession<W>, RunLock), SearchError> {
    let directory = SearchDirectory::new(options.tree.run_dir());
    let made = directory.clone();
    let opening = supervise::blocking(move || {
        check_existing(&options)?;
        made.create().map(|()| options)
    });
    let opening = opening.await?;
    let (lock, acquired) = RunLock::acquire(directory.layout(), lock_options, stops).await?;
    let opened = supervise::blocking(move || {
        write_epoch_mark(&directory, acquired.epoch)?;
        let former = acquired.takeover.map(|takeover| takeover.former);
        open(directory, &opening, SearchOwnership { fence: acquired.fence, former }, backend, stop)
    });
    Ok((opened.await?, lock))
}

/// Opens a search that this process owns. Blocks.
///
/// # Errors
/// [`SearchError`].
pub fn open<W: SearchBackend>(
    directory: SearchDirectory,
    options: &SearchOpenOptions,
    owned: SearchOwnership,
    mut backend: W,
    stop: Arc<AtomicBool>,
) -> Result<SearchSession<W>, SearchError> {
    owned.fence.check()?;
    directory.create()?;
    directory.remove_unfinished()?;
    let mut manifest = match existing_manifest(&directory, options)? {
        Some(manifest) => manifest,
        None => {
            let manifest = new_manifest(&directory, options, &mut backend)?;
            directory.write(&manifest, &owned.fence)?;
            manifest
        }
    };
    if let Some(invocation) = &options.invocation {
        directory.write_invocation(invocation, &owned.fence)?;
    }
    resume::finish_interrupted_discard(&directory, &manifest)?;
    if let Some(former) = owned.former {
        let kind = ManifestEventKind::LockTakeover { former };
        let at = options.clock.beside(manifest.updated_at);
        manifest.events.push(ManifestEvent { at, kind });
        directory.write(&manifest, &owned.fence)?;
    }
    resume::discard(&directory, &mut manifest, options, &owned.fence)?;
    let mut unmerged = BTreeSet::new();
    for id in policy::pending_evals(&manifest) {
        if EvalResult::read(&directory.eval(id), &manifest, id)?.is_some() {
            unmerged.insert(id);
        }
    }
    let tree = &options.tree;
    Ok(SearchSession {
        context: tree.context_ideas_dirs.iter().map(|path| tree.resolve_path(path)).collect(),
        directory,
        manifest,
        backend,
        clock: options.clock,
        fence: owned.fence,
        stop,
        last_desired: None,
        unmerged,
        running: BTreeSet::new(),
        #[cfg(test)]
        writes_left: None,
    })
}

/// Creates this session's journal segment as a mark, by which a former owner that wakes up detects
/// that it lost the search, even after this session has ended.
fn write_epoch_mark(directory: &SearchDirectory, epoch: u32) -> Result<(), SearchError> {
    let path = directory.layout().segment(epoch);
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(LockLostError::TakenOver {
            by: format!("another process, which began session {epoch}"),
        }
        .into()),
        Err(error) => Err(SearchError::io("create", &path)(error)),
    }
}

/// Builds the manifest of a search that has only its root.
fn new_manifest(
    directory: &SearchDirectory,
    options: &SearchOpenOptions,
    backend: &mut dyn SearchBackend,
) -> Result<SearchManifest, SearchError> {
    let tree = &options.tree;
    let (now, name) = (options.clock.start(), &tree.name);
    let mut kept = directory.copy(&tree.resolve_path(&tree.root_baseline_csv), BASELINE)?;
    if !options.dry_run {
        baseline::check(tree, &directory.root().join(BASELINE))?;
    }
    let commit = backend.resolve(&tree.root_commit)?;
    kept.source_path = tree.root_baseline_csv.to_string_lossy().into_owned();
    let ref_name = format!("tree/{name}/n{}", NodeId(0));
    let root = SearchNode {
        node_id: NodeId(0),
        parent_node_id: None,
        depth: 0,
        commit: commit.clone(),
        ref_name: ref_name.clone(),
        worktree_path: Some(format!("wt/{}", NodeId(0))),
        baseline_results_csv_path: BASELINE.to_owned(),
        baseline_provenance: kept.clone(),
        idea_chain: Vec::new(),
        promoted_from_eval_id: None,
        created_at: now,
        status: NodeStatus::Frontier,
        node_ideas_dir: format!("node_ideas/{}", NodeId(0)),
        context_ideas_dirs: Vec::new(),
        context_idea_files: Vec::new(),
        context_pack_files: Vec::new(),
        ideas_cost: None,
        ideas_calls: Vec::new(),
        generated_idea_files: None,
        dedupe: DuplicateIdeas::default(),
    };
    Ok(SearchManifest {
        manifest_version: MANIFEST_VERSION,
        tree_run_id: name.clone(),
        created_at: now,
        updated_at: now,
        run_config: run_config(tree, options.dry_run)?,
        root: SearchRoot {
            root_commit: commit,
            root_ref_name: ref_name,
            root_baseline_csv_path: BASELINE.to_owned(),
            root_baseline_provenance: kept,
        },
        state: SearchState {
            frontier_node_ids: vec![NodeId(0)],
            next_node_id: 1,
            ..SearchState::default()
        },
        events: Vec::new(),
        nodes: [(NodeId(0), root)].into(),
        evaluations: std::collections::BTreeMap::new(),
    })
}

/// Builds the settings of a search.
pub(super) fn run_config(tree: &TreeFile, dry_run: bool) -> Result<SearchRunConfig, SearchError> {
    let search = &tree.search;
    let invalid = |error: serde_json::Error| SearchError::Damaged {
        path: tree.file.clone(),
        reason: format!("the profile has no digest: {error}"),
    };
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let mut settings = tree_document(tree);
    if !dry_run {
        context_digests::add_context_digests(tree, &mut settings)?;
    }
    Ok(SearchRunConfig {
        ideas_per_node: search.ideas_per_node,
        max_depth: search.max_depth,
        beam_width: search.beam_width,
        max_parallel_evals: search.max_parallel_evals,
        eval_retries: search.eval_retries,
        eval_timeout_seconds: search.eval_timeout_seconds,
        sweep_config_limit: search.sweep_config_limit,
        max_total_idea_evals: tree.budgets.evals,
        min_candidate_rows: search.min_candidate_rows,
        min_ok_rate: search.min_ok_rate,
        primary_tolerance: search.primary_tolerance,
        stop_on_empty_frontier: search.stop_on_empty_frontier,
        dedupe_scope: search.dedupe_scope,
        dry_run,
        artifact_policy: search.artifact_policy,
        ideas_context_strategy: search.ideas_context_strategy,
        node_ideas_root_dir: "node_ideas".to_owned(),
        context_ideas_dirs: tree.context_ideas_dirs.iter().map(text).collect(),
        results_file: tree.results_file.clone(),
        budget_seconds: tree.budgets.seconds,
        budget_cost: tree.budgets.cost,
        budget_depth_cost: tree.budgets.depth_cost,
        max_attempt_cost: tree.max_attempt_cost(),
        keep_rejected_worktrees: tree.keep_rejected_worktrees,
        keep_failed_artifacts: tree.keep_failed_artifacts,
        settings,
        scoring_profile_digest: tree.profile.digest().map_err(invalid)?,
        scoring_profile: tree.profile.clone(),
    })
}
