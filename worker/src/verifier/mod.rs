//! Verification: paths of the task's tests, and their rewards.

pub mod keyed_reward;
pub mod reward;

use rollout_environment::Upload;

/// Directory for the logs of all scripts.
pub const LOGS: &str = "/logs";

/// Directory of the task's tests, placed just before they run.
pub const TESTS_DIR: &str = "/tests";

/// The test script.
pub const TEST_SCRIPT: &str = "/tests/test.sh";

/// Directory in which the test script leaves its reward and logs; empty when verification starts.
pub const VERIFIER_LOGS: &str = "/logs/verifier";

/// The file with one number, below [`VERIFIER_LOGS`].
pub const REWARD_FILE: &str = "reward.txt";

/// The file with several numbers, below [`VERIFIER_LOGS`].
pub const KEYED_FILE: &str = "reward.json";

/// Recreates the verifier's log directory, below a real directory that is open to every user: an
/// agent may have removed it, closed it, or put a file or link in its place.
pub fn fresh_logs() -> [Upload; 2] {
    let [logs, verifier] = [LOGS, VERIFIER_LOGS].map(str::to_owned);
    [Upload::Dir { path: logs }, Upload::FreshDir { path: verifier }]
}
