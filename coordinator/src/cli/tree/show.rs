//! `rollout tree show`.

use std::path::PathBuf;

use clap::Args;
use rollout_protocol::exit::ExitCode;

use super::with_search;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::events::sinks::terminal::table;
use crate::results::escape;
use crate::workloads::search::manifest::{SearchManifest, SpendingSummary, StepCalls};
use crate::workloads::search::report::{BestStep, RelativeResults, SearchOverview, TriedIdea};

/// Show a search: its progress, the best path, and the outcome of every idea
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    /// Search directory
    run_dir: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(in crate::cli) async fn show(args: ShowArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let manifest = with_search(args.run_dir, |_, manifest| Ok(manifest)).await?;
    printer.data(&text(&manifest, args.json, printer.out.width)?)?;
    Ok(ExitCode::Success)
}

/// A search as text.
pub(super) fn text(
    manifest: &SearchManifest,
    json: bool,
    width: Option<usize>,
) -> Result<String, CliError> {
    let overview = SearchOverview::from_manifest(manifest);
    if json {
        let text = serde_json::to_string_pretty(&overview)
            .map_err(|error| CliError::failure("cannot write the search as JSON", &error))?;
        return Ok(text + "\n");
    }
    Ok(render(&overview, width))
}

fn render(overview: &SearchOverview, width: Option<usize>) -> String {
    let word = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let ended = overview.stop_reason.and_then(|reason| serde_json::to_value(reason).ok());
    let state = match ended {
        Some(reason) => format!("ended: {}", word(reason)),
        None => format!("at depth {}", overview.current_depth),
    };
    let simulated = if overview.dry_run { " (simulated)" } else { "" };
    let name = escape::line(&overview.tree_run_id).into_owned();
    let mut text = format!(
        "search {name}{simulated}, {state}; {} of {} evals settled, {} nodes\n",
        overview.settled, overview.evals, overview.nodes
    );
    if overview.evals > 0 {
        text.push_str(&format!("evals: {}\n", overview.counts));
    }
    if overview.deferred_cleanup > 0 {
        text.push_str(&format!("{} objects are still to be removed\n", overview.deferred_cleanup));
    }
    let strategy = serde_json::to_value(overview.ideas_context_strategy).unwrap_or_default();
    text.push_str(&format!("ideas shown to generators: {}\n", word(strategy)));
    let best = overview.best_path.iter().map(step).collect();
    let header = [
        "best path",
        "idea",
        "commit",
        "baseline of its ideas",
        "score/root",
        "primary/root",
        "primary/parent",
    ];
    text.push_str(&format!("\n{}\n", table::aligned(&header, best, 4, width)));
    if !overview.ideas.is_empty() {
        ideas(overview, width, &mut text);
    }
    if !overview.spending.is_nothing() {
        spending(overview, width, &mut text);
    }
    text
}

/// The cost of the search, of its depths and of its nodes, and the model calls of its agents.
fn spending(overview: &SearchOverview, width: Option<usize>, text: &mut String) {
    let header = ["cost of", "cost", "calls", "input tokens", "cached", "output tokens"];
    let mut rows = vec![spending_row("search", &overview.spending)];
    for (depth, spending) in overview.spending_by_depth.iter().enumerate() {
        rows.push(spending_row(&format!("depth {depth}"), spending));
    }
    for (node, spending) in &overview.spending_by_node {
        rows.push(spending_row(&format!("node {node}"), spending));
        for calls in &spending.calls {
            let name = format!("- {}", calls.stage.as_str());
            rows.push(calls_row(&name, calls.cost, calls));
        }
    }
    text.push_str(&format!("\n{}\n", table::aligned(&header, rows, 1, width)));
}

fn spending_row(name: &str, spending: &SpendingSummary) -> Vec<String> {
    calls_row(name, spending.cost, &spending.total_calls())
}

fn calls_row(name: &str, cost: f64, calls: &StepCalls) -> Vec<String> {
    let counts = [calls.calls, calls.input_tokens, calls.cached_input_tokens, calls.output_tokens];
    let counts = counts.map(|count| count.to_string());
    [vec![name.to_owned(), format!("{cost:.6}")], counts.to_vec()].concat()
}

/// The tables of all ideas, and the reasons of their outcomes.
fn ideas(overview: &SearchOverview, width: Option<usize>, text: &mut String) {
    let header = [
        "eval",
        "depth",
        "node",
        "idea",
        "outcome",
        "grade/root",
        "explore/root",
        "grade/parent",
        "explore/parent",
        "rank/root",
        "primary/root",
        "primary/parent",
    ];
    let rows = overview.ideas.iter().map(row).collect();
    text.push_str(&format!("\n{}\n", table::aligned(&header, rows, 9, width)));
    let metric = escape::line(&overview.primary_metric);
    text.push_str(&format!(
        "\nroot: relative to the root's results; parent: relative to those of the node that the \
         idea was tried on\nprimary: improvement of {metric}, positive is better\n"
    ));
    let known = overview.ideas.iter().filter_map(|idea| Some((idea, idea.why.as_deref()?)));
    let reasons: Vec<_> = known.map(|(idea, why)| reason(idea, why)).collect();
    if !reasons.is_empty() {
        let header = ["eval", "idea", "reason"];
        text.push_str(&format!("\n{}\n", table::aligned(&header, reasons, 3, width)));
    }
    let header = ["eval", "commit", "baseline/parent", "results"];
    let files = overview.ideas.iter().map(files).collect();
    text.push_str(&format!("\n{}\n", table::aligned(&header, files, 4, width)));
}

fn step(step: &BestStep) -> Vec<String> {
    let idea = step.idea.as_deref().unwrap_or("root");
    let primary = |relative: Option<&RelativeResults>| {
        relative.map_or_else(|| "-".to_owned(), |relative| relative.cells()[2].clone())
    };
    vec![
        step.node_id.to_string(),
        escape::line(idea).into_owned(),
        short(Some(&step.commit)),
        escape::line(&step.baseline_csv_path).into_owned(),
        number(step.rank_score),
        primary(step.root_relative.as_ref()),
        primary(step.parent_relative.as_ref()),
    ]
}

fn row(idea: &TriedIdea) -> Vec<String> {
    let [root_grade, root_explore, root_primary] = idea.root_relative.cells();
    let [parent_grade, parent_explore, parent_primary] = idea.parent_relative.cells();
    vec![
        idea.eval_id.to_string(),
        idea.depth.to_string(),
        idea.parent_node_id.to_string(),
        escape::line(&idea.idea).into_owned(),
        escape::line(&idea.outcome).into_owned(),
        root_grade,
        root_explore,
        parent_grade,
        parent_explore,
        number(idea.rank_score),
        root_primary,
        parent_primary,
    ]
}

fn reason(idea: &TriedIdea, why: &str) -> Vec<String> {
    let name = escape::line(&idea.idea).into_owned();
    vec![idea.eval_id.to_string(), name, escape::line(why).into_owned()]
}

fn files(idea: &TriedIdea) -> Vec<String> {
    let results = idea.candidate_csv_path.as_deref().unwrap_or("-");
    vec![
        idea.eval_id.to_string(),
        short(idea.commit.as_deref()),
        escape::line(&idea.parent_relative.baseline_csv_path).into_owned(),
        escape::line(results).into_owned(),
    ]
}

/// The first 12 characters of a commit id.
fn short(commit: Option<&str>) -> String {
    escape::line(commit.unwrap_or("-")).chars().take(12).collect()
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.6}"))
}
