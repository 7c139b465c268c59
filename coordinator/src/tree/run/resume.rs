//! What is gone on with, and what of it is thrown away on request.

use std::path::PathBuf;

use super::begin::{Opening, run_config};
use super::directory::remove_all;
use super::{Directory, EvalResult, TreeError};
use crate::config::differences;
use crate::tree::ids::{EvalId, NodeId};
use crate::tree::manifest::{Eval, EvalStatus, Event, EventKind, Manifest};

/// The search that is there, under the configuration of now: what decides what comes of it has to
/// be the same, the rest is taken over.
pub(super) fn check(
    directory: &Directory,
    mut manifest: Manifest,
    opening: &Opening,
) -> Result<Manifest, TreeError> {
    let now = run_config(&opening.tree, opening.dry_run)?;
    let before = &manifest.run_config;
    let mut differences = differences(&before.settings, &now.settings);
    if before.dry_run != now.dry_run {
        let word = |dry: bool| if dry { "played" } else { "run" };
        let (before, now) = (word(before.dry_run), word(now.dry_run));
        differences.push(format!("commands were {before} and would now be {now}"));
    }
    if !differences.is_empty() {
        return Err(TreeError::Changed { root: directory.root().to_owned(), differences });
    }
    manifest.run_config = now;
    Ok(manifest)
}

/// Throws away what was asked for. It is noted down before anything is made anew.
pub(super) fn discard(
    directory: &Directory,
    manifest: &mut Manifest,
    opening: &Opening,
) -> Result<(), TreeError> {
    let at = opening.clock.beside(manifest.updated_at);
    let (mut events, mut useless) = (Vec::new(), Vec::new());
    if opening.force_regenerate_ideas {
        let nodes = ideas(directory, manifest, &mut useless);
        events.extend((!nodes.is_empty()).then_some(EventKind::IdeasDiscarded { nodes }));
    }
    if opening.rerun_evals {
        let evals = results(directory, manifest)?;
        events.extend((!evals.is_empty()).then_some(EventKind::EvalsRequeued { evals }));
    }
    if events.is_empty() {
        return Ok(());
    }
    manifest.events.extend(events.into_iter().map(|kind| Event { at, kind }));
    directory.write(manifest)?;
    // Only now: a manifest never names ideas that are not there.
    useless.iter().try_for_each(|path| remove_all(path))
}

/// The ideas of the frontier go, with what was planned for them, unless one of them was tried:
/// ideas that have results stay.
fn ideas(
    directory: &Directory,
    manifest: &mut Manifest,
    useless: &mut Vec<PathBuf>,
) -> Vec<NodeId> {
    let depth = manifest.state.current_depth;
    if manifest.state.stopped || manifest.evals_at(depth).any(|(_, e)| e.status.is_settled()) {
        return Vec::new();
    }
    let planned: Vec<EvalId> = manifest.evals_at(depth).map(|(id, _)| *id).collect();
    for id in planned {
        manifest.evaluations.remove(&id);
        useless.push(directory.eval(id));
    }
    if manifest.state.planned_depth == Some(depth) {
        manifest.state.planned_depth = depth.checked_sub(1);
        manifest.state.stop_reason = None;
    }
    let frontier = manifest.state.frontier_node_ids.clone();
    for id in &frontier {
        useless.push(directory.ideas(*id));
        if let Some(node) = manifest.nodes.get_mut(id) {
            node.generated_idea_files = None;
            node.dedupe.skipped.clear();
        }
    }
    frontier
}

/// The results of the depth under way go: nothing was decided about them.
fn results(directory: &Directory, manifest: &mut Manifest) -> Result<Vec<EvalId>, TreeError> {
    if manifest.state.stopped {
        return Ok(Vec::new());
    }
    let depth = manifest.state.current_depth;
    let ids: Vec<EvalId> = manifest.evals_at(depth).map(|(id, _)| *id).collect();
    for id in &ids {
        // Before the manifest forgets them: otherwise they would be merged again.
        EvalResult::discard(&directory.eval(*id))?;
        let Some(eval) = manifest.evaluations.get_mut(id) else { continue };
        *eval = Eval {
            status: EvalStatus::Queued,
            started_at: None,
            finished_at: None,
            attempt: 0,
            worker: None,
            cost: None,
            error: None,
            candidate_commit: None,
            candidate_ref_name: None,
            candidate_results_csv_path: None,
            candidate_results_provenance: None,
            strict_completeness: None,
            parent_relative: None,
            root_relative: None,
            ..eval.clone()
        };
    }
    Ok(ids)
}
