//! The events of a run on a server, until its end.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use rollout_protocol::event::RunEvent;
use rollout_protocol::exit::ExitCode;
use rollout_worker::supervise;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::{RunUrl, exit_code, texts};
use crate::cli::error::CliError;
use crate::cli::events::line;
use crate::cli::output::Printer;
use crate::launch::signals;
use crate::results::view::NumberedEvent;

/// Events that wait to be printed.
const WAITING_EVENTS: usize = 64;

/// Pause before a stream that broke is opened again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// How long a server may be out of reach.
const OUT_OF_REACH: Duration = Duration::from_secs(60);

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
    run: RunUrl,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let (mut stops, _listening) = signals::listen()
        .map_err(|error| CliError::failure("cannot listen for signals", &error))?;
    let (mut after, mut reached_at) = (0, Instant::now());
    let mut messages = open_stream(&run, after);
    loop {
        let message = tokio::select! {
            message = messages.recv() => message.unwrap_or(StreamMessage::Broken(None)),
            _ = stops.recv() => {
                let url = run.server.run_url(&run.id);
                printer.hint(&format!("detached; the run goes on: `rollout status {url}`"));
                return Ok(ExitCode::Success);
            }
        };
        match message {
            StreamMessage::Event(document) => {
                reached_at = Instant::now();
                after = document["seq"].as_u64().unwrap_or(after);
                print_event(document, json, printer)?;
            }
            StreamMessage::End => return ended(&run, json, printer).await,
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

fn print_event(document: Value, json: bool, printer: &Printer) -> Result<(), CliError> {
    if json {
        return printer.data(&format!("{document}\n"));
    }
    let seq = document["seq"].as_u64().unwrap_or_default();
    // A newer server may send events that this program does not know.
    let Ok(event) = serde_json::from_value::<RunEvent>(document) else { return Ok(()) };
    printer.data(&format!("{}\n", line(&NumberedEvent { seq, event })))
}

/// The end of a run that has stopped.
async fn ended(run: &RunUrl, json: bool, printer: &Printer) -> Result<ExitCode, CliError> {
    let shown = run.server.document(&run.path("")).await?;
    if json {
        printer.data(&format!("{shown}\n"))?;
    }
    let failure = &shown["failure"];
    if let Some(message) = failure["message"].as_str() {
        let mut error = CliError::new(exit_code(&failure["code"]), message);
        error.details = texts(&failure["details"]);
        error.hints = texts(&failure["hints"]);
        return Err(error);
    }
    if !json {
        printer.data(&super::commands::summary(&shown))?;
    }
    Ok(exit_code(&shown["code"]))
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
