//! Verification: where the task's tests go, what runs them, and what their reward means.

pub mod keyed_reward;
pub mod reward;

use crate::environment::Upload;

/// Everything that scripts log to.
pub const LOGS: &str = "/logs";

/// Where the task's tests are placed, just before they run.
pub const TESTS_DIR: &str = "/tests";

/// The test script.
pub const TEST_SCRIPT: &str = "/tests/test.sh";

/// Where the test script leaves its reward and logs; empty when verification starts.
pub const VERIFIER_LOGS: &str = "/logs/verifier";

/// The file with one number, below [`VERIFIER_LOGS`].
pub const REWARD_FILE: &str = "reward.txt";

/// The file with several numbers, below [`VERIFIER_LOGS`].
pub const KEYED_FILE: &str = "reward.json";

/// Makes the verifier's logs anew, below a real directory that is open to every user: an agent may
/// have removed it, closed it, or put a file or link in its place.
pub fn fresh_logs() -> [Upload; 2] {
    let [logs, verifier] = [LOGS, VERIFIER_LOGS].map(str::to_owned);
    [Upload::Dir { path: logs }, Upload::FreshDir { path: verifier }]
}
