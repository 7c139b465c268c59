//! `rollout pause`, and the end of a pause by `rollout resume`.

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};

use super::{LiveRun, ServerArgs};
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::events::sinks::terminal::format::plural;

/// Hint for the directory of a search.
const SEARCH_HINT: &str =
    "stop its `rollout tree run` with Ctrl-C; `rollout resume DIR` resumes it";

/// Pause a run: no trial begins, running ones go on
///
/// The run's coordinator must be alive; it answers once the pause is durable. `rollout resume` ends
/// the pause, and so does a new session of the run.
#[derive(Debug, Args)]
pub(in crate::cli) struct PauseArgs {
    /// Run directory, run id, a run on a server: `nats://host:4222#RUN`, or in a catalog:
    /// `s3://bucket/prefix#RUN`
    #[arg(value_name = "RUN")]
    run: String,

    /// Print the receipt as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command.
pub(in crate::cli) async fn pause(
    args: &PauseArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let live = LiveRun::require(&args.run, &args.server, "pause", SEARCH_HINT).await?;
    match live.command(RunCommand::Pause).await? {
        Some(receipt) => print_receipt("pause", "paused", &receipt, args.json, printer),
        None => Err(CliError::refused("cannot pause the run: its coordinator does not run")),
    }
}

/// Ends the pause of a run whose coordinator runs; `None` if none does.
pub(in crate::cli) async fn end_pause(
    live: &LiveRun,
    json: bool,
    printer: &Printer,
) -> Result<Option<ExitCode>, CliError> {
    match live.command(RunCommand::Continue).await? {
        Some(receipt) => print_receipt("resume", "continued", &receipt, json, printer).map(Some),
        None => Ok(None),
    }
}

fn print_receipt(
    verb: &str,
    done: &str,
    receipt: &CommandReceipt,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let CommandReceipt { named, running, refused, .. } = receipt;
    if json {
        printer.json(receipt)?;
    } else if refused.is_none() {
        let running = running.unwrap_or_default();
        let named = plural(*named, "trial");
        printer.data(&format!("{done}: {named} without a result, {running} running\n"))?;
    }
    match refused {
        None => Ok(ExitCode::Success),
        Some(reason) => Err(CliError::refused(format!("cannot {verb} the run: {reason}"))),
    }
}
