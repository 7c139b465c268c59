//! `rollout retry` of a run whose coordinator runs.

use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};

use super::LiveRun;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::engine::ReopenSelection;

/// Gives settled trials another try within the session; `None` if no coordinator answers.
pub(in crate::cli) async fn retry(
    live: &LiveRun,
    selection: &ReopenSelection,
    json: bool,
    printer: &Printer,
) -> Result<Option<ExitCode>, CliError> {
    let request = rand::random();
    let mut is_known = false;
    loop {
        let command = RunCommand::Retry { request, selection: selection.clone() };
        match live.command(command).await? {
            // It reads a long journal. Under the same number, the command asks for its receipt.
            Some(CommandReceipt { in_progress: true, .. }) => is_known = true,
            Some(receipt) => return print_receipt(&receipt, json, printer).map(Some),
            None if is_known => {
                let message = "cannot tell which trials run again: the coordinator ended first";
                return Err(CliError::refused(message)
                    .hint("`rollout status` shows the run; the same command selects the rest"));
            }
            None => return Ok(None),
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
        printer.data(&format!("{named} trials selected: {reopened} run again\n"))?;
    }
    match refused {
        None => Ok(ExitCode::Success),
        Some(reason) => Err(CliError::refused(format!("cannot retry: {reason}"))),
    }
}
