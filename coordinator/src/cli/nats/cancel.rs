//! `rollout cancel`.

use std::path::Path;

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::RunId;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand, TrialSelection};
use rollout_worker::queue::traits::QueueError;

use super::RequiredNatsArgs;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::engine::RunManifest;
use crate::engine::journal::RunLayout;

/// End trials of a run for good: they settle as cancelled
///
/// Trials that have a result keep it. Without a selection all of the run's trials are ended, and
/// with them the run. Needs the run's coordinator to be alive; what it answers is journalled.
#[derive(Debug, Args)]
pub(in crate::cli) struct CancelArgs {
    /// The run: its directory, or its id
    #[arg(value_name = "RUN")]
    run: String,

    /// Trials of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,

    /// Trials of this dataset
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,

    /// Trials of this task
    #[arg(long, value_name = "NAME")]
    task: Option<String>,

    /// This attempt, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    /// Print the receipt as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    nats: RequiredNatsArgs,
}

/// Runs the command.
pub(in crate::cli) async fn cancel(
    args: &CancelArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let run = run_id(&args.run)?;
    let nats = args.nats.connect().await?;
    let selection = TrialSelection {
        agent: args.agent.clone(),
        dataset: args.dataset.clone(),
        task: args.task.clone(),
        attempt: args.attempt,
    };
    let receipt = match nats.command(run, RunCommand::Cancel { selection }).await {
        Ok(receipt) => receipt,
        Err(error @ QueueError::NoAnswer { .. }) => {
            return Err(CliError::failure("nothing was cancelled", &error)
                .hint("start the run again and cancel then: what is owed is offered only by it"));
        }
        Err(error) => return Err(error.into()),
    };
    print_receipt(&receipt, args.json, printer)
}

fn print_receipt(
    receipt: &CommandReceipt,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let CommandReceipt { named, settled, ended, refused } = receipt;
    if json {
        let text = serde_json::to_string(receipt).expect("text keys only");
        printer.data(&format!("{text}\n"))?;
    } else if refused.is_none() {
        printer.data(&format!(
            "{named} trials named: {ended} are ended, {settled} had a result, which stands\n"
        ))?;
    }
    match refused {
        None => Ok(ExitCode::Success),
        Some(reason) => Err(CliError::refused(format!("nothing was cancelled: {reason}"))),
    }
}

/// The run of a directory, or with this id.
fn run_id(text: &str) -> Result<RunId, CliError> {
    let directory = Path::new(text);
    if directory.is_dir() {
        return match RunManifest::read(&RunLayout::new(directory))? {
            Some(manifest) => Ok(manifest.run),
            None => Err(CliError::refused(format!("{text} is no run directory"))),
        };
    }
    text.parse().map_err(|_| {
        CliError::refused(format!("{text} is neither a run directory nor the id of a run"))
    })
}
