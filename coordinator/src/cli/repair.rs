//! `rollout repair`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use rollout_engine::LockError;
use rollout_engine::journal::{JournalDamage, RunLayout};
use rollout_protocol::exit::ExitCode;
use rollout_store::BlobStore;

use super::error::CliError;
use super::hint_command;
use super::output::{Printer, quoted};
use super::{run_place, store_url};
use crate::results::escape;
use crate::workloads::repair::{self, RepairError, RepairReport, RepairRequest};
use crate::workloads::search::repository::RepositoryError;

/// Maximum number of names printed of a list.
const MAX_NAMED: usize = 20;

/// Restore a run directory whose journal, manifest or plan is damaged
///
/// A journal record with one changed bit is restored as it was. Otherwise every intact record is
/// kept, and results whose record is lost are restored from the blob store and from files of
/// `records/` that match `manifest.json`. A trial whose result nothing proves, or whose result may
/// be older than a `rollout retry` whose record is lost, becomes pending: `rollout resume` runs it
/// again. Files are copied into `repair-<n>/` of the run directory before they change. The repository
/// of a search, its checkouts and the outputs of its evals are made again from the blob store.
#[derive(Debug, Args)]
pub(super) struct RepairArgs {
    /// Directory of the run or the search
    run_dir: PathBuf,

    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Blob store: a directory, or `s3://bucket/prefix?endpoint=URL` [default: the store that the run used]
    #[arg(long)]
    store: Option<String>,
}

/// Runs the command.
pub(super) async fn run(args: RepairArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let layout = match RunLayout::is_search(&args.run_dir) {
        true => RunLayout::for_search(&args.run_dir),
        false => RunLayout::new(&args.run_dir),
    };
    let blobs = match store_url::for_run(args.store.as_deref(), &args.run_dir) {
        Err(error) if args.store.is_some() => return Err(error),
        found => found,
    };
    let (store, absent): (Option<Arc<dyn BlobStore>>, _) = match blobs {
        Ok(blobs) => (Some(store_url::open_found(&blobs, &args.run_dir).await?), None),
        Err(absent) => (None, Some(absent)),
    };
    let dry_run = args.dry_run;
    let mut repaired = repair::repair(RepairRequest { layout, store, dry_run }).await?;
    if let Some(failure) = repaired.search_failure.take() {
        if !repaired.is_clean() {
            printer.data(&render(&repaired, dry_run))?;
        }
        return Err(failure.into());
    }
    printer.data(&render(&repaired, dry_run))?;
    let needs_store =
        !repaired.search.damaged.is_empty() || (!repaired.is_journal_clean() && !repaired.exact);
    if let Some(absent) = absent.filter(|_| needs_store) {
        printer.warning(&format!("{}; what is in it is not restored", absent.message));
        absent.hints.iter().for_each(|hint| printer.hint(hint));
    }
    if !repaired.is_clean() {
        printer.hint(&next_step(&args));
    }
    Ok(ExitCode::Success)
}

/// The command that follows a repair, or its simulation.
fn next_step(args: &RepairArgs) -> String {
    if !args.dry_run {
        return match hint_command::resume_directory(&args.run_dir) {
            Some(resume) => format!("run {resume} to resume"),
            None => "the next session of the run resumes it".to_owned(),
        };
    }
    let store = args.store.as_deref().map(|store| format!(" --store {}", quoted(store)));
    let run_dir = quoted(&args.run_dir.to_string_lossy());
    format!("run `rollout repair {run_dir}{}` to do this", store.unwrap_or_default())
}

/// The report as text.
fn render(repaired: &RepairReport, dry_run: bool) -> String {
    if repaired.is_clean() {
        return "nothing is damaged\n".to_owned();
    }
    let would = if dry_run { "would be " } else { "" };
    let mut lines: Vec<String> = repaired
        .search
        .damaged
        .iter()
        .map(|part| match repaired.search.is_repairable {
            true => format!("{part}: damaged, {would}made again from the blob store"),
            false => format!("{part}: damaged"),
        })
        .collect();
    if !repaired.is_journal_clean() {
        add_journal_lines(repaired, would, &mut lines);
    }
    let lines = lines.iter().map(|line| format!("{}\n", escape::line(line)));
    lines.collect()
}

