//! `rollout gc --store`: removal of a blob store that no run uses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollout_protocol::exit::ExitCode;
use rollout_worker::store::open;
use rollout_worker::supervise;
use serde_json::json;

use super::args::GcArgs;
use super::error::CliError;
use super::output::Printer;
use super::store_url;
use crate::results::escape;
use crate::results::files::store;

/// Entries of a store. Its identity is removed first: without it the rest is no store.
const STORE_ENTRIES: &[&str] = &["store.json", "blobs", "docs", "damaged", "tmp"];

/// Runs the command.
pub(super) async fn run(
    named: &str,
    args: &GcArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let url = store_url::parse(named)?;
    let Some(directory) = url.directory() else {
        return Err(CliError::usage(
            "cannot remove a blob store that is not a directory".to_owned(),
        ));
    };
    if store::identity_of(directory).is_none() {
        let what = format!("there is no blob store in {}", directory.display());
        return Err(CliError::usage(what));
    }
    // Opening the store removes leftovers of dead processes.
    let opened = open(&url).await?;
    let mut users = sibling_runs(directory);
    let mut missing = Vec::new();
    for store::RunRegistration { run, directory: path, .. } in store::runs_using(&*opened).await? {
        if is_run(&path) {
            users.push(path);
        } else {
            missing.push(format!("{} (run {run})", path.display()));
        }
    }
    users.sort_unstable();
    users.dedup();
    if !users.is_empty() {
        let what = format!(
            "cannot remove the blob store {1}: {0} runs use it",
            users.len(),
            directory.display()
        );
        let mut refused = CliError::new(ExitCode::Config, what);
        refused.details = users.iter().map(|path| path.display().to_string()).collect();
        return Err(
            refused.hint("first remove the directories of the runs that you no longer need")
        );
    }
    if !missing.is_empty() && !args.force {
        let what =
            "cannot remove the blob store: directories of its runs are missing, removed or moved";
        let mut refused = CliError::new(ExitCode::Config, what);
        refused.details = missing;
        return Err(refused.hint("use `--force` to remove the store if none of them is needed"));
    }
    let dry_run = args.dry_run;
    let would = if dry_run { "would remove" } else { "removed" };
    let root = directory.to_owned();
    let bytes = supervise::blocking(move || match dry_run {
        true => size(&root),
        false => remove(&root),
    });
    let bytes =
        bytes.await.map_err(|error| CliError::failure("cannot remove the store", &error))?;
    let line = format!("{would} the blob store {} ({bytes} bytes)", directory.display());
    let text = match args.json {
        true => json!({"dry_run": dry_run, "store": directory, "bytes": bytes}).to_string(),
        false => escape::line(&line).into_owned(),
    };
    printer.data(&format!("{text}\n"))?;
    Ok(ExitCode::Success)
}

/// Bytes of everything in a store.
fn size(root: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    let mut waiting: Vec<PathBuf> = STORE_ENTRIES.iter().map(|part| root.join(part)).collect();
    while let Some(path) = waiting.pop() {
        let found = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        if !found.is_dir() {
            bytes += found.len();
            continue;
        }
        for entry in fs::read_dir(&path)? {
            waiting.push(entry?.path());
        }
    }
    Ok(bytes)
}

/// Removes a store that no process writes to. Returns its size in bytes.
fn remove(root: &Path) -> io::Result<u64> {
    let bytes = size(root)?;
    if fs::read_dir(root.join("tmp")).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(io::Error::other("a process is writing to it"));
    }
    for part in STORE_ENTRIES {
        let path = root.join(part);
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    // It may contain other files.
    let _kept = fs::remove_dir(root);
    Ok(bytes)
}

/// The run directories beside a store that is the default store of a jobs directory.
fn sibling_runs(store: &Path) -> Vec<PathBuf> {
    let store = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    let own = store.ends_with(".rollout/blobs");
    let jobs = store.ancestors().nth(2).filter(|_| own);
    let entries = jobs.and_then(|jobs| fs::read_dir(jobs).ok());
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| is_run(path) && uses_store(path, &store)).collect()
}

fn is_run(path: &Path) -> bool {
    path.join("journal").is_dir()
}

/// Whether a run in a jobs directory uses the store of that directory, by its own record.
fn uses_store(run_dir: &Path, store: &Path) -> bool {
    store::find(run_dir).is_ok_and(|found| found.directory() == Some(store))
}
