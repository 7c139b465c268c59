//! `TREE_SUMMARY.md`: what the search was, what came of every idea, and the way to the best node.

use std::fmt::Write as _;

use super::super::manifest::{Eval, EvalStatus, Manifest};
use super::best::{best_path, standing};
use super::{idea_name, number, verdict};
use crate::report::escape;

/// The summary as Markdown.
pub fn summary(manifest: &Manifest) -> String {
    let mut text = format!("# Search {}\n\n", cell(&manifest.tree_run_id));
    config(manifest, &mut text);
    way(manifest, &mut text);
    let depths = manifest.evaluations.values().map(|eval| eval.depth).max();
    for depth in depths.map(|last| 0..=last).into_iter().flatten() {
        table(manifest, depth, &mut text);
    }
    cleanup(manifest, &mut text);
    text
}

fn config(manifest: &Manifest, text: &mut String) {
    let config = &manifest.run_config;
    let rows = match config.sweep_config_limit {
        Some(limit) => format!("exactly the {limit} configurations, all with success"),
        None => {
            let (least, rate) = (config.min_candidate_rows, config.min_ok_rate);
            format!("at least {least} rows, a share of {rate} with success")
        }
    };
    let state = &manifest.state;
    let ended = match (state.stopped, state.stop_reason) {
        (true, Some(reason)) => serde_json::to_value(reason).ok(),
        _ => None,
    };
    let ended = ended.as_ref().and_then(|value| value.as_str()).unwrap_or("not yet");
    let scope = serde_json::to_value(config.dedupe_scope).ok();
    let scope = scope.as_ref().and_then(|value| value.as_str()).unwrap_or_default();
    let lines = [
        format!("ideas per node: {}", config.ideas_per_node),
        format!("depth: {}", config.max_depth),
        format!("beam width: {}", config.beam_width),
        format!("most evals: {}", bound(config.max_total_idea_evals)),
        format!("most seconds of evals: {}", bound(config.budget_seconds)),
        format!("most cost: {}", bound(config.budget_cost)),
        format!("further tries of failed evals: {}", config.eval_retries),
        format!("ideas may not repeat others of: {}", cell(scope)),
        format!("a sweep is complete with: {rows}"),
        format!("profile: {}", cell(&config.scoring_profile.name)),
        format!("root: `{}`", cell(&manifest.root.root_commit)),
        format!("evals: {}, nodes: {}", manifest.evaluations.len(), manifest.nodes.len()),
        format!("ended: {ended}"),
    ];
    for line in lines {
        let _infallible = writeln!(text, "* {line}");
    }
}

fn bound<T: ToString>(bound: Option<T>) -> String {
    bound.map_or_else(|| "none".to_owned(), |bound| bound.to_string())
}

fn way(manifest: &Manifest, text: &mut String) {
    text.push_str(
        "\n## Best path\n\n| node | score | idea | commit | reference |\n| --- | --- | --- | --- | --- |\n",
    );
    for id in best_path(manifest) {
        let node = manifest.node(id);
        let idea = node.idea_chain.last().map_or("root", |path| idea_name(path));
        let score = number(standing(manifest, id).map(|(score, _)| score));
        let [idea, commit, name] = [idea, &node.commit, &node.ref_name].map(cell);
        let _infallible = writeln!(text, "| {id} | {score} | {idea} | `{commit}` | {name} |");
    }
}

fn table(manifest: &Manifest, depth: u32, text: &mut String) {
    let _infallible = writeln!(
        text,
        "\n## Depth {depth}\n\n| eval | parent | idea | rank | grade | explore | primary | rows ok | \
         rows used | outcome | results | reference | experiment |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for (_, eval) in manifest.evals_at(depth) {
        text.push_str(&row(manifest, eval));
    }
    for id in manifest.state.expanded_node_ids_by_depth.get(&depth).into_iter().flatten() {
        for skipped in &manifest.node(*id).dedupe.skipped {
            let (path, other) = (cell(&skipped.path), cell(&skipped.repeats));
            let _infallible = writeln!(text, "\n{path} was left out: it repeats {other}.");
        }
    }
}

fn row(manifest: &Manifest, eval: &Eval) -> String {
    let parent = eval.parent_relative.as_ref();
    let summary = parent.and_then(|view| view.recommendation_summary.as_ref());
    let rank = eval.decision.as_ref().and_then(|decision| decision.rank_score);
    let rows = eval.strict_completeness.map_or_else(
        || "-".to_owned(),
        |rows| match rows.expected_count {
            Some(expected) => format!("{}/{expected}", rows.ok_count),
            None => format!("{}/{}", rows.ok_count, rows.ok_count + rows.error_count),
        },
    );
    let cells = [
        eval.eval_id.to_string(),
        eval.parent_node_id.to_string(),
        cell(idea_name(&eval.idea_path)),
        number(rank),
        summary.map_or_else(|| "-".to_owned(), |summary| summary.grade.to_string()),
        summary.map_or_else(|| "-".to_owned(), |summary| summary.should_explore.to_string()),
        number(parent.and_then(|view| view.primary_delta)),
        rows,
        parent.map_or_else(|| "-".to_owned(), |view| view.candidate_rows_used.to_string()),
        verdict(eval),
        eval.candidate_results_csv_path.as_deref().map_or_else(|| "-".to_owned(), cell),
        reference(manifest, eval).map_or_else(|| "-".to_owned(), cell),
        experiment(manifest, eval),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// The reference that keeps what an eval came to, if there is one: the node's, or its own.
fn reference<'a>(manifest: &'a Manifest, eval: &'a Eval) -> Option<&'a str> {
    match eval.decision.as_ref().map(|decision| decision.promoted_to_node_id) {
        Some(Some(node)) => Some(&manifest.node(node).ref_name),
        Some(None) if !manifest.run_config.keep_rejected_worktrees => None,
        _ => eval.candidate_ref_name.as_deref(),
    }
}

/// A link to the logs and outputs of an eval, if they are there.
fn experiment(manifest: &Manifest, eval: &Eval) -> String {
    let keeps = eval.status != EvalStatus::Failed || manifest.run_config.keep_failed_artifacts;
    if !eval.status.is_settled() || !keeps {
        return "-".to_owned();
    }
    format!("[logs and outputs]({})", target(&eval.experiment_dir))
}

/// A path below the run's directory as the target of a link.
fn target(path: &str) -> String {
    let mut target = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                target.push(char::from(byte));
            }
            other => {
                let _infallible = write!(target, "%{other:02X}");
            }
        }
    }
    target
}

fn cleanup(manifest: &Manifest, text: &mut String) {
    let waiting = &manifest.state.deferred_cleanup;
    if waiting.is_empty() {
        return;
    }
    text.push_str("\n## To be removed\n\n");
    for item in waiting {
        let (path, reason) = (cell(&item.path), cell(&item.reason));
        let _infallible = writeln!(text, "* {path}: {reason} ({} attempts)", item.attempts);
    }
}

/// Text that stays in its cell.
pub(crate) fn cell(text: &str) -> String {
    let line = escape::line(text);
    let mut safe = String::with_capacity(line.len());
    for c in line.chars() {
        if matches!(c, '|' | '`' | '<' | '>' | '*' | '_' | '[' | ']' | '\\' | '&' | '#') {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}
