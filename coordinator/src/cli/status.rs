//! `rollout status`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rollout_protocol::event::WaitingItems;
use rollout_protocol::exit::ExitCode;
use serde::Serialize;

use super::error::CliError;
use super::hint_command::{self, HintedRun, RunAction};
use super::invocation::Invocation;
use super::left_out::LeftOutOption;
use super::output::{Printer, quoted};
use super::remote_api::{self, RunUrl};
use super::run_place::{CatalogAddress, RunPlace};
use crate::config::local_time;
use crate::events::sinks::terminal::format::{self, duration};
use crate::events::sinks::terminal::{score, table};
use crate::results::escape;
use crate::results::metrics::FailureParty;
use crate::results::view::{OwnerView, RunKind, RunStatus, RunViewState};

/// Show the state of a run: progress, results so far, owner, and how to resume it
///
/// Works while the run is live in another process, after it was stopped or killed, and when it is
/// finished. Only reads: takes no lock and writes nothing.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Run directory, of a job or a search; a run in a catalog: `s3://bucket/prefix#RUN`; or a run
    /// on a server: `nats://host:4222#RUN`, `http://host:4280/v1/runs/ID`
    run_dir: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The status, and how to resume the run.
#[derive(Debug, Serialize)]
struct StatusDocument {
    #[serde(flatten)]
    status: RunStatus,
    /// `None` unless items are pending and no owner may be alive.
    resume: Option<ResumeCommand>,
}

/// The command that resumes a run: the one that it was started with, which names it; or that of a
/// run in a catalog.
#[derive(Debug, Serialize)]
struct ResumeCommand {
    /// Its working directory; `null` for any.
    directory: Option<PathBuf>,
    /// Program and arguments.
    command: Vec<String>,
    /// Options to add: their values may be secrets and are not stored.
    left_out: Vec<LeftOutOption>,
}

/// Runs the command.
pub(super) async fn run(args: &StatusArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    if let Some(run) = RunUrl::parse(&args.run_dir.to_string_lossy())? {
        return remote_api::status(&run, args.json, printer).await;
    }
    let place = RunPlace::open(&args.run_dir).await?;
    let view = place.read()?.view(None, None)?;
    let status = RunStatus::new(&args.run_dir, &view);
    let is_pending =
        matches!(status.header.state, RunViewState::Stopped | RunViewState::Interrupted);
    let resume = match CatalogAddress::parse(&args.run_dir)? {
        _ if !is_pending => None,
        Some(address) => Some(resume_from_catalog(&address)),
        None => resume(&args.run_dir),
    };
    let document = StatusDocument { status, resume };
    if args.json {
        printer.json(&document)?;
    } else {
        let hint = if is_pending { hint(&args.run_dir) } else { Vec::new() };
        printer.warn_of_unknown_zone();
        printer.data(&render(&document.status, hint, printer.out.width))?;
    }
    Ok(ExitCode::Success)
}

/// The command that resumes a job or a search, if the run directory has it.
fn resume(run_dir: &Path) -> Option<ResumeCommand> {
    let invocation = Invocation::read(run_dir).ok()?;
    let (directory, left_out) = (invocation.directory.clone(), invocation.left_out.clone());
    let command = invocation.words(Vec::new());
    Some(ResumeCommand { directory: Some(directory), command, left_out })
}

/// The command that resumes a run from its catalog, on any host.
fn resume_from_catalog(address: &CatalogAddress) -> ResumeCommand {
    let command = ["rollout".to_owned(), "resume".to_owned(), address.to_string()];
    let left_out = vec![LeftOutOption::server()];
    ResumeCommand { directory: None, command: command.to_vec(), left_out }
}

fn render(status: &RunStatus, resume: Vec<(&'static str, String)>, width: Option<usize>) -> String {
    let header = &status.header;
    let mut rows = vec![
        ("job", header.job.clone()),
        ("state", state(status)),
        (items(header.kind), counts(status)),
    ];
    let waiting = status.waiting_for_worker.iter().map(waiting_for_worker);
    rows.extend(waiting.map(|text| ("waiting", text)));
    rows.extend(status.queue_outage.iter().map(|outage| ("queue", outage.to_string())));
    if header.kind == RunKind::Job && status.counts.settled > 0 {
        rows.push(("score", score::scored(&status.headline.scored)));
    }
    if !status.errors.is_empty() {
        let errors = status.errors.iter().map(|(kind, count)| format!("{count} {kind}"));
        rows.push(("errors", errors.collect::<Vec<_>>().join(", ")));
    }
    rows.push(("cost", cost(status)));
    if let Some(owner) = &header.owner {
        rows.push(("owner", self::owner(owner)));
    }
    let times = [("started", header.created_at), ("updated", header.updated_at)];
    rows.extend(times.iter().filter_map(|(key, at)| Some((*key, local_time::shown((*at)?)))));
    if let Some(run) = header.run {
        rows.push(("run", format!("{run}, session {}", header.epoch)));
    }
    rows.extend(resume);
    let rows = rows.into_iter();
    let rows = rows.map(|(key, value)| vec![key.to_owned(), escape::line(&value).into_owned()]);
    format!("{}\n", table::aligned(&[], rows.collect(), 2, width))
}

fn items(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Job => "trials",
        RunKind::Search => "items",
    }
}

