//! `rollout export`.

use std::path::{Path, PathBuf};

use clap::Args;
use rollout_base::supervise;
use rollout_engine::RunError;
use rollout_protocol::exit::ExitCode;
use rollout_store::StoreError;

use super::error::{CliError, remedy, repair_hint};
use super::hint_command::{self, CommandHint, HintedRun, RunAction};
use super::output::Printer;
use super::remote_api::{self, RunUrl};
use super::run_place::RunPlace;
use super::{search_dir, store_url};
use crate::launch::export;
use crate::plan::JobPlanError;
use crate::results::escape;
use crate::results::export::{
    DEFAULT_MIN_REWARD, ExportError, ExportFormat, ExportRequest, ExportSummary,
};
use crate::results::files::TrialFilesError;
use crate::results::view::RunViewError;

/// Export the results of a run in the format of another tool
///
/// All data comes from the run's records and its blob store, whatever `--materialize` the run had.
/// Trials are in plan order. `jsonl` and `csv` go to standard output unless `--out` names a file;
/// `harbor` creates a job directory inside `--out`. `tables` writes a file per table into `--out`, a
/// new or empty directory, from the records alone: it needs no blob store. `atif` writes a file per
/// trajectory into `--out`, a new or empty directory. `traces-jsonl` and `sft` go to standard output
/// like `jsonl`; `sft` has the conversations of trials with a reward of at least `--min-reward`.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Run directory; a run in a catalog: `s3://bucket/prefix#RUN`; a live run of a server:
    /// `nats://host:4222#RUN`; or a run of `rollout serve`: `http://host:4280/v1/runs/ID`
    run_dir: PathBuf,

    /// Output format
    #[arg(long)]
    format: ExportFormat,

    /// File to write or, with `--format harbor`, `tables` and `atif`, directory to write into
    #[arg(long, value_name = "PATH", required_if_eq_any = NEEDS_PLACE)]
    out: Option<PathBuf>,

    /// Blob store: a directory, or `s3://bucket/prefix?endpoint=URL` [default: the store that the run used]
    #[arg(long)]
    store: Option<String>,

    /// Least reward of the trials that `--format sft` exports [default: 1]
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    min_reward: Option<f64>,
}

/// Formats that cannot go to standard output.
const NEEDS_PLACE: [(&str, &str); 4] =
    [("format", "harbor"), ("format", "parquet"), ("format", "tables"), ("format", "atif")];

/// Hint for the directory of a search.
const SEARCH_HINT: &str = "`rollout tree show DIR --json` prints the results of a search";

/// Runs the command.
pub(super) async fn run(args: ExportArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    if args.min_reward.is_some() && args.format != ExportFormat::Sft {
        return Err(CliError::usage("`--min-reward` can only be used with `--format sft`"));
    }
    if let Some(run) = RunUrl::parse(&args.run_dir.to_string_lossy())? {
        return of_server(run, args, printer).await;
    }
    let place = RunPlace::open(&args.run_dir).await?;
    search_dir::refuse("export", place.directory(), SEARCH_HINT)?;
    let run = HintedRun::named(&args.run_dir);
    let ExportArgs { format, out, store, min_reward, .. } = args;
    let run_dir = place.directory().to_owned();
    let exported = match (format, &out) {
        (ExportFormat::Tables, _) if store.is_some() => {
            let message = "`--store` cannot be used with `--format tables`, which reads no blobs";
            return Err(CliError::new(ExitCode::Usage, message));
        }
        (ExportFormat::Tables, Some(out)) => {
            let (from, out, is_copy) = (run_dir.clone(), out.clone(), place.is_copy());
            supervise::blocking(move || export::export_tables(&from, is_copy, &out)).await
        }
        _ => {
            let store = store_url::open_for_run(store.as_deref(), &run_dir).await?;
            let min_reward = min_reward.unwrap_or(DEFAULT_MIN_REWARD);
            let run_dir = run_dir.clone();
            let shown_in = None;
            let request = ExportRequest { run_dir, store, format, out, shown_in, min_reward };
            match place.is_copy() {
                true => export::export_copy(&request).await,
                false => export::export(&request).await,
            }
        }
    };
    let exported = exported.map_err(|error| {
        let hint = hint(&error, &run_dir);
        let failed = CliError::from(error);
        match hint {
            Some(ExportHint::Text(hint)) => failed.hint(&hint),
            Some(ExportHint::Again(hint)) => failed.command_hint(hint),
            None => failed,
        }
    })?;
    print_summary(&exported, Some(&run), printer)?;
    Ok(ExitCode::Success)
}

/// Hint for an error.
#[derive(Debug, PartialEq, Eq)]
enum ExportHint {
    Text(String),
    /// To export again.
    Again(CommandHint),
}

