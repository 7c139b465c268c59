//! Python interpreters with packages that tests need.

use std::path::PathBuf;

use crate::ignored::or_ignored;

/// The interpreter with the package `polars`; without one, the test is ignored.
pub fn with_polars() -> Option<PathBuf> {
    or_ignored(find_polars())
}

/// The interpreter with the package `polars`.
///
/// # Errors
/// The reason, without one.
pub fn find_polars() -> Result<PathBuf, String> {
    find("ROLLOUT_TEST_PYTHON", "polars")
}

/// The interpreter with the package `helm-python-sdk`; without one, the test is ignored.
pub fn with_helm() -> Option<PathBuf> {
    interpreter("ROLLOUT_TEST_HELM", "helm-python-sdk")
}

/// The interpreter with the tools of the Python client; without one, the test is ignored.
pub fn with_client_tools() -> Option<PathBuf> {
    or_ignored(find_client_tools())
}

/// The interpreter with the tools of the Python client.
///
/// # Errors
/// The reason, without one.
pub fn find_client_tools() -> Result<PathBuf, String> {
    find("ROLLOUT_TEST_PYTHON_CLIENT", "httpx, pytest, mypy, ruff and hatchling")
}

/// The interpreter with the package `schemathesis`; without one, the test is ignored.
pub fn with_schemathesis() -> Option<PathBuf> {
    interpreter("ROLLOUT_TEST_SCHEMATHESIS", "schemathesis")
}

/// The interpreter with the package `maturin`; without one, the test is ignored.
pub fn with_maturin() -> Option<PathBuf> {
    interpreter("ROLLOUT_TEST_MATURIN", "maturin")
}

/// The interpreter with the package that an adapter of the Python client is for, `agent_lightning`,
/// `trl` or `verifiers`, and with httpx and pytest; without one, the test is ignored.
pub fn with_trainer(adapter: &str) -> Option<PathBuf> {
    interpreter(&format!("ROLLOUT_TEST_PYTHON_{}", adapter.to_uppercase()), adapter)
}

/// The interpreter that `variable` names, set by `tests/run`; with `no`, the test is
/// ignored.
fn interpreter(variable: &str, package: &str) -> Option<PathBuf> {
    or_ignored(find(variable, package))
}

fn find(variable: &str, package: &str) -> Result<PathBuf, String> {
    let program = std::env::var_os(variable).filter(|program| program != "no");
    let program = program.map(PathBuf::from);
    program.ok_or_else(|| format!("needs a Python with {package}, named by {variable}"))
}
