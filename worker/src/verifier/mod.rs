//! Verification: where the task's tests go, what runs them, and what their reward means.

pub mod keyed;
pub mod reward;

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
