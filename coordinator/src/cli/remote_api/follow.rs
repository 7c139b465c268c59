//! The events of a run on a server, until its end.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::event::RunEvent;
use rollout_protocol::exit::ExitCode;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::{RunUrl, exit_code, texts};
use crate::cli::error::CliError;
use crate::cli::events::line;
use crate::cli::output::Printer;
use crate::events::sinks::terminal::summary;
use crate::events::{JobFacts, Reporter, RunReport};
use crate::launch::{exit, signals};
use crate::results::known_cost;
use crate::results::view::NumberedEvent;

/// Events that wait to be printed.
const WAITING_EVENTS: usize = 64;

/// Pause before a stream that broke is opened again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// How long a server may be out of reach.
const OUT_OF_REACH: Duration = Duration::from_secs(60);

/// A run that is followed.
pub(super) struct FollowedRun {
    /// The run.
    pub(super) run: RunUrl,
    /// Its facts, for the summary.
    pub(super) facts: JobFacts,
    /// Whether lines of JSON are printed.
    pub(super) json: bool,
    /// Least pass rate.
    pub(super) fail_under: Option<f64>,
}

/// A message of a stream.
enum StreamMessage {
    /// An event: its document.
    Event(Value),
    /// The run has stopped.
    End,
    /// The stream broke, or could not be opened.
    Broken(Option<CliError>),
}

/// Prints the events of a run until it has stopped, and returns its exit code. The first signal
/// detaches: the run goes on.
///
/// # Errors
/// [`CliError`]: that of the run, or of the server.
pub(super) async fn follow(
    following: FollowedRun,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let FollowedRun { run, facts, json, fail_under } = following;
    let started = Reporter::start_hosted(facts, Vec::new());
    let (events, reporter) =
        started.map_err(|error| CliError::failure("cannot follow the run", &error))?;
    let (mut stops, _listening) = signals::listen()
        .map_err(|error| CliError::failure("cannot listen for signals", &error))?;
    let (mut after, mut reached_at) = (0, Instant::now());
    let mut messages = open_stream(&run, after);
    loop {
        let message = tokio::select! {
            message = messages.recv() => message.unwrap_or(StreamMessage::Broken(None)),
            _ = stops.recv() => {
                let status = format!("rollout status {}", run.server.run_url(&run.id));
                let status = run.server.command_line(&status);
                printer.hint(&format!("detached; the run goes on: `{status}`"));
                // The threshold was not decided.
                let is_decided = fail_under.is_none();
                return Ok(if is_decided { ExitCode::Success } else { ExitCode::Cancelled });
            }
        };
        match message {
            StreamMessage::Event(document) => {
                reached_at = Instant::now();
                after = document["seq"].as_u64().unwrap_or(after);
                let event = print_event(document, json, printer)?;
                if let Some(event) = event {
                    // A reporter that ended returns its own error.
                    let _gone = events.send(vec![event]).await;
                }
            }
            StreamMessage::End => {
                drop(events);
                let report = reporter.finish().await?;
                return ended(&run, &report, (json, fail_under), printer).await;
            }
            StreamMessage::Broken(error) => {
                if let Some(error) = error
                    && (error.code != ExitCode::OutOfReach || reached_at.elapsed() > OUT_OF_REACH)
                {
                    return Err(error);
                }
                tokio::time::sleep(RECONNECT_PAUSE).await;
                messages = open_stream(&run, after);
            }
        }
    }
}

/// Prints an event, and returns it if this program knows it: a newer server may send others.
fn print_event(
    document: Value,
    json: bool,
    printer: &Printer,
) -> Result<Option<RunEvent>, CliError> {
    if json {
        printer.data(&format!("{document}\n"))?;
    }
    let seq = document["seq"].as_u64().unwrap_or_default();
    let event = serde_json::from_value::<RunEvent>(known_cost::with_recorded_costs(document));
    let Ok(event) = event else { return Ok(None) };
    let numbered = NumberedEvent { seq, event };
    if !json && !printer.is_quiet() {
        printer.data(&format!("{}\n", line(&numbered)))?;
    }
    Ok(Some(numbered.event))
}

