//! The changes between two commits of a search.

use std::time::Duration;

use rollout_store::git::{GitError, is_commit};

use super::{RepositoryError, SearchRepository};

/// Maximum size of a patch in bytes: far more than is useful to read.
const MAX_PATCH_BYTES: u64 = 512 * 1024;

/// Timeout of a comparison.
const DIFF_TIMEOUT: Duration = Duration::from_secs(600);

/// Width limits of the file statistics before the patch.
const STAT_OPTION: &str = "--stat=100,80,200";

/// Options of the comparison. They override any configuration: no external program, no conversion,
/// no colour, and no dependence on other objects in the repository. Files too large to read are
/// only named: comparing them line by line may take hours.
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

/// End of a patch that was cut.
const TRUNCATION_NOTICE: &str = "[… the rest of the changes is left out …]\n";

/// Contents of a patch that timed out.
const TIMEOUT_NOTICE: &str = "[… the changes are not shown: comparing them takes too long …]\n";

impl SearchRepository {
    /// The changes from one commit of the search to another: statistics per file and a patch. A
    /// patch that is too long is cut after a line and ends with a notice; one that takes too long
    /// is replaced by a notice.
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
            // A retry would time out as well.
            Err(GitError::TimedOut { .. }) => Ok(TIMEOUT_NOTICE.into()),
            Err(error) => Err(self.git_failure(error)),
        }
    }
}
