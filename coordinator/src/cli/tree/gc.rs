//! `rollout tree gc`.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use rollout_base::supervise;
use rollout_engine::{LockOptions, LockWaitPolicy, RunLock};
use rollout_environment::Owner;
use rollout_protocol::exit::ExitCode;
use rollout_store::host::HostOwners;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::cli::store_url;
use crate::launch::LaunchError;
use crate::launch::host::{HostPaths, answering, provider, reap};
use crate::providers;
use crate::results::escape;
use crate::workloads::search::backend::InactiveRepository;
use crate::workloads::search::driver::{
    GarbageReport, SearchDirectory, SearchError, collect_garbage,
};
use crate::workloads::search::repository::SearchRepository;

/// Remove leftovers of a search: failed removals, unused checkouts and references, environments of
/// dead processes
///
/// A running search does the same. A search with a live owner is refused with code 6.
#[derive(Debug, Args)]
pub(in crate::cli) struct TreeGcArgs {
    /// Search directory
    run_dir: PathBuf,

    /// Blob store: a directory, or `s3://bucket/prefix?endpoint=URL` [default: .rollout/blobs beside the search]
    #[arg(long)]
    store: Option<String>,
}

/// Runs the command.
pub(in crate::cli) async fn gc(args: TreeGcArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let run_dir = canonical_run_dir(&args.run_dir)?;
    let directory = SearchDirectory::new(&run_dir);
    let found = directory.clone();
    let manifest = supervise::blocking(move || found.manifest()).await?;
    let state_dir = shared_dir(&run_dir);
    let wait_policy = LockWaitPolicy { wait: false, ..LockWaitPolicy::default() };
    let (_nobody, mut stops) = mpsc::channel(1);
    let lock_options = LockOptions { wait_policy, ..LockOptions::default() };
    let grant = RunLock::acquire(directory.layout(), &lock_options, &mut stops).await;
    let (lock, taken) = grant.map_err(SearchError::from)?;
    let mut report = GarbageReport::default();
    if !manifest.run_config.dry_run {
        let store = store_url::open_for_run(args.store.as_deref(), &run_dir).await?;
        let opened = SearchRepository::open(&run_dir, &manifest.tree_run_id, store).await;
        let repository =
            opened.map_err(|error| CliError::failure("cannot open the repository", &error))?;
        let (handle, tree) = (Handle::current(), directory.clone());
        let fence = taken.fence;
        let mut kept = InactiveRepository { handle, repository };
        report = supervise::blocking(move || collect_garbage(&tree, &mut kept, &fence)).await?;
    }
    let host = HostPaths::for_process(&state_dir).map_err(LaunchError::Program)?;
    let mut providers = Vec::new();
    for built in providers::built() {
        providers.push(provider(built.kind, &host, &directory.layout().sandboxes())?);
    }
    let providers = answering(providers).await;
    reap(&providers, &HostOwners::new(Owner::current(run_dir))).await;
    drop(lock.release(None).await);
    print_result(&report, printer)
}

/// The canonical directory of a search, also for `.`.
fn canonical_run_dir(run_dir: &Path) -> Result<PathBuf, SearchError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => SearchError::NotFound { root: run_dir.to_owned() },
        _ => SearchError::File { action: "find", path: run_dir.to_owned(), source },
    };
    run_dir.canonicalize().map_err(failed)
}

/// The directory that searches share, beside them.
fn shared_dir(run_dir: &Path) -> PathBuf {
    run_dir.parent().unwrap_or(run_dir).join(".rollout")
}

fn print_result(report: &GarbageReport, printer: &Printer) -> Result<ExitCode, CliError> {
    let mut text = String::new();
    for path in &report.removed {
        text.push_str(&format!("removed {}\n", escape::line(path)));
    }
    printer.data(&text)?;
    for (path, reason) in &report.failed {
        printer.warning(&format!("cannot remove {path}: {reason}"));
    }
    Ok(if report.failed.is_empty() { ExitCode::Success } else { ExitCode::Failure })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_directory_is_found_by_any_spelling_of_search_path() {
        let runs = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(runs.path().join("run/wt")).expect("made");
        let shared = runs.path().canonicalize().expect("there").join(".rollout");
        for name in ["run", "run/.", "run/wt/.."] {
            assert_eq!(
                shared_dir(&canonical_run_dir(&runs.path().join(name)).expect("there")),
                shared,
                "{name}"
            );
        }
        assert!(
            canonical_run_dir(Path::new(".")).expect("there").parent().is_some(),
            "a whole path"
        );
        let nothing = canonical_run_dir(&runs.path().join("other"));
        assert!(matches!(nothing, Err(SearchError::NotFound { .. })), "{nothing:?}");
    }
}
