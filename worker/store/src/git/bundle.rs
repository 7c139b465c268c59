//! Commits as files: git's bundle format with one commit and at most one prerequisite.

use std::path::Path;

use rollout_protocol::spec::eval::CommitBundle;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{BareRepository, Git, GitError, is_commit};

/// Name of the commit inside the bundle.
const COMMIT_REF: &str = "refs/heads/commit";

/// Longest header: a commit, a prerequisite, and their names.
const HEADER_BYTES: u64 = 1024;

/// Writes a commit to a new file: relative to its parent, or without its history if `parent` is
/// `None`. Returns the size.
///
/// # Errors
/// [`GitError`]; no file is left then.
pub async fn write(
    git: &Git,
    commit: &str,
    parent: Option<&str>,
    to: &Path,
    max_bytes: u64,
) -> Result<u64, GitError> {
    let written = write_all(git, commit, parent, to, max_bytes).await;
    if written.is_err() {
        // Best effort: the original error is more important.
        let _removed = tokio::fs::remove_file(to).await;
    }
    written
}

async fn write_all(
    git: &Git,
    commit: &str,
    parent: Option<&str>,
    to: &Path,
    max_bytes: u64,
) -> Result<u64, GitError> {
    let args = ["pack-objects", "-q", "--stdout", "--delta-base-offset"];
    let pack = match parent {
        Some(parent) => git
            .call(args.iter().chain(&["--thin", "--revs"]))
            .input(format!("{commit}\n^{parent}\n")),
        None => {
            let list = ["rev-list", "--objects", "--no-walk=unsorted", commit];
            git.call(args).input(git.call(list).run().await?)
        }
    };
    let failed = |error| GitError::io("write", to, error);
    let mut file = tokio::fs::File::create_new(to).await.map_err(failed)?;
    let header = header(commit, parent);
    file.write_all(header.as_bytes()).await.map_err(failed)?;
    let bytes = pack.max_bytes(max_bytes).run_into(&mut file).await?;
    file.sync_all().await.map_err(failed)?;
    Ok(header.len() as u64 + bytes)
}

fn header(commit: &str, parent: Option<&str>) -> String {
    let version = match commit.len() {
        64 => "# v3 git bundle\n@object-format=sha256\n",
        _ => "# v2 git bundle\n",
    };
    let needs = parent.map_or_else(String::new, |parent| format!("-{parent} \n"));
    format!("{version}{needs}{commit} {COMMIT_REF}\n\n")
}

/// Imports a commit from a file into a repository made by Rollout, where `name` refers to it
/// afterwards. The file must contain exactly this commit, and the repository its parent. With
/// `fsck`, objects that fail git's checks are refused.
///
/// # Errors
/// [`GitError`]; `name` does not exist then.
pub async fn read(
    bare: &BareRepository,
    file: &Path,
    bundle: &CommitBundle,
    name: &str,
    fsck: bool,
) -> Result<(), GitError> {
    let bad =
        |reason: &str| GitError::BadBundle { path: file.to_owned(), reason: reason.to_owned() };
    if !is_commit(&bundle.commit) || bundle.parent.as_deref().is_some_and(|c| !is_commit(c)) {
        return Err(bad("its commit ids are invalid"));
    }
    let expected = header(&bundle.commit, bundle.parent.as_deref());
    let mut found = Vec::new();
    let opened = tokio::fs::File::open(file).await;
    let mut opened = opened.map_err(|error| GitError::io("open", file, error))?.take(HEADER_BYTES);
    let read = opened.read_to_end(&mut found).await;
    read.map_err(|error| GitError::io("read", file, error))?;
    if !found.starts_with(expected.as_bytes()) {
        return Err(bad("it contains or requires a different commit"));
    }
    let check = format!("transfer.fsckObjects={fsck}");
    let fetched = bare
        .git()
        .call(["-c", &check, "fetch", "-q", "--no-tags", "--no-write-fetch-head"])
        .args(["--no-auto-maintenance", "--no-recurse-submodules", "--"])
        .args([file.as_os_str()])
        .args([format!("+{COMMIT_REF}:{name}")])
        .variable("GIT_ALLOW_PROTOCOL", "file");
    fetched.run().await?;
    Ok(())
}
