//! Rendering of a job's progress as lines of text: pure.

use std::time::{Duration, Instant};

use rollout_protocol::farm::SampleKey;
use rollout_protocol::item_name::{EvalName, IdeasName, ItemName};
use rollout_protocol::spec::metric::MetricKind;

use super::format::{bar, cost, duration, fit, number, plural, rate};
use super::job_view::JobView;
use super::run_view::RunView;
use super::score;
use crate::events::running::RunningExecution;
use crate::results::escape;

/// Maximum number of running trials shown.
const MAX_RUNNING_LINES: usize = 12;

/// Width of the bar in columns.
pub(super) const BAR_WIDTH: usize = 24;

/// The live region: a bar with counts, the totals so far, and a line per running trial. Lines have
/// at most `width` columns; their number fits `height`.
pub(super) fn live(view: &JobView, now: Instant, width: usize, height: usize) -> Vec<String> {
    let (done, total) = (view.stats.overall().settled(), view.stats.total());
    let mut lines = vec![
        format!("{} {} {done}/{total}  {}", view.job, bar(done, total, BAR_WIDTH), counts(view)),
        format!("  {}", totals(view, now).join(" · ")),
    ];
    lines.extend(running(&view.run, now, height.saturating_sub(lines.len() + 2)));
    lines.iter().map(|line| fit(line, width)).collect()
}

/// A line per running execution, the oldest first: at most `room` lines plus one that counts the
/// rest.
pub(super) fn running(run: &RunView, now: Instant, max_lines: usize) -> Vec<String> {
    let mut running: Vec<(&RunningExecution, String)> =
        run.running.values().map(|running| (running, label(&running.name))).collect();
    running.sort_by(|a, b| a.0.started_at.cmp(&b.0.started_at).then_with(|| a.1.cmp(&b.1)));
    let room = MAX_RUNNING_LINES.min(max_lines);
    let hidden = running.len().saturating_sub(room);
    let shown = running.iter().take(room);
    let mut lines: Vec<String> = shown.map(|(running, name)| line_of(running, name, now)).collect();
    if hidden > 0 && room > 0 {
        lines.push(format!("  and {hidden} more"));
    }
    lines
}

/// The progress in one line, for outputs that are not terminals.
pub(super) fn plain(view: &JobView, now: Instant) -> String {
    let (done, total) = (view.stats.overall().settled(), view.stats.total());
    let mut line = format!("{done}/{}: {}", plural(total, "trial"), counts(view));
    for part in totals(view, now) {
        line.push_str("; ");
        line.push_str(&part);
    }
    line
}

/// Counts by outcome, without zeros except for the completed trials.
fn counts(view: &JobView) -> String {
    let tally = view.stats.overall();
    let counts = [
        (tally.completed, "completed"),
        (tally.failed, "failed"),
        (tally.cancelled, "cancelled"),
        (tally.unverified, "unverified"),
        (view.run.running.len() as u64, "running"),
    ];
    let text = |count: u64, word: &str| match word {
        "failed" => score::failed(count, &tally.failures, tally.before_agent),
        _ => format!("{count} {word}"),
    };
    let shown: Vec<String> = (counts.iter().enumerate())
        .filter(|(at, (count, _))| *at == 0 && tally.unverified == 0 || *count > 0)
        .map(|(_, (count, word))| text(*count, word))
        .collect();
    shown.join(", ")
}

fn totals(view: &JobView, now: Instant) -> Vec<String> {
    let tally = view.stats.overall();
    let mut parts = Vec::new();
    let headline = tally.score();
    if headline.trials > 0 {
        parts.push(score::passed(headline.passed, headline.trials, headline.pass_rate()));
    }
    for kind in &view.metrics {
        // Failures have no reward: only the mean includes them, as 0.
        let value = match kind {
            MetricKind::Mean => headline.mean_reward,
            MetricKind::Sum | MetricKind::Min | MetricKind::Max => tally.rewards.metric(*kind),
        };
        if let Some(value) = value {
            parts.push(format!("{kind} {}", number(value)));
        }
    }
    let unpriced = tally.model_use.unpriced_calls;
    let known = tally.known_cost();
    if known.is_none_or(|known| known > 0.0) {
        parts.push(format!("cost {}", cost(known, unpriced)));
    }
    if view.run.retries > 0 {
        parts.push(if view.run.retries == 1 {
            "1 retry".to_owned()
        } else {
            format!("{} retries", view.run.retries)
        });
    }
    let elapsed = view.run.elapsed(now);
    parts.extend(rate(view.settled_in_session, elapsed));
    parts.push(duration(elapsed));
    if view.run.waiting_for_worker > 0 {
        parts.push(format!("{} waiting for a worker that fits", view.run.waiting_for_worker));
    }
    if view.run.paused {
        parts.push("paused".to_owned());
    }
    if view.run.stopping.is_some() {
        parts.push("stopping".to_owned());
    } else {
        parts.extend(time_left(view, elapsed).map(|left| format!("about {} left", duration(left))));
    }
    parts
}

/// Remaining time, extrapolated from this session's rate.
fn time_left(view: &JobView, elapsed: Duration) -> Option<Duration> {
    let pending = view.stats.pending();
    if pending == 0 || view.settled_in_session == 0 {
        return None;
    }
    let seconds = elapsed.as_secs_f64() * pending as f64 / view.settled_in_session as f64;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The name of an item, without its run.
pub(super) fn label(name: &ItemName) -> String {
    let attempt_suffix = |attempt: u32| match attempt {
        0 | 1 => String::new(),
        n => format!(", attempt {n}"),
    };
    match name {
        ItemName::Trial(trial) => trial.to_string(),
        ItemName::Eval(EvalName { node, eval, attempt, .. }) => {
            format!("eval {eval} of node {node}{}", attempt_suffix(*attempt))
        }
        ItemName::Ideas(IdeasName { node, attempt, .. }) => {
            format!("ideas of node {node}{}", attempt_suffix(*attempt))
        }
        ItemName::Rollout(SampleKey { group, index, generation, .. }) => {
            format!("sample {index} of {group}, generation {generation}")
        }
    }
}

fn line_of(running: &RunningExecution, name: &str, now: Instant) -> String {
    let time = duration(now.saturating_duration_since(running.started_at));
    let try_suffix = match running.try_number {
        0 | 1 => String::new(),
        n => format!(" (try {n})"),
    };
    let (state, waiting_suffix) = match running.waiting_for {
        Some(on) => ("parked", format!(" (waiting for {on})")),
        None => (running.phase.as_str(), String::new()),
    };
    format!("  {state:<17} {time:>7}  {}{try_suffix}{waiting_suffix}", escape::line(name))
}
