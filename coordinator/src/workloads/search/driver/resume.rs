//! Resuming a search, and discarding parts of it on request.

use std::fs;
use std::path::Path;

use super::directory::{DISCARDED_PREFIX, remove_all, sync};
use super::opening::{SearchOpenOptions, run_config};
use super::{EvalResult, SearchDirectory, SearchError, ideas as written, rewind};
use crate::config::differences;
use crate::workloads::search::manifest::{
    EvalStatus, ManifestEvent, ManifestEventKind, SearchEval, SearchManifest, SearchNode,
};
use crate::workloads::search::policy;
use rollout_engine::Fence;
use rollout_protocol::search::{EvalId, NodeId};

/// Applies the current configuration to an existing search. Settings that affect results must be
/// the same; the others are taken over.
pub(super) fn check_config(
    directory: &SearchDirectory,
    mut manifest: SearchManifest,
    options: &SearchOpenOptions,
) -> Result<SearchManifest, SearchError> {
    let now = run_config(&options.tree, options.dry_run)?;
    let before = &manifest.run_config;
    let mut differences = differences(&before.settings, &now.settings);
    if before.dry_run != now.dry_run {
        let word = |dry: bool| if dry { "simulated" } else { "run" };
        let (before, now) = (word(before.dry_run), word(now.dry_run));
        differences.push(format!("commands were {before}, but would now be {now}"));
    }
    if !differences.is_empty() {
        return Err(SearchError::Changed { root: directory.root().to_owned(), differences });
    }
    manifest.run_config = now;
    policy::clear_removed_refs(&mut manifest);
    Ok(manifest)
}

/// Completes a discard that a killed owner began. Ideas that the manifest still names are restored:
/// the discard was not durable.
pub(super) fn finish_interrupted_discard(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
) -> Result<(), SearchError> {
    for name in names(&directory.root().join("node_ideas"))? {
        let Some(id) = name.strip_prefix(DISCARDED_PREFIX).and_then(|id| id.parse::<NodeId>().ok())
        else {
            continue;
        };
        let (old, ideas) = (directory.discarded_ideas(id), directory.ideas(id));
        let has_ideas = |node: &SearchNode| node.generated_idea_files.is_some();
        if manifest.nodes.get(&id).is_some_and(has_ideas) && !ideas.exists() {
            rename(&old, &ideas)?;
        } else {
            remove_all(&old)?;
        }
    }
    for name in names(&directory.root().join("eval"))? {
        let Ok(id) = name.parse::<EvalId>() else { continue };
        // Numbers are never reused: this eval existed, and its idea was discarded.
        if id.0 < manifest.state.next_eval_id && !manifest.evaluations.contains_key(&id) {
            remove_all(&directory.eval(id))?;
        }
    }
    Ok(())
}

