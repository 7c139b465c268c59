//! `rollout tree validate`.

use std::path::{Path, PathBuf};

use clap::Args;
use rollout_base::backoff::error_chain;
use rollout_protocol::exit::ExitCode;

use super::with_search;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::cli::store_url;
use crate::results::escape;
use crate::workloads::search::backend::{
    ComparedOutputs, OutputRepair, ResultsError, compare_outputs,
};
use crate::workloads::search::repository::RepositoryInspector;
use crate::workloads::search::validate::{CommitSource, Validation, check};

/// Validate a search: its files, artifact contents, decisions and tree
///
/// Compares outputs of evals with the blob store that the search used, if it gives answers; unpacked
/// archives of logs and outputs are fetched for that. Writes VALIDATION_REPORT.md and
/// VALIDATION_REPORT.json into the search directory. Exits with 8 when anything is wrong.
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
    let outputs = inspect_outputs(&args.run_dir, printer).await?;
    let validation = with_search(args.run_dir, move |directory, manifest| {
        let mut validation = check(&directory, &manifest, as_repository(inspector.as_ref()));
        outputs.iter().for_each(|outputs| validation.add_outputs(outputs));
        validation.write(&directory)?;
        Ok(validation)
    })
    .await?;
    print_validation(&validation, args.json, printer)
}

/// Validates a search, and rewrites its reports when nothing is wrong. The reports need no outputs, which
/// are not fetched.
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

/// Compares the outputs of evals with the store that the search used; `None` without its answers.
async fn inspect_outputs(
    run_dir: &Path,
    printer: &Printer,
) -> Result<Option<ComparedOutputs>, CliError> {
    let found = with_search(run_dir.to_owned(), |directory, manifest| Ok((directory, manifest)));
    let (directory, manifest) = found.await?;
    let Ok(url) = store_url::for_run(None, run_dir) else { return Ok(None) };
    if manifest.run_config.dry_run {
        return Ok(None);
    }
    let Ok(store) = store_url::open_found(&url, run_dir).await else { return Ok(None) };
    let compared = compare_outputs(&directory, &manifest, &*store, OutputRepair::None).await;
    match compared {
        Ok(compared) => Ok(Some(compared)),
        Err(error @ ResultsError::Store { .. }) => {
            let reason = error_chain(&error);
            printer.warning(&format!("outputs of evals were not compared: {reason}"));
            Ok(None)
        }
        Err(error) => Err(CliError::failure("cannot compare outputs of evals", &error)),
    }
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
