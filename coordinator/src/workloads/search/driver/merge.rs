//! Merges a result into the manifest: the eval's results become an artifact and are scored.

use std::io;
use std::path::{Path, PathBuf};

use rollout_base::backoff::error_chain;
use rollout_engine::atomic_file;
use rollout_store::git;

use super::{
    EvalResult, ScoreError, SearchBackend, SearchDirectory, SearchError, SweepFiles, scoring,
};
use crate::workloads::search::manifest::{
    ArtifactPolicy, CopiedFile, EvalStatus, SearchEval, SearchEvalError, SearchManifest,
};
use crate::workloads::search::{normalize, policy};
use rollout_protocol::search::EvalId;

/// Merges the result of an eval. Faults of its results are recorded in the eval; one of the system
/// ends the session, and the next one merges the result again.
pub(super) fn merge(
    directory: &SearchDirectory,
    manifest: &mut SearchManifest,
    backend: &dyn SearchBackend,
    result: EvalResult,
) -> Result<(), SearchError> {
    let id = result.eval_id;
    let Some(planned) = manifest.evaluations.get(&id) else { return Ok(()) };
    let committed = result.candidate_commit.is_some();
    let name = policy::candidate_ref(manifest, id);
    let mut eval = SearchEval {
        status: result.status,
        attempt: result.attempt,
        worker: result.worker,
        started_at: result.started_at,
        finished_at: result.finished_at,
        seconds: result.seconds,
        cost: result.cost,
        calls: result.calls,
        possible_secrets: result.possible_secrets,
        candidate_commit: result.candidate_commit,
        candidate_ref_name: committed.then_some(name),
        error: result.error.map(normalize::normalize_error),
        ..planned.clone()
    };
    if eval.status == EvalStatus::Completed {
        let written = result.results_csv.as_deref();
        let found = written.map(|path| source(directory, id, path)).transpose()?.flatten();
        match found {
            Some(from) => results(directory, manifest, backend, &mut eval, &from)?,
            None => {
                eval.error = Some(results_error("results_missing", "the sweep wrote no results"));
            }
        }
    }
    policy::add_result(manifest, eval);
    Ok(())
}

/// The results file of an eval: a regular file in the eval's own directory.
fn source(
    directory: &SearchDirectory,
    eval: EvalId,
    path: &str,
) -> Result<Option<PathBuf>, SearchError> {
    let Some(path) = directory.resolve_below(&format!("eval/{eval}/{path}")) else {
        return Ok(None);
    };
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) if is_fault_of_host(&error) => {
            return Err(SearchError::io("read", &path)(error));
        }
        Err(_) => return Ok(None),
    };
    let own = directory.eval(eval);
    let root = own.canonicalize().map_err(SearchError::io("read", &own))?;
    let is_file = real.metadata().map_err(SearchError::io("read", &real))?.is_file();
    Ok((real.starts_with(root) && is_file).then_some(path))
}

/// Whether the host refuses a path, rather than that nothing is there.
fn is_fault_of_host(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied || git::is_transient_io(error)
}

fn results(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    backend: &dyn SearchBackend,
    eval: &mut SearchEval,
    from: &Path,
) -> Result<(), SearchError> {
    let kept = copy_results(directory, manifest, eval.eval_id, from)?;
    let candidate = directory.root().join(&kept.copied_to_path);
    eval.candidate_results_csv_path = Some(kept.copied_to_path.clone());
    eval.candidate_results_provenance = Some(kept);
    let baseline = |path: &str| directory.root().join(path);
    let parent = &manifest.node(eval.parent_node_id).baseline_results_csv_path;
    let scored = backend.score(&SweepFiles {
        manifest,
        eval: eval.eval_id,
        directory,
        candidate: &candidate,
        parent: &baseline(parent),
        root: &baseline(&manifest.root.root_baseline_csv_path),
    });
    match scored {
        Ok(scores) => {
            eval.strict_completeness = scores.completeness;
            if !scores.missing_columns.is_empty() {
                let names = scores.missing_columns.join("`, `");
                let words = format!("the results lack the required column `{names}`");
                eval.error = Some(results_error("columns_missing", &words));
            } else if let Some((kind, words)) = &scores.metrics_fault {
                eval.error = Some(results_error(kind, words));
            }
            if let Some(error) = &eval.error {
                tracing::warn!("eval {}: {}", eval.eval_id, error.message);
            } else if let Some(warning) = &scores.warning {
                tracing::warn!("eval {}: {warning}", eval.eval_id);
            }
            eval.results_warning.clone_from(&scores.warning);
            let file = directory.eval(eval.eval_id).join(scoring::FILE);
            atomic_file::write_json(&file, &scores.document())?;
            (eval.parent_relative, eval.root_relative) = (scores.parent, scores.root);
        }
        Err(ScoreError::Results(fault)) => {
            eval.error = Some(results_error("results_unreadable", &error_chain(&fault)));
        }
        Err(ScoreError::Search(error)) => return Err(error),
    }
    Ok(())
}

/// Copies results to the artifacts, where they never change, if that is the policy.
fn copy_results(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    eval: EvalId,
    from: &Path,
) -> Result<CopiedFile, SearchError> {
    let to = format!("artifacts/candidate_eval_{eval}.csv");
    let name = from.strip_prefix(directory.root()).unwrap_or(from).to_string_lossy().into_owned();
    let mut kept = directory.copy(from, &to)?;
    kept.source_path.clone_from(&name);
    if manifest.run_config.artifact_policy == ArtifactPolicy::ExternalPaths {
        // The copy was made only for its digest.
        let copy = directory.root().join(&to);
        std::fs::remove_file(&copy).map_err(SearchError::io("remove", &copy))?;
        kept.copied_to_path = name;
    }
    Ok(kept)
}

fn results_error(error_type: &str, message: &str) -> SearchEvalError {
    let (error_type, message) = (error_type.to_owned(), message.to_owned());
    SearchEvalError { error_type, message, timed_out: false, infrastructure: false }
}