fn names(path: &Path) -> Result<Vec<String>, SearchError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(SearchError::io("list", path))? {
        let entry = entry.map_err(SearchError::io("list", path))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

/// Renames a file within its directory, durably.
fn rename(from: &Path, to: &Path) -> Result<(), SearchError> {
    fs::rename(from, to).map_err(SearchError::io("rename", from))?;
    sync(to.parent().unwrap_or(to))
}

/// Discards ideas and results on request. The manifest records it before any replacement is made; a
/// directory of ideas is complete or absent at any time.
pub(super) fn discard(
    directory: &SearchDirectory,
    manifest: &mut SearchManifest,
    options: &SearchOpenOptions,
    fence: &Fence,
) -> Result<(), SearchError> {
    let at = options.clock.beside(manifest.updated_at);
    let (mut events, mut discarded) = (Vec::new(), DiscardedIds::default());
    if options.force_regenerate_ideas {
        discarded = discard_ideas(directory, manifest);
        let nodes = discarded.nodes.clone();
        events.extend((!nodes.is_empty()).then_some(ManifestEventKind::IdeasDiscarded { nodes }));
    }
    let mut again = Vec::new();
    if options.rerun_evals {
        let withdrawn = rewind::rewind_last_depth(manifest);
        again = discard_results(directory, manifest);
        let evals = again.clone();
        if evals.is_empty() {
            let depth = manifest.state.current_depth;
            tracing::warn!("depth {depth} has no evals yet: there is nothing to run again");
        } else {
            events.push(ManifestEventKind::EvalsRequeued { evals, withdrawn });
        }
    }
    if events.is_empty() {
        return Ok(());
    }
    manifest.events.extend(events.into_iter().map(|kind| ManifestEvent { at, kind }));
    fence.check()?;
    for id in &discarded.nodes {
        let (ideas, old) = (directory.ideas(*id), directory.discarded_ideas(*id));
        if ideas.exists() {
            rename(&ideas, &old)?;
        }
    }
    directory.write(manifest, fence)?;
    // Only after the manifest is durable: a crash before it loses nothing that the manifest names.
    // Remains after a crash are recognized as useless: results by their round, the rest by the
    // manifest.
    for id in again {
        EvalResult::discard(&directory.eval(id))?;
    }
    for id in discarded.evals {
        remove_all(&directory.eval(id))?;
    }
    for id in discarded.nodes {
        remove_all(&directory.discarded_ideas(id))?;
    }
    Ok(())
}

/// Discarded nodes and evals.
#[derive(Default)]
struct DiscardedIds {
    /// Nodes whose ideas are discarded.
    nodes: Vec<NodeId>,
    /// Evals that were planned for them.
    evals: Vec<EvalId>,
}

/// Discards the ideas of the frontier and their planned evals, unless one of them has a result:
/// ideas with results stay.
fn discard_ideas(directory: &SearchDirectory, manifest: &mut SearchManifest) -> DiscardedIds {
    let depth = manifest.state.current_depth;
    if manifest.state.stopped || manifest.evals_at(depth).any(|(_, e)| e.status.is_settled()) {
        return DiscardedIds::default();
    }
    let evals: Vec<EvalId> = manifest.evals_at(depth).map(|(id, _)| *id).collect();
    for id in &evals {
        add_discarded_spending(directory, manifest, *id);
        manifest.evaluations.remove(id);
    }
    if manifest.state.planned_depth == Some(depth) {
        manifest.state.planned_depth = depth.checked_sub(1);
        manifest.state.stop_reason = None;
    }
    let nodes = manifest.state.frontier_node_ids.clone();
    for id in &nodes {
        if let Some(node) = manifest.nodes.get_mut(id) {
            // Ideas that were not added yet have a cost as well.
            let recorded = || written::cost(&directory.ideas(*id)).ok().flatten();
            let cost = node.ideas_cost.take().or_else(recorded);
            manifest.state.thrown_away.cost += cost.unwrap_or(0.0);
            node.ideas_calls.clear();
            node.generated_idea_files = None;
            node.dedupe.skipped.clear();
        }
    }
    DiscardedIds { nodes, evals }
}

/// Adds time and cost of a discarded eval to the totals, also if its result was not merged.
fn add_discarded_spending(directory: &SearchDirectory, manifest: &mut SearchManifest, id: EvalId) {
    let eval = &manifest.evaluations[&id];
    let (seconds, cost) = if eval.status.is_settled() {
        (eval.seconds, eval.cost)
    } else {
        // A damaged result is discarded as well; its cost is unknown.
        let result = EvalResult::read(&directory.eval(id), manifest, id).ok().flatten();
        result.map_or((None, None), |result| (result.seconds, result.cost))
    };
    let thrown_away = &mut manifest.state.thrown_away;
    thrown_away.seconds += seconds.unwrap_or(0.0);
    thrown_away.cost += cost.unwrap_or(0.0);
}

/// Discards the results of the current depth, on which nothing is decided.
fn discard_results(directory: &SearchDirectory, manifest: &mut SearchManifest) -> Vec<EvalId> {
    let depth = manifest.state.current_depth;
    let ids: Vec<EvalId> = manifest.evals_at(depth).map(|(id, _)| *id).collect();
    for id in &ids {
        add_discarded_spending(directory, manifest, *id);
        let Some(eval) = manifest.evaluations.get_mut(id) else { continue };
        *eval = SearchEval {
            status: EvalStatus::Queued,
            started_at: None,
            finished_at: None,
            seconds: None,
            attempt: 0,
            worker: None,
            cost: None,
            calls: Vec::new(),
            possible_secrets: Vec::new(),
            error: None,
            candidate_commit: None,
            experiment_dir: Some(policy::experiment_dir(&eval.eval_output_root)),
            candidate_ref_name: None,
            candidate_results_csv_path: None,
            candidate_results_provenance: None,
            strict_completeness: None,
            results_warning: None,
            parent_relative: None,
            root_relative: None,
            ..eval.clone()
        };
    }
    ids
}
