//! `rollout retry` of a run whose coordinator runs.

use std::time::Duration;

use rollout_engine::ReopenSelection;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::command::{CommandReceipt, IN_PROGRESS_PAUSE, RunCommand};
use tokio::time::Instant;

use super::LiveRun;
use super::target::{CommandAnswer, late};
use crate::cli::error::CliError;
use crate::cli::hint_command::CommandHint;
use crate::cli::output::Printer;
use crate::events::sinks::terminal::format::plural;

/// How long a command without an answer is sent again: a coordinator may be busy for seconds.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Gives settled trials another try within the session; `None` if the run has no coordinator.
///
/// # Errors
/// The command could not be sent or was refused; or no answer came for [`MAX_SILENCE`], or none
/// before the coordinator ended: then the trials may run again.
pub(in crate::cli) async fn retry(
    live: &LiveRun,
    selection: &ReopenSelection,
    json: bool,
    printer: &Printer,
) -> Result<Option<ExitCode>, CliError> {
    let receipt = ask(selection, async |command| live.send(command).await).await?;
    receipt.map(|receipt| print_receipt(&receipt, json, printer)).transpose()
}

/// Sends the command until there is a receipt; `None` if the run has no coordinator.
async fn ask(
    selection: &ReopenSelection,
    send: impl AsyncFn(RunCommand) -> Result<CommandAnswer, CliError>,
) -> Result<Option<Box<CommandReceipt>>, CliError> {
    // Under the same number, the command changes nothing again and asks for its receipt.
    let request = rand::random();
    let (mut is_known, mut last_answer) = (false, Instant::now());
    loop {
        let command = RunCommand::Retry { request, selection: selection.clone() };
        match send(command).await? {
            // It reads a long journal.
            CommandAnswer::Receipt(receipt) if receipt.in_progress => {
                tokio::time::sleep(IN_PROGRESS_PAUSE).await;
                (is_known, last_answer) = (true, Instant::now());
            }
            CommandAnswer::Receipt(receipt) => return Ok(Some(receipt)),
            // It is busy, and may have the command.
            CommandAnswer::Late if last_answer.elapsed() < MAX_SILENCE => is_known = true,
            CommandAnswer::Late => return Err(late()),
            CommandAnswer::NoCoordinator if is_known => {
                let message = "cannot tell which trials run again: the coordinator ended first";
                return Err(CliError::refused(message)
                    .command_hint(CommandHint::new("select the trials that are left")));
            }
            CommandAnswer::NoCoordinator => return Ok(None),
        }
    }
}

fn print_receipt(
    receipt: &CommandReceipt,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let CommandReceipt { named, reopened, refused, .. } = receipt;
    if json {
        printer.json(receipt)?;
    } else if refused.is_none() {
        let reopened = reopened.unwrap_or_default();
        let named = plural(*named, "trial");
        printer.data(&format!("{named} selected: {reopened} to run again\n"))?;
        if reopened > 0 {
            printer.note(
                "the session that runs keeps its agents, tasks and settings: corrections take effect \
                 in the next one",
            );
        }
    }
    match refused {
        None => Ok(ExitCode::Success),
        Some(reason) => Err(CliError::refused(format!("cannot retry: {reason}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashSet;

    use super::*;

    /// The end of a retry whose coordinator gives these answers, each after 5 s, then none in time;
    /// and how often it was sent, always under one number.
    async fn ended(
        answers: impl IntoIterator<Item = CommandAnswer>,
    ) -> (Result<Option<Box<CommandReceipt>>, CliError>, usize) {
        let answers = RefCell::new(answers.into_iter());
        let sent = RefCell::new(Vec::new());
        let send = async |command| {
            let RunCommand::Retry { request, .. } = command else { unreachable!("a retry") };
            sent.borrow_mut().push(request);
            tokio::time::advance(Duration::from_secs(5)).await;
            Ok(answers.borrow_mut().next().unwrap_or(CommandAnswer::Late))
        };
        let ended = ask(&ReopenSelection::Failed, send).await;
        let sent = sent.into_inner();
        assert_eq!(sent.iter().collect::<HashSet<_>>().len(), 1, "one number");
        (ended, sent.len())
    }

    fn receipt(in_progress: bool) -> CommandAnswer {
        let receipt = CommandReceipt { named: 3, in_progress, ..CommandReceipt::default() };
        CommandAnswer::Receipt(Box::new(receipt))
    }

    #[tokio::test(start_paused = true)]
    async fn retry_of_busy_coordinator_waits_for_its_receipt() {
        let began = Instant::now();
        let (found, sent) = ended([CommandAnswer::Late, receipt(true), receipt(false)]).await;
        assert_eq!((found.expect("no error").map(|found| found.named), sent), (Some(3), 3));
        let paused = began.elapsed().saturating_sub(Duration::from_secs(15));
        assert!(paused >= IN_PROGRESS_PAUSE, "{paused:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn retry_without_answer_for_a_minute_fails_with_its_exit_code() {
        let (found, sent) = ended([]).await;
        assert_eq!((found.expect_err("no answer").code, sent), (ExitCode::OutOfReach, 12));
        // An answer begins the time again.
        let (found, sent) = ended([CommandAnswer::Late, receipt(true)]).await;
        assert_eq!((found.expect_err("no answer").code, sent), (ExitCode::OutOfReach, 14));
    }

    #[tokio::test(start_paused = true)]
    async fn retry_needs_a_new_session_only_if_no_coordinator_had_it() {
        let (found, _) = ended([CommandAnswer::NoCoordinator]).await;
        assert!(found.expect("no error").is_none());
        for first in [CommandAnswer::Late, receipt(true)] {
            let (found, _) = ended([first, CommandAnswer::NoCoordinator]).await;
            let error = found.expect_err("it may have begun");
            assert!(error.message.contains("the coordinator ended first"), "{}", error.message);
        }
    }
}
