//! `rollout tree report`.

use std::path::PathBuf;

use clap::Args;
use rollout_protocol::exit::ExitCode;

use super::with_search;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::workloads::search::report::REPORTS;

/// Rewrite the reports of a search from its manifest
#[derive(Debug, Args)]
pub(in crate::cli) struct ReportArgs {
    /// Search directory
    run_dir: PathBuf,
}

/// Runs the command.
pub(in crate::cli) async fn report(
    args: ReportArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let root = args.run_dir.clone();
    with_search(args.run_dir, |directory, manifest| directory.write_reports(&manifest)).await?;
    for (name, _) in REPORTS {
        printer.data(&format!("{}\n", root.join(name).display()))?;
    }
    Ok(ExitCode::Success)
}
