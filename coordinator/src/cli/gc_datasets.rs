//! `rollout gc --datasets`: removal of fetched datasets from the cache of this user.

use rollout_base::supervise;
use serde_json::{Value, json};

use super::error::CliError;
use super::gc::{self, GcArgs, Removal, megabytes, time};
use crate::launch::host::fetched_tasks;
use crate::results::escape;
use crate::sources::registry::{self, FetchedCommit, PrunedCommits};

/// Removes fetched commits.
pub(super) async fn remove(args: &GcArgs, done: &mut Removal) -> Result<(), CliError> {
    let Some(root) = fetched_tasks(|name| std::env::var_os(name)) else {
        return Err(CliError::config("cannot find the cache of this user", &NoCache));
    };
    let limits = gc::limits(args);
    let pruned = supervise::blocking(move || registry::prune(&root, &limits)).await;
    let pruned =
        pruned.map_err(|error| CliError::failure("cannot list the fetched datasets", &error))?;
    done.document["datasets"] = describe(&pruned, args.dry_run, &mut done.text);
    let failed = pruned.failed.into_iter();
    done.failed.extend(failed.map(|(path, reason)| (path.display().to_string(), reason)));
    Ok(())
}

/// The user has no cache.
#[derive(Debug, thiserror::Error)]
#[error("neither `XDG_CACHE_HOME` nor `HOME` names a directory that can be written")]
struct NoCache;

fn describe(pruned: &PrunedCommits, dry_run: bool, text: &mut String) -> Value {
    let verb = if dry_run { "would remove" } else { "removed" };
    for commit in &pruned.removed {
        let path = commit.path.display().to_string();
        let (path, size) = (escape::line(&path), megabytes(commit.bytes));
        text.push_str(&format!("{verb} {path}, {size}, last used {}\n", time(commit.used)));
    }
    let total = |commits: &[FetchedCommit]| commits.iter().map(|commit| commit.bytes).sum::<u64>();
    text.push_str(&format!(
        "{verb} {} commits of datasets, {}; {} kept, {}\n",
        pruned.removed.len(),
        megabytes(total(&pruned.removed)),
        pruned.kept.len(),
        megabytes(total(&pruned.kept)),
    ));
    let shown = |commits: &[FetchedCommit]| -> Vec<Value> {
        let each = commits.iter().map(|commit| {
            let (path, used) = (commit.path.display().to_string(), time(commit.used));
            json!({"path": path, "bytes": commit.bytes, "last_used": used})
        });
        each.collect()
    };
    let failed: Vec<_> = pruned.failed.iter().map(|(path, _)| path.display().to_string()).collect();
    json!({"removed": shown(&pruned.removed), "kept": shown(&pruned.kept), "failed": failed})
}