fn state(status: &RunStatus) -> String {
    let header = &status.header;
    let explained = match header.state {
        RunViewState::New => "new: nothing has begun",
        RunViewState::Running => "running",
        RunViewState::Silent => "silent: its owner sends no heartbeats, and may be alive",
        RunViewState::Interrupted => "interrupted: its owner ended without closing the run",
        RunViewState::Stopped => "stopped",
        RunViewState::Completed => "completed",
        RunViewState::Simulated => "simulated: it has no journal",
    };
    let explained = match header.paused && header.state.may_be_owned() {
        true => {
            let run_dir = quoted(&status.directory.to_string_lossy());
            format!("paused: `rollout resume {run_dir}` ends the pause")
        }
        false => explained.to_owned(),
    };
    match &header.pool {
        Some(pool) if header.state.may_be_owned() => format!("{explained}, on pool {pool}"),
        _ => explained,
    }
}

/// `12 of 20 settled: 10 completed, 2 failed (1 infrastructure, 1 agent); 4 running, 4 queued`.
fn counts(status: &RunStatus) -> String {
    let counts = &status.counts;
    let failures = &status.headline.failures;
    let parties = FailureParty::ALL.iter().map(|party| (failures.get(*party), party.as_str()));
    let parties = listed(parties);
    let failed = match parties.is_empty() {
        true => "failed".to_owned(),
        false => format!("failed ({parties})"),
    };
    let settled = listed([
        (counts.completed, "completed"),
        (counts.failed, &failed),
        (counts.cancelled, "cancelled"),
        (counts.unverified, "unverified"),
    ]);
    let others = listed([
        (counts.running, "running"),
        (counts.waiting, "waiting for a retry"),
        (counts.queued, "queued"),
        (counts.unplanned, "no longer in the plan"),
    ]);
    let mut text = format!("{} of {} settled", counts.settled, counts.total);
    for (mark, part) in [(": ", settled), ("; ", others)] {
        if !part.is_empty() {
            text.push_str(&format!("{mark}{part}"));
        }
    }
    text
}

/// `3 need 64 cpus, 1024 MiB, process: needs 64 cpus …; they wait until a worker is started`.
fn waiting_for_worker(waiting: &WaitingItems) -> String {
    let WaitingItems { items, class, needs, reason, timeout_sec } = waiting;
    let limit = match timeout_sec {
        None => "the pool is elastic, so they wait until a worker is started".to_owned(),
        Some(seconds) => {
            format!("they fail after {} without one", duration(Duration::from_secs(*seconds)))
        }
    };
    format!("{items} for a worker with {needs} ({class}): {reason}; {limit}")
}

/// The counts that are not 0, with their words.
fn listed<'a>(counts: impl IntoIterator<Item = (u64, &'a str)>) -> String {
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

fn cost(status: &RunStatus) -> String {
    let used = &status.model_use;
    let mut parts = vec![format::cost(status.total_cost, used.unpriced_calls)];
    let calls = || format!("model calls: {} ({} tokens)", used.calls, used.tokens);
    parts.extend((used.calls > 0).then(calls));
    let without_ids = used.calls_without_ids;
    parts.extend((without_ids > 0).then(|| format!("{without_ids} calls without token ids")));
    parts.extend((status.retries > 0).then(|| format!("{} executions retried", status.retries)));
    let lost = status.lost_executions;
    parts.extend((lost > 0).then(|| format!("{lost} executions lost")));
    parts.extend(status.settled_per_hour.map(settled_rate));
    parts.join(", ")
}

/// A rate in the shortest unit with at least one item.
fn settled_rate(per_hour: f64) -> String {
    let (rate, unit) = match per_hour {
        rate if rate >= 3600.0 => (rate / 3600.0, "second"),
        rate if rate >= 60.0 => (rate / 60.0, "minute"),
        rate => (rate, "hour"),
    };
    match rate {
        100.0.. => format!("{rate:.0} settled per {unit}"),
        _ => format!("{rate:.1} settled per {unit}"),
    }
}

fn owner(owner: &OwnerView) -> String {
    let OwnerView { host, pid, since, heartbeat_age_sec, dead, .. } = owner;
    let age = Duration::try_from_secs_f64(*heartbeat_age_sec).unwrap_or_default();
    let ended = if *dead { ", has ended" } else { "" };
    format!(
        "process {pid} on {host}{ended}, since {}, last heartbeat {} ago",
        local_time::shown(*since),
        duration(age)
    )
}

/// Rows about the command that resumes a run that was stopped or lost its owner: the command as it is
/// run, and what it needs.
fn hint(run_dir: &Path) -> Vec<(&'static str, String)> {
    let run = HintedRun::named(run_dir);
    if !run.is_resumable() {
        let text = "the server or the program that started it resumes it when it starts";
        return vec![("resume", text.to_owned())];
    }
    let command = hint_command::command(&run, &RunAction::Resume, &[]);
    let needs = command.needs.into_iter().map(|need| ("", need));
    std::iter::once(("resume", command.line)).chain(needs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_has_unit_of_its_size() {
        let shown = [169_412.0, 10_420.0, 600.0, 12.0].map(settled_rate);
        let expected =
            ["47.1 settled per second", "2.9 settled per second", "10.0 settled per minute"];
        assert_eq!(shown[..3], expected);
        assert_eq!(shown[3], "12.0 settled per hour");
    }
}
