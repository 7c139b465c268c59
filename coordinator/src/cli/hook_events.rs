//! `rollout events` with a trial: the hook events of its agent.

use std::collections::HashMap;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_protocol::harness::{HookEvent, HookEventBody};
use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_store::BlobStore;
use serde::Serialize;
use tokio::time::Instant;

use super::error::CliError;
use super::events::EventsArgs;
use super::output::Printer;
use super::run_place::RunPlace;
use super::store_url;
use crate::config::local_time;
use crate::results::escape;
use crate::results::view::{
    HookEventLogs, HookEventRead, HookLog, HookLogCursor, TrialState, find_trial, resolve_hook_logs,
};

/// Shortest time between two looks at a run.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// How much longer than a look the pause after it is: a look reads the whole journal.
const PAUSE_PER_LOOK: u32 = 4;

/// The label of an event in a document.
#[derive(Debug, Serialize)]
struct EventLabel<'a> {
    item: ItemId,
    #[serde(rename = "try")]
    try_id: TryId,
    exec: ExecId,
    /// Index of the step, from 0.
    step: u32,
    /// Name of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_name: Option<&'a str>,
    seq: u64,
}

/// One look at the run.
struct Look {
    item: ItemId,
    name: String,
    logs: Vec<HookEventLogs>,
    /// Whether no more events can come.
    is_over: bool,
}

/// Prints the events of one trial.
struct EventPrinter<'a> {
    args: &'a EventsArgs,
    printer: &'a Printer,
    cursors: HashMap<ExecId, HookLogCursor>,
    /// The execution and step whose events were printed last.
    shown: Option<(ExecId, u32)>,
}

/// Runs the command.
pub(super) async fn run(
    args: &EventsArgs,
    place: &RunPlace,
    trial: &str,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let mut events = EventPrinter { args, printer, cursors: HashMap::new(), shown: None };
    let mut store = None;
    loop {
        let began = Instant::now();
        let look = look(place, trial)?;
        let pause = FOLLOW_INTERVAL.max(began.elapsed() * PAUSE_PER_LOOK);
        let chosen = choose(args, &look, |exec| events.cursors.contains_key(&exec))?;
        if store.is_none() && chosen.iter().any(|logs| logs.has_source()) {
            store = Some(store_url::open_for_run(args.store.as_deref(), place.directory()).await?);
        }
        if let Some(store) = &store {
            for logs in &chosen {
                events.print(&**store, &look, logs).await?;
            }
        }
        if !args.follow || look.is_over {
            events.print_summary(&look, &chosen);
            return Ok(ExitCode::Success);
        }
        tokio::time::sleep(pause).await;
        place.refresh().await?;
    }
}

fn look(place: &RunPlace, trial: &str) -> Result<Look, CliError> {
    let directory = place.read()?;
    let trial = find_trial(directory.plan()?, trial)?;
    let view = directory.view(Some(trial.item), None)?;
    let detail = view.detail().expect("a trial of the plan is watched");
    let is_settled = match detail.row.state {
        TrialState::Completed
        | TrialState::Failed
        | TrialState::Cancelled
        | TrialState::Unverified => true,
        TrialState::Running | TrialState::Waiting | TrialState::Queued => false,
    };
    let is_over = is_settled || !view.header.state.may_be_owned();
    let logs = view.hook_event_logs();
    Ok(Look { item: trial.item, name: detail.row.name, logs, is_over })
}

/// The executions whose events are printed, oldest first: the ones that the options name, else the
/// one that settled the trial, else the newest one. Those of which events were printed stay, and
/// newer ones follow.
fn choose<'a>(
    args: &EventsArgs,
    look: &'a Look,
    is_printed: impl Fn(ExecId) -> bool,
) -> Result<Vec<&'a HookEventLogs>, CliError> {
    let logs = &look.logs;
    let is_named = |logs: &&HookEventLogs| {
        args.number.is_none_or(|number| logs.try_id.n == number)
            && args.exec.is_none_or(|exec| logs.exec == exec)
    };
    if args.number.is_some() || args.exec.is_some() {
        let named: Vec<_> = logs.iter().filter(is_named).collect();
        if named.is_empty() && !args.follow {
            let what =
                format!("cannot print the events of {}: it has no such execution", look.name);
            return Err(CliError::new(ExitCode::Config, what)
                .hint("`rollout show RUN TRIAL` shows the executions of a trial"));
        }
        return Ok(named);
    }
    let executions: Vec<_> = logs.iter().map(|logs| (logs.exec, logs.is_settling)).collect();
    let from = first_printed(&executions, is_printed);
    Ok(logs.get(from..).unwrap_or_default().iter().collect())
}

/// The index of the first execution whose events are printed. `executions`: the oldest first, with whether
/// it settled the trial.
fn first_printed(executions: &[(ExecId, bool)], is_printed: impl Fn(ExecId) -> bool) -> usize {
    let printed = executions.iter().position(|(exec, _)| is_printed(*exec));
    let settling = executions.iter().position(|(_, is_settling)| *is_settling);
    printed.or(settling).or(executions.len().checked_sub(1)).unwrap_or_default()
}

