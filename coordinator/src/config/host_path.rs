//! Permission of a document to name files of the host that reads it. A document has none, unless its
//! reader gives it: who sends a document over the network may not read this host.

use std::path::{Path, PathBuf};

use super::address::{is_remote_repository, without_secrets};
use super::keys::{Key, KeyKind};

/// The access of a document to paths of this host. A refused path is not looked at.
#[derive(Clone, Copy, Default)]
pub enum HostAccess<'a> {
    /// Nothing.
    #[default]
    Nothing,
    /// Sources that rules admit, and no other file.
    Listed(&'a dyn HostPathRules),
    /// Everything. Only for documents of a user who started this program.
    Everything,
}

/// Rules for the sources that a document may name.
pub trait HostPathRules {
    /// Why a document may not name a source, in words for its author; `None` if it may.
    fn refusal(&self, source: HostSource, written: &str) -> Option<String>;

    /// The bounds of a directory that a source has, by its path without links.
    fn bounds(&self, directory: &Path) -> SourceBounds;
}

/// The directory that the repository of a source does not leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceBounds {
    /// The whole host.
    Host,
    /// A directory of the operator.
    Listed(PathBuf),
    /// A directory that a user uploaded. A repository in it has all of its files there.
    Upload(PathBuf),
}

/// A source that may be on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostSource {
    /// A path, also of an uploaded dataset.
    Path,
    /// A path that only the operator of this host may provide.
    OperatorPath,
    /// Address of a git repository.
    Repository,
    /// The same, with an optional `@` and a reference.
    RepositoryAtReference,
    /// Address of a registry.
    Registry,
}

impl HostSource {
    /// Whether a source is on this host.
    fn is_of_host(self, written: &str) -> bool {
        match self {
            Self::Path | Self::OperatorPath => true,
            // The reference follows the address.
            Self::Repository | Self::RepositoryAtReference => !is_remote_repository(written),
            Self::Registry => !["https://", "http://"].iter().any(|one| written.starts_with(one)),
        }
    }
}

impl HostAccess<'_> {
    /// Whether the document is of a user who started this program.
    pub(super) const fn is_of_this_user(self) -> bool {
        matches!(self, Self::Everything)
    }

    /// Why a document may not have a text at a key; `None` if it may.
    pub(super) fn refusal(self, key: Key, written: &str) -> Option<String> {
        if self.is_of_this_user() {
            return None;
        }
        match key.kind {
            KeyKind::Value(_)
            | KeyKind::EnvironmentPath(_)
            | KeyKind::ResultPath(_)
            | KeyKind::TaskPath(_) => None,
            KeyKind::NameOrHostFile(_, _, names) if names.contains(&written) => None,
            KeyKind::HostFile(_, instead) | KeyKind::NameOrHostFile(_, instead, _) => {
                Some(format!("a server reads no file that a document names: {instead}"))
            }
            KeyKind::HostOutput(_) if written == key.default => None,
            KeyKind::HostOutput(_) => {
                Some("the server keeps results in its own directory".to_owned())
            }
            KeyKind::Source(_, source) => self.source_refusal(source, written),
        }
    }

    /// The bounds of a directory that a source has, by its path without links.
    pub(crate) fn bounds(self, directory: &Path) -> SourceBounds {
        match self {
            Self::Everything => SourceBounds::Host,
            Self::Listed(rules) => rules.bounds(directory),
            Self::Nothing => SourceBounds::Listed(directory.to_owned()),
        }
    }

    /// Why a document may not name a source; `None` if it may.
    pub(crate) fn source_refusal(self, source: HostSource, written: &str) -> Option<String> {
        match self {
            Self::Everything => None,
            Self::Listed(rules) => rules.refusal(source, written),
            Self::Nothing => {
                let is_refused = source.is_of_host(written);
                let shown = without_secrets(written);
                is_refused.then(|| format!("`{shown}`, which is on this host, is not allowed"))
            }
        }
    }
}
