//! `rollout gc --store`: removal of the blobs that no run needs, and of a store without any run.

use std::sync::Arc;

use rollout_protocol::exit::ExitCode;
use rollout_store::{BlobStore, StoreUrl};
use serde_json::{Value, json};

use super::error::CliError;
use super::gc::GcArgs;
use super::output::Printer;
use super::store_url;
use crate::results::escape;
use crate::workloads::blobs::{
    AbsentRun, BlobCount, BlobsError, CollectionReport, CollectionRequest, collect,
};

/// Runs the command.
pub(super) async fn run(
    named: &str,
    args: &GcArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let url = store_url::parse(named)?;
    // Opening the store removes leftovers of dead processes.
    let store: Arc<dyn BlobStore> = store_url::open_named(&url).await?;
    let request = CollectionRequest {
        store,
        url: url.clone(),
        grace: args.grace,
        force: args.force,
        forget: args.forget.clone(),
        remove_store: args.remove_store,
        dry_run: args.dry_run,
    };
    let report = collect(&request).await?;
    let text = match args.json {
        true => document(&url, &report, args.dry_run).to_string(),
        false => lines(&url, &report, args.dry_run),
    };
    printer.data(&format!("{text}\n"))?;
    match report.store_in_use {
        None => Ok(ExitCode::Success),
        Some(reason) => {
            printer.warning(&format!("cannot remove the blob store {url}: {reason}"));
            Ok(ExitCode::Failure)
        }
    }
}

fn lines(url: &StoreUrl, report: &CollectionReport, dry_run: bool) -> String {
    let verb = if dry_run { "would remove" } else { "removed" };
    let CollectionReport { needed, young, removed, .. } = report;
    let url = url.to_string();
    let url = escape::line(&url);
    let mut lines = Vec::new();
    for run in &report.removed_runs {
        lines.push(format!("{verb} the documents of run {run}"));
    }
    lines.push(match report.store_removed {
        true => format!("{verb} the blob store {url}, {}", count(removed)),
        false => format!("{verb} {} from the blob store {url}", count(removed)),
    });
    if !report.store_removed {
        lines.push(format!(
            "kept {} that {} runs need, and {} that are too young",
            count(needed),
            report.kept_runs,
            count(young)
        ));
    }
    lines.join("\n")
}

fn count(count: &BlobCount) -> String {
    format!("{} blobs ({} bytes)", count.blobs, count.bytes)
}

fn document(url: &StoreUrl, report: &CollectionReport, dry_run: bool) -> Value {
    let count = |count: &BlobCount| json!({"blobs": count.blobs, "bytes": count.bytes});
    json!({
        "dry_run": dry_run,
        "store": url.to_string(),
        "kept_runs": report.kept_runs,
        "removed_runs": report.removed_runs,
        "needed": count(&report.needed),
        "young": count(&report.young),
        "removed": count(&report.removed),
        "store_removed": report.store_removed,
        "bytes": report.removed.bytes,
    })
}

/// One line for each directory of runs.
fn directories(runs: &[AbsentRun]) -> Vec<String> {
    let lines = runs.iter().flat_map(|absent| match absent.registered.as_slice() {
        [] => vec![format!("no directory is registered (run {})", absent.run)],
        registered => registered.iter().map(ToString::to_string).collect(),
    });
    lines.collect()
}

impl From<BlobsError> for CliError {
    fn from(error: BlobsError) -> Self {
        let (what, reading) = ("cannot collect the blobs", "cannot tell which blobs a run needs");
        match error {
            BlobsError::Store(error) => error.into(),
            BlobsError::Catalog(error) => error.into(),
            BlobsError::Missing(ref runs) => {
                let mut refused = Self::from_cause(ExitCode::Config, what, &error);
                refused.details = directories(runs);
                refused.hint(
                    "use `--force` to remove what only they need, or run moved ones once more, \
                     so that they register their new place",
                )
            }
            BlobsError::OnOtherHosts(ref runs) => {
                let mut refused = Self::from_cause(ExitCode::Config, what, &error);
                refused.details = directories(runs);
                refused.hint(
                    "run the command on a host that can read the directories of all runs, or \
                     name each removed one with `--forget RUN`",
                )
            }
            BlobsError::InProgress { ref runs, .. } => {
                let mut refused = Self::from_cause(ExitCode::Config, what, &error);
                refused.details = runs.iter().map(|path| path.display().to_string()).collect();
                refused.hint("wait until they end, or use a longer `--grace`")
            }
            BlobsError::NotAbsent { .. } => Self::usage(error.to_string()),
            BlobsError::Journal(ref cause) => {
                Self::from_cause(ExitCode::RunDamaged, reading, &error).with_journal_hint(cause)
            }
            BlobsError::Plan(ref cause) => {
                Self::from_cause(ExitCode::RunDamaged, reading, &error).with_document_hint(cause)
            }
            BlobsError::File { .. } | BlobsError::Panic(_) => Self::failure(reading, &error),
        }
    }
}
