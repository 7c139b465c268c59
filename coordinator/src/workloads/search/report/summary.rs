//! `TREE_SUMMARY.md`: the settings of a search, the outcome of every idea, and the path to the best
//! node.

use std::fmt::Write as _;

use super::super::manifest::{EvalStatus, SearchEval, SearchManifest, StepCalls};
use super::best::{best_path, promoted_from, root_comparison};
use super::outcome::outcome;
use super::overview::OutcomeCounts;
use super::relative::{RelativeResults, signed};
use super::{decision_reason, idea_name, legend, number, serialized_name};
use crate::results::escape;

/// The summary as Markdown.
pub fn summary(manifest: &SearchManifest) -> String {
    let mut text = format!("# Search {}\n\n", cell(&manifest.tree_run_id));
    config(manifest, &mut text);
    let _infallible = writeln!(text, "\n{}", cell(&legend(manifest)));
    write_best_path(manifest, &mut text);
    let depths = manifest.evaluations.values().map(|eval| eval.depth).max();
    for depth in depths.map(|last| 0..=last).into_iter().flatten() {
        let _infallible = writeln!(text, "\n## Depth {depth}");
        scores(manifest, depth, &mut text);
        reasons(manifest, depth, &mut text);
        files(manifest, depth, &mut text);
    }
    spending(manifest, &mut text);
    cleanup(manifest, &mut text);
    text
}

/// The cost of the search and its parts, if it is known.
fn spending(manifest: &SearchManifest, text: &mut String) {
    let whole = manifest.spending();
    if whole.is_nothing() {
        return;
    }
    text.push_str("\n## Cost\n\n");
    write_table_header(&["part", "cost", "calls", "input tokens", "cached", "output tokens"], text);
    let mut row = |name: String, cost: f64, calls: &StepCalls| {
        let counts =
            [calls.calls, calls.input_tokens, calls.cached_input_tokens, calls.output_tokens];
        let counts = counts.map(|count| count.to_string());
        write_table_row(&[&[name, format!("{cost:.6}")], &counts[..]].concat(), text);
    };
    row("search".to_owned(), whole.cost, &whole.total_calls());
    for depth in manifest.depths() {
        let part = manifest.spending_at(depth);
        row(format!("depth {depth}"), part.cost, &part.total_calls());
    }
    for id in manifest.nodes.keys() {
        let part = manifest.spending_of(*id);
        if part.is_nothing() {
            continue;
        }
        row(format!("node {id}"), part.cost, &part.total_calls());
        for calls in &part.calls {
            row(format!("node {id}, {}", calls.stage.as_str()), calls.cost, calls);
        }
    }
}

fn config(manifest: &SearchManifest, text: &mut String) {
    let config = &manifest.run_config;
    let rows = match config.sweep_config_limit {
        Some(limit) => format!("exactly the {limit} configurations, all successful"),
        None => {
            let (least, rate) = (config.min_candidate_rows, config.min_ok_rate);
            format!("at least {least} rows, a share of {rate} successful")
        }
    };
    let state = &manifest.state;
    let ended = state.stop_reason.filter(|_| state.stopped);
    let ended = ended.map_or_else(|| "not yet".to_owned(), serialized_name);
    let profile = &config.scoring_profile;
    let lines = [
        format!("ideas per node: {}", config.ideas_per_node),
        format!("depth: {}", config.max_depth),
        format!("beam width: {}", config.beam_width),
        format!("maximum evals: {}", bound(config.max_total_idea_evals)),
        format!("maximum seconds of evals: {}", bound(config.budget_seconds)),
        format!("maximum cost: {}", bound(config.budget_cost)),
        format!("maximum cost of a depth: {}", bound(config.budget_depth_cost)),
        format!("retries of failed evals: {}", config.eval_retries),
        format!("ideas must not repeat others of: {}", cell(&serialized_name(config.dedupe_scope))),
        format!("ideas shown to a generator: {}", serialized_name(config.ideas_context_strategy)),
        format!("a sweep is complete with: {rows}"),
        format!(
            "profile: {}, primary metric {}",
            cell(&profile.name),
            cell(&profile.primary.column)
        ),
        format!("root: `{}`", cell(&manifest.root.root_commit)),
        format!("baseline of the root: {}", path(&manifest.root.root_baseline_csv_path)),
        format!(
            "evals: {}; nodes: {}",
            OutcomeCounts::from_manifest(manifest),
            manifest.nodes.len()
        ),
        format!("ended: {ended}"),
    ];
    for line in lines {
        let _infallible = writeln!(text, "* {line}");
    }
}

fn bound<T: ToString>(bound: Option<T>) -> String {
    bound.map_or_else(|| "none".to_owned(), |bound| bound.to_string())
}

fn write_best_path(manifest: &SearchManifest, text: &mut String) {
    text.push_str("\n## Best path\n\n");
    write_table_header(
        &[
            "node",
            "idea",
            "score (root)",
            "primary (root)",
            "primary (parent)",
            "commit",
            "reference",
            "baseline of its ideas",
        ],
        text,
    );
    for id in best_path(manifest) {
        let node = manifest.node(id);
        let idea = node.idea_chain.last().map_or("root", |path| idea_name(path));
        let root = root_comparison(manifest, id);
        let parent = promoted_from(manifest, id).and_then(|eval| eval.parent_relative.as_ref());
        let cells = [
            id.to_string(),
            cell(idea),
            number(root.map(|(score, _)| score)),
            signed(root.and_then(|(_, delta)| delta)),
            signed(parent.and_then(|view| view.primary_delta)),
            format!("`{}`", cell(&node.commit)),
            cell(&node.ref_name),
            path(&node.baseline_results_csv_path),
        ];
        write_table_row(&cells, text);
    }
}

