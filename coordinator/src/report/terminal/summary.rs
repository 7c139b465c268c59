//! The end of a run as text: a table of agents, the metrics, failures by type.

use std::path::Path;
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use rollout_protocol::error::ErrorType;

use super::format::{duration, number, number_or_dash, percent, plural};
use super::style::Style;
use crate::report::files::layout;
use crate::report::job::{AgentSummary, InOrder, JobResult};
use crate::report::{Report, escape};

/// Renders the result. `run_dir` is where its files are.
pub fn render(report: &Report, result: &JobResult, run_dir: &Path, style: Style) -> String {
    let mut text = String::new();
    let mut line = |content: String| {
        text.push_str(content.trim_end());
        text.push('\n');
    };
    line(style.strong(&headline(result)));
    line(String::new());
    line(agents(result));
    if !result.metrics.overall.0.is_empty() {
        line(String::new());
        line(metrics(result));
    }
    if !report.failures.is_empty() {
        line(String::new());
        line("Failures".to_owned());
        line(failures(report, run_dir, report.has_trial_files));
    }
    line(String::new());
    let path = run_dir.join(layout::RESULT).to_string_lossy().into_owned();
    line(format!("Results: {}", escape::line(&path)));
    text
}

fn headline(result: &JobResult) -> String {
    let time = Duration::try_from_secs_f64(result.total_duration_sec).unwrap_or_default();
    let mut counts = vec![format!("{} completed", result.completed_trials)];
    for (count, word) in [
        (result.failed_trials, "failed"),
        (result.cancelled_trials, "cancelled"),
        (result.unverified_trials, "unverified"),
        (result.skipped_trials, "skipped"),
    ] {
        if count > 0 {
            counts.push(format!("{count} {word}"));
        }
    }
    let how = if result.cancelled { "stopped after" } else { "done in" };
    let job = escape::line(&result.job_name);
    format!(
        "{job}: {how} {}: {}: {}",
        duration(time),
        plural(result.total_trials, "trial"),
        counts.join(", ")
    )
}

/// A column of the table of agents: title, whether it is shown, and its value.
type Column = (&'static str, bool, fn(&AgentSummary) -> String);

fn agents(result: &JobResult) -> String {
    let columns: [Column; 9] = [
        ("trials", true, |a| a.total_trials.to_string()),
        ("completed", true, |a| a.completed_trials.to_string()),
        ("failed", true, |a| a.failed_trials.to_string()),
        ("cancelled", result.cancelled_trials > 0, |a| a.cancelled_trials.to_string()),
        ("unverified", result.unverified_trials > 0, |a| a.unverified_trials.to_string()),
        ("skipped", result.skipped_trials > 0, |a| a.skipped_trials.to_string()),
        ("pass rate", true, |a| percent(a.pass_rate)),
        ("mean reward", true, |a| number_or_dash(a.mean_reward)),
        ("cost", result.total_cost > 0.0, |a| number(a.total_cost)),
    ];
    let shown: Vec<&Column> = columns.iter().filter(|(_, shown, _)| *shown).collect();
    let header = std::iter::once("agent").chain(shown.iter().map(|(title, ..)| *title));
    let rows = result.agents.0.iter().map(|(name, agent)| {
        std::iter::once(escape::line(name).into_owned())
            .chain(shown.iter().map(|(.., value)| value(agent)))
            .collect()
    });
    aligned(header.map(str::to_owned).collect(), rows.collect())
}

fn metrics(result: &JobResult) -> String {
    let values = |metrics: &InOrder<Option<f64>>| -> Vec<String> {
        metrics.0.iter().map(|(_, value)| number_or_dash(*value)).collect()
    };
    let header = std::iter::once("reward".to_owned())
        .chain(result.metrics.overall.0.iter().map(|(kind, _)| kind.clone()))
        .collect();
    let row = |name: String, metrics| std::iter::once(name).chain(values(metrics)).collect();
    let mut rows: Vec<Vec<String>> = (result.metrics.agents.0.iter())
        .map(|(name, metrics)| row(escape::line(name).into_owned(), metrics))
        .collect();
    if rows.len() != 1 {
        rows.push(row("all agents".to_owned(), &result.metrics.overall));
    }
    aligned(header, rows)
}

fn failures(report: &Report, run_dir: &Path, has_files: bool) -> String {
    let rows = report.failures.iter().map(|group| {
        let example = if has_files {
            let path = layout::trial_dir(run_dir, &group.example).join(layout::ERROR);
            path.to_string_lossy().into_owned()
        } else {
            group.example.to_string()
        };
        let example = escape::line(&example).into_owned();
        vec![ErrorType::as_str(group.kind).to_owned(), group.count.to_string(), example]
    });
    let mut table = table(rows.collect());
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn table(rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// A table whose columns, except the first, are right-aligned under their titles.
fn aligned(header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let mut table = table(rows);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.to_string()
}