/// The end of a run that has stopped: what a run on this host prints, and its exit code.
async fn ended(
    run: &RunUrl,
    report: &RunReport,
    (json, fail_under): (bool, Option<f64>),
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let shown = run.server.document(&run.path("")).await?;
    let unread = unread_results(&shown, report);
    let result = report.result.as_ref().filter(|_| unread.is_none());
    if json {
        printer.data(&format!("{shown}\n"))?;
        if let Some(result) = result {
            // As the last line of a run on this host.
            let mut line = json!(**result);
            line["event"] = json!("result");
            printer.data(&format!("{line}\n"))?;
        }
    }
    let failure = &shown["failure"];
    if let Some(message) = failure["message"].as_str() {
        let mut error = CliError::new(exit_code(&failure["code"]), message);
        error.details = texts(&failure["details"]);
        error.hints = texts(&failure["hints"]);
        return Err(error);
    }
    if let Some(unread) = &unread {
        printer.warning(unread);
    }
    if !json && !printer.is_quiet() {
        let url = run.server.run_url(&run.id);
        let text = match result {
            Some(result) => summary::render_hosted(report, result, &url, printer.out),
            None => super::commands::summary(&shown),
        };
        printer.data(&text)?;
    }
    code(&shown, report, fail_under, unread)
}

/// Why the results in the events are not those of the run: a newer server may send some that this
/// program does not know.
fn unread_results(shown: &Value, report: &RunReport) -> Option<String> {
    let settled = shown["progress"]["settled"].as_u64()?;
    let read = report.tally.settled();
    (settled != read)
        .then(|| format!("this program knows {read} of the {settled} results that the server sent"))
}

/// The exit code of a run that has stopped.
fn code(
    shown: &Value,
    report: &RunReport,
    fail_under: Option<f64>,
    unread: Option<String>,
) -> Result<ExitCode, CliError> {
    match exit_code(&shown["code"]) {
        // The results decide.
        ExitCode::Success | ExitCode::Infrastructure | ExitCode::NothingMeasured
            if fail_under.is_some() =>
        {
            match unread {
                None => Ok(exit::for_run(false, &report.tally, fail_under)),
                Some(unread) => {
                    let message = format!("cannot decide `--fail-under`: {unread}");
                    Err(CliError::new(ExitCode::Failure, message)
                        .hint("use the version of the server"))
                }
            }
        }
        code => Ok(code),
    }
}

/// Opens a stream of events after a number.
fn open_stream(run: &RunUrl, after: u64) -> mpsc::Receiver<StreamMessage> {
    let (messages, received) = mpsc::channel(WAITING_EVENTS);
    let run = run.clone();
    // It ends with the stream, or when nothing receives from it.
    let started = supervise::thread("event stream", move || {
        let end = read_stream(&run, after, &messages);
        let last = end.unwrap_or_else(|error| StreamMessage::Broken(Some(error)));
        let _gone = messages.blocking_send(last);
    });
    if let Err(error) = started {
        tracing::error!("cannot start a thread: {error}");
    }
    received
}

/// Reads a stream to its end.
fn read_stream(
    run: &RunUrl,
    after: u64,
    messages: &mpsc::Sender<StreamMessage>,
) -> Result<StreamMessage, CliError> {
    let path = run.path(&format!("/events?after={after}"));
    let answer = run.server.stream(&path)?;
    let (mut kind, mut data) = (String::new(), String::new());
    for line in BufReader::new(answer.into_body().into_reader()).lines() {
        let Ok(line) = line else { break };
        if let Some(value) = line.strip_prefix("event: ") {
            value.clone_into(&mut kind);
        } else if let Some(value) = line.strip_prefix("data: ") {
            data.push_str(value);
        } else if line.is_empty() && !data.is_empty() {
            let document = serde_json::from_str(&data).unwrap_or_default();
            data.clear();
            match kind.as_str() {
                "end" => return Ok(StreamMessage::End),
                "error" => break,
                _ if messages.blocking_send(StreamMessage::Event(document)).is_err() => break,
                _ => {}
            }
        }
    }
    Ok(StreamMessage::Broken(None))
}

#[cfg(test)]
mod tests {
    use rollout_protocol::record::Verdict;

    use super::*;
    use crate::events::UnwrittenTrials;
    use crate::results::metrics::{Tally, TrialScore};

    #[test]
    fn threshold_is_not_decided_from_a_part_of_the_results() {
        let mut tally = Tally::default();
        tally.add(&TrialScore::from_verdict(&Verdict::completed(1.0), &[]));
        let (failures, unwritten) = (Vec::new(), UnwrittenTrials::default());
        let report = RunReport { result: None, tally, failures, has_trial_files: false, unwritten };
        let ended = |settled: u64, fail_under| {
            let shown = json!({ "code": 0, "progress": { "settled": settled } });
            let unread = unread_results(&shown, &report);
            code(&shown, &report, fail_under, unread).map_err(|error| (error.code, error.message))
        };
        assert_eq!(ended(1, Some(0.9)), Ok(ExitCode::Success));
        assert_eq!(ended(2, None), Ok(ExitCode::Success), "the server decides");
        let (code, message) = ended(2, Some(0.9)).expect_err("one result is not known");
        assert_eq!(code, ExitCode::Failure);
        assert!(message.contains("knows 1 of the 2 results"), "{message}");
    }
}
