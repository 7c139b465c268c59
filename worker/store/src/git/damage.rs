//! Damage of repositories made by Rollout. After a power failure, files that git did not sync are
//! empty, missing or full of zeros, while packs are whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollout_base::shown_path::shown;
use rollout_base::{durable, supervise};

use super::{BareRepository, GitError, is_commit};

/// A damaged part of a repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {reason}", shown(path))]
pub struct RepositoryDamage {
    /// Path of the part.
    pub path: PathBuf,
    /// What is wrong, as the end of a sentence.
    pub reason: String,
}

/// Whether the content of a file is whole.
type ContentCheck<'a> = &'a dyn Fn(&str) -> bool;

impl BareRepository {
    /// Makes the repository durable. Git never syncs some of its files, whatever its settings.
    ///
    /// # Errors
    /// [`GitError::Io`].
    pub async fn sync(&self) -> Result<(), GitError> {
        let dir = self.dir().to_owned();
        let synced = supervise::blocking(move || durable::sync_tree(&dir)).await;
        synced.map_err(|error| GitError::io("sync", self.dir(), error))
    }

    /// Finds damage of a repository with this root commit: in the files that git needs, in its
    /// references, and among the objects of the root.
    ///
    /// # Errors
    /// [`GitError`] if the host fails.
    pub async fn find_damage(&self, root: &str) -> Result<Option<RepositoryDamage>, GitError> {
        let (dir, commit) = (self.dir().to_owned(), root.to_owned());
        let found = supervise::blocking(move || find_file_damage(&dir, &commit)).await;
        let found = found.map_err(|error| GitError::io("read", self.dir(), error))?;
        if found.is_some() {
            return Ok(found);
        }
        match self.tree(root).await {
            Ok(_) => Ok(None),
            Err(error) if error.is_refusal() => {
                let reason = format!("lacks objects of its root: {error}");
                Ok(Some(RepositoryDamage { path: self.dir().to_owned(), reason }))
            }
            Err(error) => Err(error),
        }
    }
}

fn find_file_damage(dir: &Path, root: &str) -> io::Result<Option<RepositoryDamage>> {
    let has_root = |text: &str| text.lines().any(|line| line == root);
    let files: [(&str, ContentCheck<'_>); 4] = [
        ("HEAD", &is_reference),
        ("config", &is_text),
        ("info/attributes", &is_text),
        ("shallow", &has_root),
    ];
    for (name, is_whole) in files {
        if let Some(damage) = check_file(&dir.join(name), is_whole)? {
            return Ok(Some(damage));
        }
    }
    let packed = dir.join("packed-refs");
    if packed.exists()
        && let Some(damage) = check_file(&packed, &is_text)?
    {
        return Ok(Some(damage));
    }
    for name in ["objects", "refs"] {
        let path = dir.join(name);
        if !path.is_dir() {
            return Ok(Some(RepositoryDamage { path, reason: "is missing".to_owned() }));
        }
    }
    find_broken_reference(dir.join("refs"))
}

/// Finds a loose reference that names no commit. Git does not replace it.
fn find_broken_reference(refs: PathBuf) -> io::Result<Option<RepositoryDamage>> {
    let mut dirs = vec![refs];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                dirs.push(path);
            } else if path.extension().is_none_or(|extension| extension != "lock")
                && let Some(damage) = check_file(&path, &is_reference)?
            {
                return Ok(Some(damage));
            }
        }
    }
    Ok(None)
}

fn check_file(path: &Path, is_whole: ContentCheck<'_>) -> io::Result<Option<RepositoryDamage>> {
    let reason = match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => "is empty",
        Ok(bytes) if !is_whole(&String::from_utf8_lossy(&bytes)) => "has other content than git's",
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "is missing",
        Err(error) => return Err(error),
    };
    Ok(Some(RepositoryDamage { path: path.to_owned(), reason: reason.to_owned() }))
}

/// Whether a text is the content of `HEAD` or of a reference.
fn is_reference(text: &str) -> bool {
    text.starts_with("ref: refs/") || is_commit(text.trim_end())
}

/// Whether a file has any text: blocks that were never written are full of zeros.
fn is_text(text: &str) -> bool {
    !text.trim().is_empty() && !text.contains('\0')
}
