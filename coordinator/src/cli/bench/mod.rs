//! `rollout bench`.

mod embedded;
#[cfg(feature = "nats")]
mod queue;

use std::path::Path;

use rollout_protocol::exit::ExitCode;
use serde::Serialize;
use tempfile::TempDir;

use super::args::{BenchCommand, DispatchArgs};
use super::error::CliError;
use super::logging;
use super::output::Printer;
use crate::config::LogLevel;

/// First argument that makes the program the worker of a measurement; internal.
#[cfg(feature = "nats")]
pub(super) use crate::bench::queue::HELPER_ARGUMENT as WORKER;

/// Runs as the worker of a measurement.
#[cfg(feature = "nats")]
pub(super) async fn serve(printer: &Printer) -> Result<ExitCode, CliError> {
    logging::start(LogLevel::Warn, printer.screen(), printer.err);
    let served = crate::bench::queue::serve().await;
    served.map_err(|error| CliError::failure("the worker of a measurement failed", &error))?;
    Ok(ExitCode::Success)
}

/// Runs the command.
pub(super) async fn run(what: &BenchCommand, printer: &Printer) -> Result<ExitCode, CliError> {
    logging::start(LogLevel::Warn, printer.screen(), printer.err);
    let BenchCommand::Dispatch(args) = what;
    #[cfg(feature = "nats")]
    if let Some(url) = &args.nats {
        return queue::dispatch(args, url, printer).await;
    }
    embedded::dispatch(args, printer).await
}

/// A directory to measure in.
fn directory(args: &DispatchArgs) -> Result<TempDir, CliError> {
    let base = args.dir.as_deref().unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(".rollout-bench-")
        .tempdir_in(base)
        .map_err(|error| CliError::failure("cannot create a directory for the measurement", &error))
}

fn json<T: Serialize>(measured: &T) -> Result<String, CliError> {
    serde_json::to_string(measured)
        .map_err(|error| CliError::failure("cannot write the figures as JSON", &error))
}
