//! Final summary of a run as text: a table of agents, the metrics, failures by type.

use std::path::Path;
use std::time::Duration;

use rollout_protocol::spec::metric::MetricKind;

use super::format::{cost, duration, number_or_dash, percent, plural};
use super::score;
use super::style::Style;
use super::table;
use crate::events::RunReport;
use crate::results::escape;
use crate::results::files::layout;
use crate::results::report::{AgentSummary, JobResult, KeyFigures, OrderedMap};

/// Renders the result. `run_dir` is the directory of its files.
pub fn render(report: &RunReport, result: &JobResult, run_dir: &Path, style: Style) -> String {
    let path = run_dir.join(layout::RESULT).to_string_lossy().into_owned();
    render_with(report, result, (run_dir, &path), style)
}

/// Renders the result of a run on a server, whose files are at `url`.
pub fn render_hosted(report: &RunReport, result: &JobResult, url: &str, style: Style) -> String {
    render_with(report, result, (Path::new(url), url), style)
}

fn render_with(
    report: &RunReport,
    result: &JobResult,
    (run_dir, place): (&Path, &str),
    style: Style,
) -> String {
    let mut text = String::new();
    let mut line = |content: String| {
        text.push_str(content.trim_end());
        text.push('\n');
    };
    line(style.heading(&style.wrapped(&counts(result))));
    for score in score::headline(result) {
        line(style.wrapped(&score));
    }
    let warnings = score::format_doubt(result).into_iter().chain(score::unreachable(result));
    let warnings = warnings.chain(score::without_reward(result));
    let warnings = warnings.chain(score::without_token_ids(result));
    for warning in warnings.chain(score::not_installed(result)) {
        line(style.wrapped(&warning));
    }
    line(String::new());
    line(agents(result, style));
    if needs_metrics(result) {
        line(String::new());
        line(metrics(result, style));
    }
    if !result.metrics.rewards.0.is_empty() {
        line(String::new());
        line(keys(result, style));
    }
    if !report.failures.is_empty() {
        line(String::new());
        line("Failures".to_owned());
        line(failures(report, run_dir, style));
    }
    line(String::new());
    line(results(&escape::line(place), style));
    text
}

/// Where the results are: a place that does not fit beside the word is a line of its own.
fn results(place: &str, style: Style) -> String {
    let line = format!("Results: {place}");
    let fits = style.width.is_none_or(|width| console::measure_text_width(&line) <= width);
    if fits { line } else { format!("Results:\n  {place}") }
}

