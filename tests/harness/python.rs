//! A Python interpreter with the package `polars`.

use std::path::PathBuf;

use crate::print_notice;

/// Variable with the interpreter, set by `tests/run`; `no` skips the tests.
const PROGRAM: &str = "ROLLOUT_TEST_PYTHON";

/// The interpreter; `None`, with a printed reason, without one.
pub fn with_polars() -> Option<PathBuf> {
    match std::env::var_os(PROGRAM) {
        Some(program) if program != "no" => Some(program.into()),
        _ => {
            print_notice(&format!("SKIPPED: needs a Python with polars, named by {PROGRAM}"));
            None
        }
    }
}
