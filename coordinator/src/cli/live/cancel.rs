//! `rollout cancel`.

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::command::{
    CommandReceipt, IN_PROGRESS_PAUSE, RunCommand, TrialSelection,
};
use rollout_queue::traits::QueueError;

use super::{LiveRun, ServerArgs};
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::cli::remote_api::{self, RunUrl};
use crate::events::sinks::terminal::format::plural;

/// Cancel trials of a run: they settle as cancelled
///
/// Trials that have a result keep it. Without a selection all of the run's trials are cancelled,
/// and the run ends. The run's coordinator must be alive; it answers once the command is durable.
#[derive(Debug, Args)]
pub(in crate::cli) struct CancelArgs {
    /// Run directory, run id, a run on a server: `nats://host:4222#RUN` or
    /// `http://host:4280/v1/runs/ID`, or in a catalog: `s3://bucket/prefix#RUN`
    #[arg(value_name = "RUN")]
    run: String,

    /// Only trials of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,

    /// Only trials of this dataset
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,

    /// Only trials of this task
    #[arg(long, value_name = "NAME")]
    task: Option<String>,

    /// Only this attempt, counted from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,

    /// Print the receipt as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// Hint for the directory of a search.
const SEARCH_HINT: &str =
    "evals of a search cannot be cancelled; stop its `rollout tree run` with Ctrl-C or SIGTERM";

/// Runs the command.
pub(in crate::cli) async fn cancel(
    args: &CancelArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    if let Some(run) = RunUrl::parse(&args.run)? {
        let selection = [&args.agent, &args.dataset, &args.task];
        if selection.iter().any(|part| part.is_some()) || args.attempt.is_some() {
            let what = "cannot cancel some trials of a run on a server of `rollout serve`";
            return Err(CliError::usage(what).hint("cancel the whole run: use no selection"));
        }
        return remote_api::cancel(&run, args.json, printer).await;
    }
    let live = LiveRun::require(&args.run, &args.server, "cancel trials of", SEARCH_HINT).await?;
    let selection = TrialSelection {
        agent: args.agent.clone(),
        dataset: args.dataset.clone(),
        task: args.task.clone(),
        attempt: args.attempt,
    };
    let Some(receipt) = ask(&selection, async |command| live.command(command).await).await? else {
        let error = QueueError::NoAnswer { run: live.run() };
        return Err(CliError::failure("cannot cancel trials", &error)
            .hint("start the run again, then cancel: only the run offers its pending trials"));
    };
    print_receipt(&receipt, args.json, printer)
}

/// Sends the command until it is done; `None` if the run has no coordinator. A large run cancels its
/// trials portion by portion.
async fn ask(
    selection: &TrialSelection,
    send: impl AsyncFn(RunCommand) -> Result<Option<CommandReceipt>, CliError>,
) -> Result<Option<CommandReceipt>, CliError> {
    loop {
        let command = RunCommand::Cancel { selection: selection.clone() };
        match send(command).await? {
            Some(receipt) if receipt.in_progress => tokio::time::sleep(IN_PROGRESS_PAUSE).await,
            receipt => return Ok(receipt),
        }
    }
}

fn print_receipt(
    receipt: &CommandReceipt,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let CommandReceipt { named, settled, ended, refused, .. } = receipt;
    if json {
        let text = serde_json::to_string(receipt).expect("text keys only");
        printer.data(&format!("{text}\n"))?;
    } else if refused.is_none() {
        let named = plural(*named, "trial");
        printer.data(&format!(
            "{named} selected: {ended} cancelled, {settled} with a result that stays\n"
        ))?;
    }
    match refused {
        None => Ok(ExitCode::Success),
        Some(reason) => Err(CliError::refused(format!("cannot cancel trials: {reason}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn coordinator_that_is_in_progress_at_once_is_asked_after_a_pause() {
        let (asked, began) = (Cell::new(0), Instant::now());
        let send = async |_: RunCommand| {
            asked.set(asked.get() + 1);
            let in_progress = asked.get() < 4;
            Ok(Some(CommandReceipt { named: asked.get(), in_progress, ..Default::default() }))
        };
        let receipt = ask(&TrialSelection::default(), send).await.expect("no error");
        assert_eq!((receipt.map(|receipt| receipt.named), asked.get()), (Some(4), 4));
        assert!(began.elapsed() >= IN_PROGRESS_PAUSE * 3, "{:?}", began.elapsed());
    }
}
