//! `rollout retry`.

use clap::Parser as _;
use rollout_protocol::exit::ExitCode;

use super::args::{Cli, Command, RetryArgs};
use super::error::CliError;
use super::invocation::Invocation;
use super::output::Printer;
use super::run;
use crate::engine::ReopenSelection;

/// Runs the command.
pub(super) async fn retry(args: RetryArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let RetryArgs { run_dir, failed, trial, options, .. } = args;
    let reopen = match (failed, trial.is_empty()) {
        (true, _) => ReopenSelection::Failed,
        (false, true) => ReopenSelection::Infrastructure,
        (false, false) => ReopenSelection::Trials(trial),
    };
    let Invocation { directory, arguments, left_out } = Invocation::read(&run_dir)?;
    let missing: Vec<_> = left_out.iter().filter(|name| !options.contains(name)).collect();
    if let Some(name) = missing.first() {
        return Err(CliError::usage(format!(
            "cannot retry: the run's value of `{name}` is not stored; give it again, as in \
             `rollout retry {} --failed -- {name} VALUE`",
            run_dir.display()
        )));
    }
    // Paths in the options are relative to it.
    if std::env::current_dir().ok().as_ref() != Some(&directory) {
        let directory = directory.display();
        return Err(CliError::usage(format!(
            "cannot retry here: the run was started in {directory}; run this command there"
        )));
    }
    let words = ["rollout".to_owned(), "run".to_owned()].into_iter().chain(arguments);
    let parsed = Cli::try_parse_from(words.chain(options))
        .map_err(|error| CliError::usage(format!("cannot read the run's options: {error}")))?;
    let Command::Run(mut again) = parsed.command else {
        return Err(CliError::usage("cannot retry: the stored options are not those of a run"));
    };
    again.reopen = Some(reopen);
    run::run(*again, printer).await
}