impl EventPrinter<'_> {
    /// Prints the new events of an execution.
    async fn print(
        &mut self,
        store: &dyn BlobStore,
        look: &Look,
        logs: &HookEventLogs,
    ) -> Result<(), CliError> {
        if !logs.has_source() {
            return Ok(());
        }
        let failed = |error| CliError::failure("cannot print the events", &error);
        let from = self.args.from;
        for log in resolve_hook_logs(store, logs).await.map_err(failed)? {
            let cursor = self.cursors.entry(logs.exec).or_insert_with(|| HookLogCursor::new(from));
            let (mut text, mut notices) = (String::new(), Vec::new());
            let json = self.args.json;
            cursor
                .read(store, &log, &mut |read| match read {
                    HookEventRead::Event(event, line) => {
                        match json {
                            true => text.push_str(&document(look.item, logs, &log, event, line)),
                            false => text.push_str(&line_of(event)),
                        }
                        text.push('\n');
                    }
                    HookEventRead::Gap(bytes) => {
                        notices.push(format!("{bytes} bytes of events are missing"));
                    }
                    HookEventRead::Restarted => {
                        notices.push("the step was begun again: its events restart".to_owned());
                    }
                })
                .await
                .map_err(failed)?;
            for notice in notices {
                let (exec, step) = (logs.exec, log.step);
                self.printer.warning(&format!("execution {exec}, step {step}: {notice}"));
            }
            if !text.is_empty() {
                self.print_header(logs, &log)?;
                self.printer.data(&text)?;
            }
        }
        Ok(())
    }

    /// Prints which execution and step the next lines belong to, if that changed.
    fn print_header(&mut self, logs: &HookEventLogs, log: &HookLog) -> Result<(), CliError> {
        let shown = Some((logs.exec, log.step));
        if self.args.json || self.shown == shown {
            return Ok(());
        }
        let gap = if self.shown.is_some() { "\n" } else { "" };
        self.shown = shown;
        let HookEventLogs { exec, try_id, worker, .. } = logs;
        let step = match &log.name {
            Some(name) => format!(", step {}", escape::line(name)),
            None if log.step > 0 => format!(", step {}", log.step),
            None => String::new(),
        };
        self.printer
            .data(&format!("{gap}==> try {try_id}, execution {exec} on {worker}{step} <==\n"))
    }

    /// Prints to people what the events do not show.
    fn print_summary(&self, look: &Look, chosen: &[&HookEventLogs]) {
        if self.cursors.is_empty() && !self.args.json {
            self.printer.hint(&format!("{} has no hook events so far", look.name));
        }
        let violations: u64 = chosen.iter().map(|logs| logs.announced_violations()).sum();
        if violations > 0 {
            self.printer.warning(&format!(
                "{violations} violations of the rules of hook events were found while it ran"
            ));
        }
    }
}

/// An event with its label as a line of JSON.
fn document(
    item: ItemId,
    logs: &HookEventLogs,
    log: &HookLog,
    event: &HookEvent,
    line: &str,
) -> String {
    let HookEventLogs { try_id, exec, .. } = *logs;
    let (step, step_name) = (log.step, log.name.as_deref());
    let label = EventLabel { item, try_id, exec, step, step_name, seq: event.seq };
    let label = serde_json::to_string(&label).expect("a label has text keys");
    // The event is an object on one line.
    format!("{},\"event\":{line}}}", label.trim_end_matches('}'))
}

/// `12  2026-01-01T10:00:00Z  model_call_end   step 3  call_7, ok`, with the local time.
fn line_of(event: &HookEvent) -> String {
    let step = event.step_index.map_or_else(String::new, |step| format!("step {step}"));
    let detail = escape::line(&describe(&event.body)).into_owned();
    let kind = event.body.event_type().as_str();
    let at = local_time::shown(event.ts);
    let line = format!("{:>8}  {at}  {kind:<16}  {step:<8}  {detail}", event.seq);
    line.trim_end().to_owned()
}

/// The content of an event for people.
fn describe(body: &HookEventBody) -> String {
    use rollout_protocol::harness::{CallOutcome, CallStatus};
    let outcome = |outcome: &CallOutcome| match outcome.status {
        CallStatus::Ok => "ok".to_owned(),
        CallStatus::Error => match (&outcome.error_type, &outcome.message) {
            (Some(kind), Some(message)) => format!("error {kind}: {message}"),
            (Some(text), None) | (None, Some(text)) => format!("error: {text}"),
            (None, None) => "error".to_owned(),
        },
    };
    match body {
        HookEventBody::AgentStepStart | HookEventBody::AgentStepEnd(_) => String::new(),
        HookEventBody::ControlAck(ack) => format!("observed {}", ack.action_observed),
        HookEventBody::ModelCallEnd(call) => {
            let model = call.model.as_ref().and_then(|model| model.identity.as_deref());
            let model = model.map_or_else(String::new, |model| format!(", {model}"));
            format!("{}, {}{model}", call.call_id, outcome(&call.outcome))
        }
        HookEventBody::ToolCallEnd(call) => {
            format!("{}, {}, {}", call.call_id, call.tool.name, outcome(&call.outcome))
        }
        HookEventBody::Error(error) => error.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_execution_is_printed_and_none_that_is_older() {
        let [first, second, third] = [1, 2, 3].map(|n| ExecId::from_bytes([n; 16]));
        let open = |execs: &[ExecId]| execs.iter().map(|exec| (*exec, false)).collect::<Vec<_>>();
        let all = open(&[first, second, third]);
        assert_eq!(first_printed(&[], |_| false), 0);
        assert_eq!(first_printed(&all, |_| false), 2, "the newest one");
        assert_eq!(
            first_printed(&all, |exec| exec == second),
            1,
            "it stays, older ones do not come"
        );
        let settled = [(first, true), (second, false)];
        assert_eq!(first_printed(&settled, |_| false), 0, "the one that settled the trial");
    }
}