/// Exports a run on a server, which has its own store.
async fn of_server(run: RunUrl, args: ExportArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let ExportArgs { format, out, store, min_reward, .. } = args;
    if store.is_some() {
        let message = "`--store` cannot be used with a run on a server, which has its own store";
        return Err(CliError::usage(message));
    }
    let exported = remote_api::export(run, format, min_reward, out, printer).await?;
    print_summary(&exported, None, printer)?;
    Ok(ExitCode::Success)
}

/// The hint for an error that depends on the run directory or on its cause.
fn hint(error: &ExportError, run_dir: &Path) -> Option<ExportHint> {
    let again = || ExportHint::Again(CommandHint::new("try again").after(remedy(error)));
    let text = |text: String| Some(ExportHint::Text(text));
    match error {
        ExportError::Trial { source, .. } => match source.as_ref() {
            // A full disk and system errors may concern the files that are copied from the store.
            TrialFilesError::Store { source, .. }
                if !matches!(source, StoreError::DiskFull { .. } | StoreError::Io { .. }) =>
            {
                text(store_url::store_hint(run_dir))
            }
            TrialFilesError::NewerRecord { .. } => text("use a newer rollout".to_owned()),
            _ => Some(again()),
        },
        ExportError::File(_) => Some(again()),
        ExportError::Plan(JobPlanError::Damaged { .. }) => text(repair_hint(run_dir)),
        ExportError::Document { path, .. } if path.ends_with("plan.json") => {
            text(repair_hint(run_dir))
        }
        _ => None,
    }
}

/// Prints what was exported. `run` is one that a command can resume.
fn print_summary(
    exported: &ExportSummary,
    run: Option<&HintedRun>,
    printer: &Printer,
) -> Result<(), CliError> {
    if let Some(path) = &exported.path {
        printer.data(&format!("{}\n", escape::line(&path.to_string_lossy())))?;
    }
    if exported.missing > 0 {
        printer.warning(&format!(
            "{} settled trials are missing: the run did not end cleanly",
            exported.missing
        ));
        if let Some(run) = run.filter(|run| run.is_resumable()) {
            let resume = hint_command::command(run, &RunAction::Resume, &[]);
            printer.hint(&format!("run {resume} to resume it"));
        }
    }
    if exported.unplanned > 0 {
        let count = exported.unplanned;
        printer.warning(&format!(
            "{count} results are left out: their trials are no longer in the plan"
        ));
    }
    if exported.without_trajectory > 0 {
        printer.warning(&format!(
            "{} trials have no trajectory: no call over the model gateway has a complete reply",
            exported.without_trajectory
        ));
    }
    if exported.below_reward > 0 {
        printer.warning(&format!(
            "{} trials are left out: they have no reward, or one below `--min-reward`",
            exported.below_reward
        ));
    }
    if exported.paths_left_out > 0 {
        printer.warning(&format!(
            "{} files or directories are left out: their paths are too deep or too long for an archive",
            exported.paths_left_out
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
        let error = match error {
            // The words of `rollout status`, which reads the journal alike.
            ExportError::Journal(cause) => match cause.downcast::<RunViewError>() {
                Ok(cause) => return (*cause).into(),
                Err(cause) => ExportError::Journal(cause),
            },
            error => error,
        };
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
            ExportError::Document { .. }
            | ExportError::Plan(_)
            | ExportError::Trajectory { .. } => {
                Self::from_cause(ExitCode::RunDamaged, what, &error)
            }
            _ => Self::failure(what, &error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use rollout_protocol::digest::Digest;

    use super::*;
    use crate::results::files::FileError;

    fn full_disk() -> FileError {
        let source = Error::from(ErrorKind::StorageFull);
        FileError { action: "write", path: "out/stdout.txt".into(), source }
    }

    fn store_error(source: StoreError) -> TrialFilesError {
        TrialFilesError::Store { what: "stdout.txt".to_owned(), source }
    }

    fn hint_for_trial(source: TrialFilesError) -> Option<ExportHint> {
        let trial = "a/d/t__1".to_owned();
        let error = ExportError::Trial { trial, source: Box::new(source) };
        hint(&error, Path::new("jobs/demo"))
    }

    #[test]
    fn export_to_full_disk_hints_space_and_not_store() {
        let space = CommandHint::new("try again").after("free space on this disk");
        let space = Some(ExportHint::Again(space));
        assert_eq!(hint_for_trial(full_disk().into()), space);
        let copied = StoreError::DiskFull {
            path: "out/stdout.txt".to_owned(),
            source: ErrorKind::StorageFull.into(),
        };
        assert_eq!(hint_for_trial(store_error(copied)), space);
        assert_eq!(hint(&full_disk().into(), Path::new("jobs/demo")), space);
    }

    #[test]
    fn export_of_trial_without_blob_hints_store() {
        let (digest, store) = (Digest::sha256(b"stdout"), "1a9d".to_owned());
        let hint = hint_for_trial(store_error(StoreError::Missing { digest, store }));
        let Some(ExportHint::Text(hint)) = hint else { panic!("{hint:?}") };
        assert!(hint.contains("`--store URL`"), "{hint}");
    }

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
