//! `--ca-bundle` of the commands that run work.

use std::path::Path;

use clap::Args;
use rollout_base::backoff::error_chain;
use rollout_base::tls_files;
use rollout_environment::CaBundle;

use super::output::Printer;
use crate::config::env_vars;

/// The CA bundle of environments.
#[derive(Debug, Args)]
pub(super) struct CaBundleArgs {
    /// Certificates, in PEM, of all authorities that programs in environments and builds trust
    ///
    /// Most programs trust them in place of those of their image. Workers of a server have an option of
    /// their own.
    #[arg(long, value_name = "FILE", env = env_vars::CA_BUNDLE.name, value_parser = read)]
    ca_bundle: Option<CaBundle>,
}

impl CaBundleArgs {
    /// The bundle of environments of this process.
    pub(super) fn of_process(
        &self,
        has_remote_workers: bool,
        printer: &Printer,
    ) -> Option<CaBundle> {
        if has_remote_workers && self.ca_bundle.is_some() {
            printer.warning(
                "the CA bundle has no effect: start the workers of the server with `--ca-bundle`",
            );
            return None;
        }
        self.ca_bundle.clone()
    }
}

fn read(path: &str) -> Result<CaBundle, String> {
    let read = tls_files::read_bundle(Path::new(path));
    read.map(CaBundle::new).map_err(|error| error_chain(&error))
}
