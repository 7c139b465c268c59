//! What changed between two commits of a search.

use std::time::Duration;

use rollout_worker::git::{GitError, is_commit};

use super::{RepositoryError, SearchRepository};

/// Bytes of a patch: far above what anybody reads.
const MAX_PATCH_BYTES: u64 = 512 * 1024;

/// Longest that two commits are compared.
const DIFF_TIMEOUT: Duration = Duration::from_secs(600);

/// Paths that are counted in front of it.
const STAT_OPTION: &str = "--stat=100,80,200";

/// How it is made, whatever anybody configured: no program, no conversion, no colour; the same
/// whatever else the repository holds. Larger files than anybody reads are only named: comparing
/// them line by line may take hours.
const DIFF_ARGS: [&str; 11] = [
    "-c",
    "core.bigFileThreshold=4m",
    "diff-tree",
    "--patch-with-stat",
    STAT_OPTION,
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-renames",
    "--full-index",
    "-r",
];

/// What stands at the end of a patch that is not whole.
const TRUNCATION_NOTICE: &str = "[… the rest of the changes is left out …]\n";

/// What a patch is that could not be made in time.
const TIMEOUT_NOTICE: &str = "[… the changes are not shown: comparing them takes too long …]\n";

impl SearchRepository {
    /// The changes from one commit of the search to another: how much of which file, and a patch.
    /// One that is too long is cut after a line, and says so; so does one that takes too long.
    ///
    /// # Errors
    /// [`RepositoryError`].
    pub async fn diff(&self, from: &str, to: &str) -> Result<Vec<u8>, RepositoryError> {
        self.bounded_diff(from, to, MAX_PATCH_BYTES, DIFF_TIMEOUT).await
    }

    pub(super) async fn bounded_diff(
        &self,
        from: &str,
        to: &str,
        max_bytes: u64,
        limit: Duration,
    ) -> Result<Vec<u8>, RepositoryError> {
        for commit in [from, to] {
            if !is_commit(commit) {
                return Err(RepositoryError::Unknown { commit: commit.to_owned() });
            }
            self.ensure_objects(commit).await?;
        }
        let call = self.bare.git().call(DIFF_ARGS).args([from, to]).args(["--"]);
        let call = call.max_bytes(max_bytes).timeout(limit);
        let mut patch = Vec::new();
        match call.run_into(&mut patch).await {
            Ok(_) => Ok(patch),
            Err(GitError::TooLarge { .. }) => {
                patch.truncate(usize::try_from(max_bytes).unwrap_or(usize::MAX));
                let whole = patch.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                patch.truncate(whole);
                patch.extend_from_slice(TRUNCATION_NOTICE.as_bytes());
                Ok(patch)
            }
            // It would take as long the next time.
            Err(GitError::TimedOut { .. }) => Ok(TIMEOUT_NOTICE.into()),
            Err(error) => Err(self.git_failure(error)),
        }
    }
}