/// Adds what is damaged in journal, manifest and plan, and what became of the trials.
fn add_journal_lines(repaired: &RepairReport, would: &str, lines: &mut Vec<String>) {
    for damage in &repaired.damages {
        let JournalDamage { path, offset, end, repaired: mended } = damage;
        let location = format!("{}, bytes {offset} to {end}", path.display());
        lines.push(match mended {
            Some(_) if repaired.exact => {
                format!("{location}: {would}restored, one bit had changed")
            }
            Some(_) => format!("{location}: one bit had changed, the record {would}kept"),
            None => format!("{location}: cannot be read"),
        });
    }
    lines.extend(repaired.missing.iter().map(|path| format!("{}: missing", path.display())));
    let changed = repaired.changed.iter();
    lines.extend(
        changed.map(|path| format!("{}: changed, its intact records {would}kept", path.display())),
    );
    let documents = repaired.documents.iter();
    lines.extend(documents.map(|path| {
        format!("{}: damaged, {would}moved aside; the next session writes it again", path.display())
    }));
    let restored = repaired.restored.len();
    if restored > 0 {
        lines.push(format!("results {would}restored: {restored}"));
        let named = repaired.restored.iter().take(MAX_NAMED);
        lines.extend(named.map(|(name, proof)| format!("  {name}, from {proof}")));
    }
    lines.push(format!("trials with a result: {}", repaired.settled));
    if !repaired.pending.is_empty() {
        lines.push(format!(
            "trials started and without a result, now pending: {}",
            repaired.pending.len()
        ));
        lines.extend(repaired.pending.iter().take(MAX_NAMED).map(|name| format!("  {name}")));
    }
    if !repaired.doubtful.is_empty() {
        lines.push(format!(
            "trials whose result may be older than a `rollout retry`, now pending: {}",
            repaired.doubtful.len()
        ));
        lines.extend(repaired.doubtful.iter().take(MAX_NAMED).map(|name| format!("  {name}")));
    }
    if let Some(copies) = &repaired.copies {
        lines.push(format!("copies of the changed files: {}", copies.display()));
    }
}

impl From<RepairError> for CliError {
    fn from(error: RepairError) -> Self {
        let what = "cannot repair the run";
        match error {
            RepairError::Lock(LockError::Held { .. } | LockError::RunHeld { .. }) => {
                Self::from_cause(ExitCode::LockHeld, what, &error).hint("wait until its owner ends")
            }
            RepairError::NoRun { root, .. } if !root.exists() => run_place::no_run(&root),
            RepairError::NoRun { root, missing } => run_place::not_a_run(&root, missing),
            RepairError::Unknown { .. } | RepairError::Journal(_) => {
                Self::from_cause(ExitCode::RunDamaged, what, &error)
            }
            RepairError::Run(error) => error.into(),
            RepairError::Store(error) | RepairError::Repository(RepositoryError::Store(error)) => {
                error.into()
            }
            RepairError::Search(error) => error.into(),
            RepairError::Lock(_) | RepairError::Repository(_) | RepairError::Outputs(_) => {
                Self::failure(what, &error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_ends_with_next_step() {
        let args = |dry_run, store: Option<&str>| RepairArgs {
            run_dir: PathBuf::from("jobs/demo"),
            dry_run,
            store: store.map(str::to_owned),
        };
        assert_eq!(next_step(&args(true, None)), "run `rollout repair jobs/demo` to do this");
        assert_eq!(
            next_step(&args(true, Some("blobs"))),
            "run `rollout repair jobs/demo --store blobs` to do this"
        );
        assert_eq!(next_step(&args(false, None)), "the next session of the run resumes it");
        let temp = tempfile::tempdir().expect("a directory");
        let text = r#"{"directory": "/", "arguments": []}"#;
        std::fs::write(temp.path().join("invocation.json"), text).expect("writable");
        let repaired = RepairArgs { run_dir: temp.path().to_owned(), ..args(false, None) };
        let path = temp.path().display();
        let resume = format!("run `cd / && rollout resume {path}` to resume");
        assert_eq!(next_step(&repaired), resume);
    }
}