fn counts(result: &JobResult) -> String {
    let time = Duration::try_from_secs_f64(result.total_duration_sec).unwrap_or_default();
    let beside = [
        (result.completed_with_error_trials, "with an error"),
        (result.headline.completed_with_unverified_step_trials, "with an unverified step"),
    ];
    let beside: Vec<String> = (beside.iter().filter(|(count, _)| *count > 0))
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let beside =
        if beside.is_empty() { String::new() } else { format!(" ({})", beside.join(", ")) };
    let mut counts = vec![format!("{} completed{beside}", result.completed_trials)];
    if result.failed_trials > 0 {
        let headline = &result.headline;
        let early = headline.task_failures_before_agent;
        counts.push(score::failed(result.failed_trials, &headline.failures, early));
    }
    for (count, word) in [
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

/// A column of the table of agents: title, whether it is shown, and its value. Failed trials that
/// do not count have additional columns.
type AgentColumn = (&'static str, bool, fn(&AgentSummary) -> String);

fn agents(result: &JobResult, style: Style) -> String {
    let failures = &result.headline.failures;
    let differs = score::has_own_completed_score(result);
    let early = result.headline.task_failures_before_agent;
    let doubts = result.headline.format_doubt_trials;
    let columns: [AgentColumn; 18] = [
        ("trials", true, |a| a.total_trials.to_string()),
        ("completed", true, |a| a.completed_trials.to_string()),
        ("failed", true, |a| a.failed_trials.to_string()),
        ("infrastructure", failures.infrastructure > 0, |a| {
            a.headline.failures.infrastructure.to_string()
        }),
        ("task before agent", early > 0, |a| a.headline.task_failures_before_agent.to_string()),
        ("unsupported", failures.unsupported > 0, |a| a.headline.failures.unsupported.to_string()),
        ("cancelled", result.cancelled_trials > 0, |a| a.cancelled_trials.to_string()),
        ("unverified", result.unverified_trials > 0, |a| a.unverified_trials.to_string()),
        ("skipped", result.skipped_trials > 0, |a| a.skipped_trials.to_string()),
        ("format in doubt", doubts > 0, |a| a.headline.format_doubt_trials.to_string()),
        ("passed", true, |a| format!("{}/{}", a.headline.scored.passed, a.headline.scored.trials)),
        ("pass rate", true, |a| percent(a.headline.scored.pass_rate)),
        ("mean reward", true, |a| number_or_dash(a.headline.scored.mean_reward)),
        ("completed: pass rate", differs, |a| percent(a.pass_rate)),
        ("mean", differs, |a| number_or_dash(a.mean_reward)),
        ("model calls", result.model_use.calls > 0, |a| a.model_use.calls.to_string()),
        ("tokens", result.model_use.tokens > 0, |a| a.model_use.tokens.to_string()),
        ("cost", result.total_cost.is_none_or(|cost| cost > 0.0), |a| {
            cost(a.total_cost, a.model_use.unpriced_calls)
        }),
    ];
    let shown: Vec<&AgentColumn> = columns.iter().filter(|(_, shown, _)| *shown).collect();
    let header: Vec<&str> =
        std::iter::once("agent").chain(shown.iter().map(|(title, ..)| *title)).collect();
    let rows = result.agents.0.iter().map(|(name, agent)| {
        std::iter::once(escape::line(name).into_owned())
            .chain(shown.iter().map(|(.., value)| value(agent)))
            .collect()
    });
    table::aligned(&header, rows.collect(), 1, style.width)
}

/// Whether the job requests metrics other than the mean, which the table of agents shows already.
fn needs_metrics(result: &JobResult) -> bool {
    match &result.metrics.overall.0[..] {
        [] => false,
        [(kind, _)] => kind != MetricKind::Mean.as_str(),
        _ => true,
    }
}

fn metrics(result: &JobResult, style: Style) -> String {
    let values = |metrics: &OrderedMap<Option<f64>>| -> Vec<String> {
        metrics.0.iter().map(|(_, value)| number_or_dash(*value)).collect()
    };
    let kinds = result.metrics.overall.0.iter().map(|(kind, _)| kind.as_str());
    let header: Vec<&str> = std::iter::once("reward of completed").chain(kinds).collect();
    let row = |name: String, metrics| std::iter::once(name).chain(values(metrics)).collect();
    let mut rows: Vec<Vec<String>> = (result.metrics.agents.0.iter())
        .map(|(name, metrics)| row(escape::line(name).into_owned(), metrics))
        .collect();
    if rows.len() != 1 {
        rows.push(row("all agents".to_owned(), &result.metrics.overall));
    }
    table::aligned(&header, rows, 1, style.width)
}

/// The metrics of each reward key of verifiers that report several numbers.
fn keys(result: &JobResult, style: Style) -> String {
    let keys = &result.metrics.rewards.0;
    let kinds = keys.iter().take(1).flat_map(|(_, key)| &key.overall.values.0);
    let kinds = kinds.map(|(kind, _)| kind.as_str());
    let header: Vec<&str> = ["reward key", "agent", "trials"].into_iter().chain(kinds).collect();
    let row = |key: &str, agent: &str, figures: &KeyFigures| -> Vec<String> {
        let values = figures.values.0.iter().map(|(_, value)| number_or_dash(*value));
        [escape::line(key).into_owned(), escape::line(agent).into_owned()]
            .into_iter()
            .chain([figures.trials.to_string()])
            .chain(values)
            .collect()
    };
    let mut rows = Vec::new();
    for (key, metrics) in keys {
        rows.extend(metrics.agents.0.iter().map(|(agent, figures)| row(key, agent, figures)));
        if metrics.agents.0.len() != 1 {
            rows.push(row(key, "all agents", &metrics.overall));
        }
    }
    table::aligned(&header, rows, 2, style.width)
}

fn failures(report: &RunReport, run_dir: &Path, style: Style) -> String {
    let rows = report.failures.iter().map(|group| {
        let example = if report.has_trial_files {
            let path = layout::trial_dir(run_dir, &group.example).join(layout::ERROR);
            path.to_string_lossy().into_owned()
        } else {
            group.example.to_string()
        };
        let example = escape::line(&example).into_owned();
        let (kind, failure) = (group.kind.as_str(), group.failure.as_str());
        vec![group.count.to_string(), kind.to_owned(), failure.to_owned(), example]
    });
    table::with_places(rows.collect(), style.width)
}
