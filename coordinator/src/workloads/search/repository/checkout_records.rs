//! Records of git about checkouts, and whether a checkout still has its files.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rollout_base::supervise;
use rollout_store::git::{BareRepository, TreeEntry, is_commit};

use super::{RepositoryError, SearchRepository};

/// Marker of a complete checkout, in its directory in the git repository.
pub(super) const COMPLETE_MARK: &str = "rollout-complete";

/// Files of git that every checkout has there. Git fails if one of them is empty.
const RECORDS: [&str; 4] = ["HEAD", "commondir", "gitdir", "index"];

/// Modes of files and links.
const FILES: [u32; 2] = [0o100_644, 0o100_755];
const LINK: u32 = 0o120_000;

/// The record of a checkout in the git repository.
#[derive(Debug)]
pub(super) struct CheckoutRecord {
    /// Its directory below `worktrees` in the git repository.
    pub(super) admin: PathBuf,
    /// Path of the checkout below the run's directory, if it is recorded.
    pub(super) path: Option<String>,
    /// The commit if the checkout is complete and no record of it is lost.
    pub(super) commit: Option<String>,
}

impl CheckoutRecord {
    /// Lists the records of a repository.
    pub(super) fn list(run: &Path, bare: &Path) -> Result<Vec<Self>, RepositoryError> {
        let admins = list(&bare.join("worktrees"))?.into_iter();
        Ok(admins.map(|admin| Self::read(run, admin)).collect())
    }

    fn read(run: &Path, admin: PathBuf) -> Self {
        let read = |name| std::fs::read_to_string(admin.join(name)).unwrap_or_default();
        let (home, head) = (read("gitdir"), read("HEAD"));
        let home = Path::new(home.trim_end()).parent();
        let path = home.and_then(|home| home.strip_prefix(run).ok()?.to_str()).map(str::to_owned);
        let has_text = |file: &Path| {
            file.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() > 0)
        };
        let is_whole = admin.join(COMPLETE_MARK).exists()
            && RECORDS.iter().all(|name| has_text(&admin.join(name)))
            && path.as_ref().is_some_and(|path| has_text(&run.join(path).join(".git")));
        let commit = Some(head.trim_end().to_owned()).filter(|head| is_whole && is_commit(head));
        Self { admin, path, commit }
    }

    /// Whether the checkout was complete once, and its records are damaged now.
    fn is_damaged(&self) -> bool {
        self.commit.is_none() && self.admin.join(COMPLETE_MARK).exists()
    }
}

/// Describes the damaged checkouts of a search. Changes nothing.
pub(super) async fn describe_damaged(
    run: &Path,
    bare: &BareRepository,
) -> Result<Vec<String>, RepositoryError> {
    let mut damaged = Vec::new();
    for record in CheckoutRecord::list(run, bare.dir())? {
        let place =
            record.path.as_ref().map_or_else(|| record.admin.clone(), |path| run.join(path));
        let shown = rollout_base::shown_path::shown(&place).to_string();
        if record.is_damaged() {
            damaged.push(format!("the checkout {shown}"));
        } else if let (Some(path), Some(commit)) = (&record.path, &record.commit)
            && let Some(lost) = find_lost_file(bare, &run.join(path), commit).await?
        {
            damaged.push(format!("the checkout {shown}, which lacks the content of {lost}"));
        }
    }
    Ok(damaged)
}

impl SearchRepository {
    /// A file of a checkout that is missing or shorter than in its commit.
    pub(super) async fn find_lost_file(
        &self,
        path: &str,
        commit: &str,
    ) -> Result<Option<String>, RepositoryError> {
        find_lost_file(&self.bare, &self.run.join(path), commit).await
    }
}

async fn find_lost_file(
    bare: &BareRepository,
    checkout: &Path,
    commit: &str,
) -> Result<Option<String>, RepositoryError> {
    let entries = match bare.tree(commit).await {
        Ok(entries) => entries,
        Err(error) if error.is_refusal() => return Ok(Some(format!("its commit {commit}"))),
        Err(source) => {
            return Err(RepositoryError::Git { path: bare.dir().to_owned(), source });
        }
    };
    let home = checkout.to_owned();
    let find = move || {
        for entry in &entries {
            if is_lost(&home, entry)? {
                return Ok(Some(String::from_utf8_lossy(&entry.path).into_owned()));
            }
        }
        Ok(None)
    };
    let found: io::Result<Option<String>> = supervise::blocking(find).await;
    found.map_err(|error| RepositoryError::io("inspect", checkout, error))
}

/// Whether a file of a checkout is missing or shorter than in its commit. A user may have changed
/// it otherwise.
fn is_lost(checkout: &Path, entry: &TreeEntry) -> io::Result<bool> {
    let is_file = FILES.contains(&entry.mode);
    if !is_file && entry.mode != LINK {
        return Ok(false);
    }
    match checkout.join(OsStr::from_bytes(&entry.path)).symlink_metadata() {
        Ok(found) => Ok(is_file && found.len() < entry.size_bytes.unwrap_or(0)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Lists a directory that may be missing.
pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>, RepositoryError> {
    let failed = |error| RepositoryError::io("list", dir, error);
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}
