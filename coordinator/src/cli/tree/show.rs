//! `rollout tree show`.

use std::path::PathBuf;

use clap::Args;
use rollout_protocol::exit::ExitCode;

use super::with_search;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::report::escape;
use crate::report::terminal::table;
use crate::tree::manifest::Manifest;
use crate::tree::report::{BestStep, Overview, TriedIdea};

/// Show a search: how far it is, the best path, and what came of every idea
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    /// The directory of the search
    run_dir: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(in crate::cli) async fn show(args: ShowArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let manifest = with_search(args.run_dir, |_, manifest| Ok(manifest)).await?;
    printer.data(&text(&manifest, args.json)?)?;
    Ok(ExitCode::Success)
}

/// A search as text.
pub(super) fn text(manifest: &Manifest, json: bool) -> Result<String, CliError> {
    let overview = Overview::of(manifest);
    if json {
        let text = serde_json::to_string_pretty(&overview)
            .map_err(|error| CliError::failure("the search has no JSON form", &error))?;
        return Ok(text + "\n");
    }
    Ok(shown(&overview))
}

fn shown(overview: &Overview) -> String {
    let word = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let ended = overview.stop_reason.and_then(|reason| serde_json::to_value(reason).ok());
    let state = match ended {
        Some(reason) => format!("ended: {}", word(reason)),
        None => format!("at depth {}", overview.current_depth),
    };
    let played = if overview.dry_run { " (played)" } else { "" };
    let name = escape::line(&overview.tree_run_id).into_owned();
    let mut text = format!(
        "search {name}{played}, {state}; {} of {} evals settled, {} nodes\n",
        overview.settled, overview.evals, overview.nodes
    );
    if overview.deferred_cleanup > 0 {
        text.push_str(&format!("{} things are still to be removed\n", overview.deferred_cleanup));
    }
    let best = overview.best_path.iter().map(step).collect();
    let header = ["best path", "idea", "commit", "score", "primary"];
    text.push_str(&format!("\n{}\n", table::aligned(&header, best, 3)));
    if !overview.ideas.is_empty() {
        let header = ["eval", "depth", "node", "idea", "grade", "outcome", "score", "primary"];
        let rows = overview.ideas.iter().map(row).collect();
        text.push_str(&format!("\n{}\n", table::aligned(&header, rows, 6)));
    }
    text
}

fn step(step: &BestStep) -> Vec<String> {
    let idea = step.idea.as_deref().unwrap_or("root");
    vec![
        step.node_id.to_string(),
        escape::line(idea).into_owned(),
        escape::line(&step.commit).chars().take(12).collect(),
        number(step.score),
        number(step.primary_delta),
    ]
}

fn row(idea: &TriedIdea) -> Vec<String> {
    vec![
        idea.eval_id.to_string(),
        idea.depth.to_string(),
        idea.parent_node_id.to_string(),
        escape::line(&idea.idea).into_owned(),
        idea.grade.map_or_else(|| "-".to_owned(), |grade| grade.to_string()),
        idea.outcome.clone(),
        number(idea.rank_score),
        number(idea.primary_delta),
    ]
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.6}"))
}
