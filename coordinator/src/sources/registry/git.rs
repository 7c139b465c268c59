//! Git calls on remote repositories, for blocking threads.

use std::ffi::OsStr;
use std::path::Path;

use rollout_worker::git::{self, Git};

use super::FetchError;
use super::origin::Origin;

/// Error of a git call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GitError {
    /// Git cannot be started.
    Absent(String),
    /// Git failed; the end of its output.
    Failed(String),
}

impl GitError {
    /// The error of reaching a repository.
    pub(super) fn into_unreachable(self, origin: &Origin) -> FetchError {
        match self {
            Self::Absent(why) => FetchError::NoGit(why),
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

/// Runs git in `dir` and returns its output.
pub(super) fn run<A: AsRef<OsStr>>(
    dir: &Path,
    args: impl IntoIterator<Item = A>,
) -> Result<Vec<u8>, GitError> {
    with_input(dir, args, &[])
}

/// Runs git with an input. Must not be called on an async runtime thread.
pub(super) fn with_input<A: AsRef<OsStr>>(
    dir: &Path,
    args: impl IntoIterator<Item = A>,
    input: &[u8],
) -> Result<Vec<u8>, GitError> {
    let git = Git::remote(dir);
    let call = git.call(args).input(input);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| GitError::Absent(error.to_string()))?;
    runtime.block_on(call.run()).map_err(|error| match error {
        git::GitError::NotStarted(error) => GitError::Absent(error.to_string()),
        git::GitError::Failed { said, .. } => GitError::Failed(said),
        other => GitError::Failed(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
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
