//! Errors of git calls on remote repositories.

use super::FetchError;
use super::origin::Origin;

/// Error of a git call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GitError {
    /// Git cannot be started.
    Absent(String),
    /// Git failed; the end of its output.
    Failed(String),
    /// The host may not be asked, or the fetch was cancelled.
    Refused(String),
}

impl GitError {
    /// The error of reaching a repository.
    pub(super) fn into_unreachable(self, origin: &Origin) -> FetchError {
        match self {
            Self::Absent(why) => FetchError::NoGit(why),
            Self::Refused(reason) => FetchError::Refused { url: origin.redacted_url(), reason },
            Self::Failed(said) => FetchError::Unreachable {
                url: origin.redacted_url(),
                said: origin.redact(without_address(&said)),
            },
        }
    }

    /// The error of any other operation.
    pub(super) fn into_fetch_error(self, origin: &Origin, commit: &str) -> FetchError {
        match self {
            Self::Absent(why) => FetchError::NoGit(why),
            Self::Refused(reason) => FetchError::Refused { url: origin.redacted_url(), reason },
            Self::Failed(said) => FetchError::Git {
                url: origin.redacted_url(),
                commit: commit.to_owned(),
                said: origin.redact(&said),
            },
        }
    }

    /// Whether another kind of request to the same repository may work.
    pub(super) fn may_be_the_request(&self) -> bool {
        let Self::Failed(said) = self else { return false };
        const HOPELESS: &[&str] = &[
            "Could not resolve host",
            "unable to access",
            "unable to look up",
            "unable to connect",
            "Could not read from remote repository",
            "does not appear to be a git repository",
            "Authentication failed",
            "could not read Username",
            "Connection refused",
        ];
        !HOPELESS.iter().any(|sign| said.contains(sign))
    }
}

/// Git's words without the address, which the error names already.
fn without_address(said: &str) -> &str {
    let said = said.strip_prefix("fatal: ").unwrap_or(said);
    let cause = said.strip_prefix("unable to access '").and_then(|rest| rest.split_once("': "));
    cause.map_or(said, |(_, cause)| cause)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn unreachable_repository_error_names_address_once() {
        let origin = Origin::new("http://h:9/x.git", Path::new("/"));
        let told = |said: &str| GitError::Failed(said.into()).into_unreachable(&origin).to_string();
        assert_eq!(
            told("fatal: unable to access 'http://h:9/x.git/': Failed to connect to h port 9"),
            "cannot fetch the repository http://h:9/x.git: Failed to connect to h port 9"
        );
        let other = "cannot fetch the repository http://h:9/x.git: early EOF";
        assert_eq!(told("fatal: early EOF"), other);
    }
}
