//! `rollout tree validate`.

use std::path::PathBuf;

use clap::Args;
use rollout_protocol::exit::ExitCode;

use super::with_search;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::report::escape;
use crate::tree::validate::{Repository, Validation, check};

/// Check a search: its files, its artifacts' bytes, its decisions, its tree
///
/// Writes VALIDATION_REPORT.md and VALIDATION_REPORT.json into the directory of the search. Exits
/// with 8 when anything is wrong.
#[derive(Debug, Args)]
pub(in crate::cli) struct ValidateArgs {
    /// The directory of the search
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
    let validation = with_search(args.run_dir, |directory, manifest| {
        let validation = check(&directory, &manifest, Repository::Unknown)?;
        validation.write(&directory)?;
        Ok(validation)
    })
    .await?;
    tell(&validation, args.json, printer)
}

/// Validates a search, and makes its reports anew when nothing is wrong.
pub(super) async fn anew(
    run_dir: PathBuf,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let validation = with_search(run_dir, |directory, manifest| {
        let validation = check(&directory, &manifest, Repository::Unknown)?;
        validation.write(&directory)?;
        if validation.is_sound() {
            directory.write_reports(&manifest)?;
        }
        Ok(validation)
    })
    .await?;
    tell(&validation, json, printer)
}

fn tell(validation: &Validation, json: bool, printer: &Printer) -> Result<ExitCode, CliError> {
    let text = if json {
        let text = serde_json::to_string_pretty(validation)
            .map_err(|error| CliError::failure("the validation has no JSON form", &error))?;
        text + "\n"
    } else {
        let lines = validation.lines().into_iter();
        lines.map(|line| format!("{}\n", escape::line(&line))).collect()
    };
    printer.data(&text)?;
    Ok(if validation.is_sound() { ExitCode::Success } else { ExitCode::RunDamaged })
}
