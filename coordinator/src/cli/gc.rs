//! `rollout gc`.

use rollout_protocol::exit::ExitCode;

use super::args::GcArgs;
use super::error::CliError;
#[cfg(feature = "docker")]
use super::gc_docker;
use super::gc_store;
use super::output::Printer;

/// Runs the command.
pub(super) async fn run(args: &GcArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    match &args.store {
        Some(store) => gc_store::run(store, args, printer).await,
        #[cfg(feature = "docker")]
        None => gc_docker::run(args, printer).await,
        #[cfg(not(feature = "docker"))]
        None => Err(CliError::usage("`--store` is missing: name the blob store")),
    }
}
