//! `rollout export`.

use std::path::PathBuf;

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_worker::store;

use super::error::{CliError, repair_hint};
use super::output::Printer;
use super::{search_dir, store_url};
use crate::engine::RunError;
use crate::launch::export;
use crate::plan::JobPlanError;
use crate::results::escape;
use crate::results::export::{ExportError, ExportFormat, ExportRequest, ExportSummary};

/// Export the results of a run in the format of another tool
///
/// All data comes from the run's records and its blob store, whatever `--materialize` the run had.
/// Trials are in plan order. `jsonl` and `csv` go to standard output unless `--out` names a file;
/// `harbor` creates a job directory inside `--out`.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Run directory
    run_dir: PathBuf,

    /// Output format
    #[arg(long)]
    format: ExportFormat,

    /// File to write or, with `--format harbor`, directory of jobs to write into
    #[arg(long, value_name = "PATH", required_if_eq_any = NEEDS_PLACE)]
    out: Option<PathBuf>,

    /// Blob store: a directory, or `file:///directory` [default: the store that the run used]
    #[arg(long)]
    store: Option<String>,
}

/// Formats that cannot go to standard output.
const NEEDS_PLACE: [(&str, &str); 2] = [("format", "harbor"), ("format", "parquet")];

/// Hint for the directory of a search.
const SEARCH_HINT: &str = "`rollout tree show DIR --json` prints the results of a search";

/// Runs the command.
pub(super) async fn run(args: ExportArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    search_dir::refuse("export", &args.run_dir, SEARCH_HINT)?;
    let blobs = store_url::for_run(args.store.as_deref(), &args.run_dir)?;
    let store = store::open(&blobs).await?;
    let ExportArgs { run_dir, format, out, .. } = args;
    let (hint, repair) = (store_url::store_hint(&run_dir), repair_hint(&run_dir));
    let exported = export::export(&ExportRequest { run_dir, store, format, out }).await;
    let exported = exported.map_err(|error| match &error {
        ExportError::Trial { .. } => CliError::from(error).hint(&hint),
        ExportError::Plan(JobPlanError::Damaged { .. }) => CliError::from(error).hint(&repair),
        ExportError::Document { path, .. } if path.ends_with("plan.json") => {
            CliError::from(error).hint(&repair)
        }
        _ => error.into(),
    })?;
    print_summary(&exported, printer)?;
    Ok(ExitCode::Success)
}

fn print_summary(exported: &ExportSummary, printer: &Printer) -> Result<(), CliError> {
    if let Some(path) = &exported.path {
        printer.data(&format!("{}\n", escape::line(&path.to_string_lossy())))?;
    }
    if exported.missing > 0 {
        printer.warning(&format!(
            "{} settled trials are missing: the run did not end cleanly; run its command again to \
             resume it",
            exported.missing
        ));
    }
    if exported.unplanned > 0 {
        let count = exported.unplanned;
        printer.warning(&format!(
            "{count} results are left out: their trials are no longer in the plan"
        ));
    }
    if exported.keys_left_out {
        printer.warning("some reward keys are left out: there are more keys than columns");
    }
    Ok(())
}

impl From<ExportError> for CliError {
    fn from(error: ExportError) -> Self {
        let what = "cannot export the run";
        match &error {
            ExportError::NotRunDirectory { .. }
            | ExportError::OutputExists(_)
            | ExportError::NeedsOutputPath => Self::from_cause(ExitCode::Usage, what, &error),
            ExportError::Header(cause) => {
                let failed = Self::from_cause(ExitCode::RunDamaged, what, &error);
                match cause.downcast_ref::<RunError>() {
                    Some(cause) => failed.with_document_hint(cause),
                    None => failed,
                }
            }
            ExportError::Plan(JobPlanError::Newer { .. }) => {
                Self::from_cause(ExitCode::RunDamaged, what, &error).hint("use a newer rollout")
            }
            ExportError::Document { .. } | ExportError::Plan(_) => {
                Self::from_cause(ExitCode::RunDamaged, what, &error)
            }
            _ => Self::failure(what, &error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn export_of_damaged_manifest_hints_repair() {
        let path = PathBuf::from("jobs/demo/manifest.json");
        let damaged = RunError::Damaged { path, reason: "expected value".to_owned() };
        let error = CliError::from(ExportError::Header(damaged.into()));
        assert_eq!(error.code, ExitCode::RunDamaged);
        assert_eq!(
            error.message,
            "cannot export the run: jobs/demo/manifest.json is damaged: expected value"
        );
        assert!(error.hints[0].starts_with("run `rollout repair jobs/demo`"), "{:?}", error.hints);
    }
}