fn write_table_header(names: &[&str], text: &mut String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    write_table_row(&names, text);
    write_table_row(&vec!["---".to_owned(); names.len()], text);
}

fn write_table_row(cells: &[String], text: &mut String) {
    let _infallible = writeln!(text, "| {} |", cells.join(" | "));
}

/// The numbers of the evals of a depth, compared with both baselines.
fn scores(manifest: &SearchManifest, depth: u32, text: &mut String) {
    text.push('\n');
    write_table_header(
        &[
            "eval",
            "parent",
            "idea",
            "outcome",
            "rank (root)",
            "grade (root)",
            "explore (root)",
            "primary (root)",
            "grade (parent)",
            "explore (parent)",
            "primary (parent)",
            "rows ok",
            "rows used",
        ],
        text,
    );
    for (_, eval) in manifest.evals_at(depth) {
        let rank = eval.decision.as_ref().and_then(|decision| decision.rank_score);
        let first = [
            eval.eval_id.to_string(),
            eval.parent_node_id.to_string(),
            cell(idea_name(&eval.idea_path)),
            outcome(eval),
            number(rank),
        ];
        let root = RelativeResults::to_root(manifest, eval).cells();
        let parent = RelativeResults::to_parent(manifest, eval).cells();
        let used = eval.parent_relative.as_ref().map(|view| view.candidate_rows_used.to_string());
        let last = [rows(eval), used.unwrap_or_else(absent)];
        write_table_row(&[&first[..], &root, &parent, &last].concat(), text);
    }
}

fn absent() -> String {
    "-".to_owned()
}

fn rows(eval: &SearchEval) -> String {
    eval.strict_completeness.map_or_else(absent, |rows| {
        let all = rows.expected_count.unwrap_or(rows.ok_count + rows.error_count);
        format!("{}/{all}", rows.ok_count)
    })
}

/// The reasons of the decisions of a depth.
fn reasons(manifest: &SearchManifest, depth: u32, text: &mut String) {
    let evals = manifest.evals_at(depth);
    let known: Vec<_> =
        evals.filter_map(|(_, e)| Some((e, decision_reason(manifest, e)?))).collect();
    if !known.is_empty() {
        text.push_str("\nReasons:\n\n");
    }
    for (eval, why) in known {
        let (id, idea) = (eval.eval_id, cell(idea_name(&eval.idea_path)));
        let reason = eval.decision.as_ref().and_then(|decision| decision.promotion_reason);
        let reason = reason.map(|reason| format!("{reason}: ")).unwrap_or_default();
        let _infallible = writeln!(text, "* {id} {idea}: {reason}{}", cell(&why));
    }
    for id in manifest.state.expanded_node_ids_by_depth.get(&depth).into_iter().flatten() {
        for skipped in &manifest.node(*id).dedupe.skipped {
            let (path, other) = (cell(&skipped.path), cell(&skipped.repeats));
            let _infallible = writeln!(text, "\n{path} was skipped: it repeats {other}.");
        }
    }
}

/// Commits and files of the evals of a depth.
fn files(manifest: &SearchManifest, depth: u32, text: &mut String) {
    text.push('\n');
    write_table_header(
        &["eval", "commit", "reference", "baseline (parent)", "results", "logs and outputs"],
        text,
    );
    for (_, eval) in manifest.evals_at(depth) {
        let cells = [
            eval.eval_id.to_string(),
            eval.candidate_commit
                .as_deref()
                .map_or_else(absent, |commit| format!("`{}`", cell(commit))),
            commit_reference(manifest, eval).map_or_else(absent, cell),
            path(&manifest.node(eval.parent_node_id).baseline_results_csv_path),
            eval.candidate_results_csv_path.as_deref().map_or_else(absent, path),
            experiment(manifest, eval),
        ];
        write_table_row(&cells, text);
    }
}

/// The reference that holds the commit of an eval, if there is one: the node's, or its own.
fn commit_reference<'a>(manifest: &'a SearchManifest, eval: &'a SearchEval) -> Option<&'a str> {
    match eval.decision.as_ref().map(|decision| decision.promoted_to_node_id) {
        Some(Some(node)) => Some(&manifest.node(node).ref_name),
        Some(None) if !manifest.run_config.keep_rejected_worktrees => None,
        _ => eval.candidate_ref_name.as_deref(),
    }
}

/// A link to the logs and outputs of an eval, if they exist.
fn experiment(manifest: &SearchManifest, eval: &SearchEval) -> String {
    let keeps = eval.status != EvalStatus::Failed || manifest.run_config.keep_failed_artifacts;
    if !eval.status.is_settled() || !keeps {
        return absent();
    }
    eval.experiment_dir.as_deref().map_or_else(absent, path)
}

/// A path below the run's directory, as a link.
fn path(path: &str) -> String {
    format!("[{}]({})", cell(path), target(path))
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

fn cleanup(manifest: &SearchManifest, text: &mut String) {
    let waiting = &manifest.state.deferred_cleanup;
    if waiting.is_empty() {
        return;
    }
    text.push_str("\n## Pending removals\n\n");
    for item in waiting {
        let (path, reason) = (cell(&item.path), cell(&item.reason));
        let _infallible = writeln!(text, "* {path}: {reason} ({} attempts)", item.attempts);
    }
}

/// Text escaped for a table cell.
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
