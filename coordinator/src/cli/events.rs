//! `rollout events`.

use std::path::PathBuf;

use clap::Args;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::ExecId;

use super::error::CliError;
use super::output::Printer;
use super::run_place::RunPlace;
use super::{hook_events, search_dir};
use crate::config::local_time;
use crate::events::sinks::terminal::format::{duration, number, plural};
use crate::results::escape;
use crate::results::known_cost::NullUnknownCosts;
use crate::results::view::NumberedEvent;

/// Hint for the directory of a search.
const SEARCH_HINT: &str = "`rollout tree show DIR` shows a search";

/// Bytes printed at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Print the durable events of a run, or the hook events of a trial's agent
///
/// Events of a run come from its journal. Each has a number that does not change: continue with
/// `--from` and one more than the last number that was printed. Numbers may be missing. Phases of
/// trials, waits for services and warnings are not in the journal.
///
/// With TRIAL: the events that the harness of the trial wrote, also while it runs, with the numbers
/// that it gave them. Without `--try` and `--exec`, those of the execution that settled the trial,
/// else of the newest one.
#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Run directory; a run in a catalog: `s3://bucket/prefix#RUN`; or a live run
    /// of a server: `nats://host:4222#RUN`
    run_dir: PathBuf,

    /// Print the hook events of this trial: `agent/dataset/task__attempt`, its item, or a part of its
    /// name that no other has
    trial: Option<String>,

    /// Only the first event with this number or a higher one, and those after it
    #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
    pub(super) from: u64,

    /// Wait for further events until the trial is settled or the run has no owner
    #[arg(long, short, requires = "trial")]
    pub(super) follow: bool,

    /// The events of the executions of this try, by its number in `rollout show`
    #[arg(long = "try", value_name = "N", requires = "trial")]
    pub(super) number: Option<u32>,

    /// The events of this execution
    #[arg(long, value_name = "EXEC", requires = "trial")]
    pub(super) exec: Option<ExecId>,

    /// Blob store: a directory, or `s3://bucket/prefix?endpoint=URL` [default: the store that the run used]
    #[arg(long, requires = "trial")]
    pub(super) store: Option<String>,

    /// Print lines of JSON: the objects of `rollout run --json`, with `seq`; of a trial, hook events
    /// with their execution
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs the command.
pub(super) async fn run(args: &EventsArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let place = RunPlace::open(&args.run_dir).await?;
    search_dir::refuse("print the events of", place.directory(), SEARCH_HINT)?;
    if !args.json {
        printer.warn_of_unknown_zone();
    }
    match &args.trial {
        Some(trial) => hook_events::run(args, &place, trial, printer).await,
        None => print_durable(args, &place, printer),
    }
}

fn print_durable(
    args: &EventsArgs,
    place: &RunPlace,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let directory = place.read()?;
    directory.plan()?;
    let (mut text, mut printed) = (String::new(), Ok(()));
    let mut print = |event: NumberedEvent| {
        if event.seq < args.from || printed.is_err() {
            return;
        }
        match args.json {
            true => {
                let json = serde_json::to_string(&NullUnknownCosts(&event));
                text.push_str(&json.unwrap_or_default());
            }
            false => text.push_str(&line(&event)),
        }
        text.push('\n');
        if text.len() >= CHUNK_BYTES {
            printed = printer.data(&std::mem::take(&mut text));
        }
    };
    let _read = directory.view(None, Some(&mut print))?;
    printed?;
    printer.data(&text)?;
    Ok(ExitCode::Success)
}

/// `12  2026-01-01T10:00:00Z  trial_settled  agent/dataset/task__1: completed, reward 1`, with the local
/// time.
pub(super) fn line(event: &NumberedEvent) -> String {
    let NumberedEvent { seq, event: RunEvent { at, kind } } = event;
    let (name, detail) = describe(kind);
    let at = local_time::shown(*at);
    format!("{seq:>8}  {at}  {name:<13}  {}", escape::line(&detail)).trim_end().to_owned()
}

/// Name of an event, and its content for people.
fn describe(kind: &EventKind) -> (&'static str, String) {
    match kind {
        EventKind::RunStarted { job, epoch, total, .. } => {
            ("run_started", format!("{job}, session {epoch}, {}", plural(*total, "trial")))
        }
        EventKind::RunOpened => ("run_opened", String::new()),
        EventKind::LockTakeover { former, reason } => {
            ("lock_takeover", format!("from {former}: {}", word(reason)))
        }
        EventKind::TrialRetry { name, try_id, error, wait_ms, .. } => {
            let wait = duration(std::time::Duration::from_millis(*wait_ms));
            ("trial_retry", format!("{name}: try {} in {wait} after: {error}", try_id.n + 1))
        }
        EventKind::TrialLost { name, try_id, .. } => {
            ("trial_lost", format!("{name}: try {} ended without a verdict", try_id.n))
        }
        EventKind::TrialSettled { settlement, .. } => {
            let verdict = &settlement.verdict;
            let mut detail = format!("{}: {}", settlement.name, verdict.outcome.as_str());
            if let Some(reward) = verdict.reward {
                detail.push_str(&format!(", reward {}", number(reward)));
            }
            if let Some(error) = &verdict.error {
                detail.push_str(&format!(", {error}"));
            }
            ("trial_settled", detail)
        }
        EventKind::TrialReopened { name, .. } => {
            ("trial_reopened", format!("{name}: another try, its former result is superseded"))
        }
        EventKind::RunPaused => ("run_paused", String::new()),
        EventKind::RunContinued => ("run_continued", String::new()),
        EventKind::RunStopping { level } => ("run_stopping", word(level)),
        EventKind::RunEnded { cancelled, owed } => {
            let how = if *cancelled { "stopped" } else { "ended" };
            ("run_ended", format!("{how}, {} pending", plural(*owed, "trial")))
        }
        // The journal has no others.
        _ => ("other", String::new()),
    }
}

/// The word of a value in documents.
fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::started;

    #[test]
    fn event_with_one_trial_counts_it_in_the_singular() {
        let shown = [1, 2].map(|total| describe(&started(total).kind).1);
        assert_eq!(shown, ["a job, session 1, 1 trial", "a job, session 1, 2 trials"]);
        let ended = EventKind::RunEnded { cancelled: true, owed: 1 };
        assert_eq!(describe(&ended).1, "stopped, 1 trial pending");
    }
}
