//! `rollout tree validate`.

use std::path::{Path, PathBuf};

use clap::Args;
use rollout_protocol::exit::ExitCode;

use super::with_search;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::results::escape;
use crate::workloads::search::repository::RepositoryInspector;
use crate::workloads::search::validate::{CommitSource, Validation, check};

/// Validate a search: its files, artifact contents, decisions and tree
///
/// Writes VALIDATION_REPORT.md and VALIDATION_REPORT.json into the search directory. Exits with 8
/// when anything is wrong.
#[derive(Debug, Args)]
pub(in crate::cli) struct ValidateArgs {
    /// Search directory
    run_dir: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(in crate::cli) async fn validate(
    args: ValidateArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let inspector = inspect_repository(&args.run_dir).await?;
    let validation = with_search(args.run_dir, move |directory, manifest| {
        let validation = check(&directory, &manifest, as_repository(inspector.as_ref()));
        validation.write(&directory)?;
        Ok(validation)
    })
    .await?;
    print_validation(&validation, args.json, printer)
}

/// Validates a search, and rewrites its reports when nothing is wrong.
pub(super) async fn validate_and_report(
    run_dir: PathBuf,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let inspector = inspect_repository(&run_dir).await?;
    let validation = with_search(run_dir, move |directory, manifest| {
        let validation = check(&directory, &manifest, as_repository(inspector.as_ref()));
        validation.write(&directory)?;
        if validation.is_sound() {
            directory.write_reports(&manifest)?;
        }
        Ok(validation)
    })
    .await?;
    print_validation(&validation, json, printer)
}

/// Opens the commits of a search; a simulated search has none.
async fn inspect_repository(run_dir: &Path) -> Result<Option<RepositoryInspector>, CliError> {
    let simulated =
        with_search(run_dir.to_owned(), |_, manifest| Ok(manifest.run_config.dry_run)).await?;
    if simulated {
        return Ok(None);
    }
    let opened = RepositoryInspector::open(run_dir).await;
    opened.map(Some).map_err(|error| CliError::failure("cannot read the commits", &error))
}

fn as_repository(inspector: Option<&RepositoryInspector>) -> CommitSource<'_> {
    inspector.map_or(CommitSource::Unknown, |look| CommitSource::Known(look))
}

fn print_validation(
    validation: &Validation,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let text = if json {
        let text = serde_json::to_string_pretty(validation)
            .map_err(|error| CliError::failure("cannot write the validation as JSON", &error))?;
        text + "\n"
    } else {
        let lines = validation.lines().into_iter();
        lines.map(|line| format!("{}\n", escape::line(&line))).collect()
    };
    printer.data(&text)?;
    Ok(if validation.is_sound() { ExitCode::Success } else { ExitCode::RunDamaged })
}
