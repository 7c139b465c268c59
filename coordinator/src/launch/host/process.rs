//! Program and variables of this process.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::{HostPaths, OperatorOptions, image_locks};
use crate::config::env_vars;

/// First argument that makes the program the supervisor of a sandbox; internal, so not in the help.
pub const SANDBOX_COMMAND: &str = "__sandbox";

/// The program and first argument that start the supervisor of a sandbox.
fn sandbox_helper() -> io::Result<Vec<OsString>> {
    Ok(vec![std::env::current_exe()?.into(), SANDBOX_COMMAND.into()])
}

/// The variables of this process that are valid UTF-8.
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

impl HostPaths {
    /// The paths of runs of this process; `state` is used if the user has no cache directory.
    ///
    /// # Errors
    /// When the program's own file cannot be found.
    pub fn for_process(state: &Path) -> io::Result<Self> {
        let image_locks = image_locks(|name| std::env::var_os(name), state.join("locks"));
        let kubernetes_config = std::env::var_os(env_vars::KUBERNETES_CONFIG.name);
        let kubernetes_config = kubernetes_config.filter(|path| !path.is_empty()).map(Into::into);
        let operator = OperatorOptions { kubernetes_config, ca_bundle: None };
        Ok(Self { image_locks, sandbox_helper: sandbox_helper()?, operator })
    }

    /// The same paths with these options of the operator, where they are set.
    #[must_use]
    pub fn with_operator(mut self, set: OperatorOptions) -> Self {
        let OperatorOptions { kubernetes_config, ca_bundle } = self.operator;
        self.operator = OperatorOptions {
            kubernetes_config: set.kubernetes_config.or(kubernetes_config),
            ca_bundle: set.ca_bundle.or(ca_bundle),
        };
        self
    }
}
