//! Repository addresses and revisions.

use std::path::{Component, Path, PathBuf};

use crate::config::{RepositoryPlace, without_secrets, without_secrets_of};

/// A repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    url: String,
}

impl Origin {
    /// The repository at an address as written: a URL, `user@host:path`, or a local directory,
    /// relative to `base`.
    pub fn new(written: &str, base: &Path) -> Self {
        let is_path = RepositoryPlace::of(written) == RepositoryPlace::Directory;
        if !is_path || written.starts_with("file://") {
            return Self { url: written.to_owned() };
        }
        let path = base.join(written);
        let path = std::path::absolute(&path).unwrap_or(path);
        Self { url: plain(&path).to_string_lossy().into_owned() }
    }

    /// The address, for git.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether it is a directory of this host.
    pub(super) fn is_local(&self) -> bool {
        RepositoryPlace::of(&self.url) == RepositoryPlace::Directory
    }

    /// Its directory on this host, if it is there.
    pub fn path(&self) -> Option<&Path> {
        let path = self.url.strip_prefix("file://").unwrap_or(&self.url);
        self.is_local().then_some(Path::new(path))
    }

    /// The address for display, without user and password.
    pub fn redacted_url(&self) -> String {
        without_secrets(&self.url)
    }

    /// Removes the address's user and password from the output of a program.
    pub(super) fn redact(&self, text: &str) -> String {
        without_secrets_of(&self.url, text)
    }

    /// The repository's own name.
    pub fn name(&self) -> &str {
        let trimmed = self.url.trim_end_matches('/');
        let last = trimmed.rsplit(['/', ':']).next().unwrap_or(trimmed);
        last.strip_suffix(".git").unwrap_or(last)
    }
}

/// A revision of a repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// Its current HEAD.
    Head,
    /// A branch or a tag.
    Named(String),
    /// A commit, by its full id.
    Commit(String),
}

impl Revision {
    /// The revision that a registry or a job names.
    pub fn new(written: Option<&str>) -> Self {
        match written.map(str::trim) {
            None | Some("") => Self::Head,
            Some(word) if word.eq_ignore_ascii_case("head") => Self::Head,
            Some(id) if is_commit(id) => Self::Commit(id.to_ascii_lowercase()),
            Some(name) => Self::Named(name.to_owned()),
        }
    }
}

/// Whether a text is a full object id.
pub(super) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Normalizes `.` and `..` in a path: two spellings are one repository.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repo_url_with_password_is_shown_without_it() {
        for (written, url, shown, name) in [
            (
                "https://me:pw@host/o/r.git",
                "https://me:pw@host/o/r.git",
                "https://host/o/r.git",
                "r",
            ),
            ("git@host:o/r.git", "git@host:o/r.git", "git@host:o/r.git", "r"),
            ("host:r", "host:r", "host:r", "r"),
            ("../up/r/", "/srv/up/r", "/srv/up/r", "r"),
            ("./a:b", "/srv/jobs/a:b", "/srv/jobs/a:b", "b"),
            ("file:///srv/r", "file:///srv/r", "file:///srv/r", "r"),
        ] {
            let origin = Origin::new(written, Path::new("/srv/jobs"));
            assert_eq!((origin.url(), &*origin.redacted_url(), origin.name()), (url, shown, name));
        }
    }

    #[test]
    fn revision_text_is_head_commit_or_name() {
        let id = "0123456789ABCDEF0123456789abcdef01234567";
        assert_eq!(Revision::new(None), Revision::Head);
        assert_eq!(Revision::new(Some("head")), Revision::Head);
        assert_eq!(Revision::new(Some(id)), Revision::Commit(id.to_ascii_lowercase()));
        assert_eq!(Revision::new(Some("v1")), Revision::Named("v1".to_owned()));
        assert_eq!(Revision::new(Some("0123456")), Revision::Named("0123456".to_owned()));
    }
}
