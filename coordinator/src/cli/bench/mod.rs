//! `rollout bench`.

mod dispatch;

use std::path::Path;

use rollout_protocol::exit::ExitCode;
use serde::Serialize;
use tempfile::TempDir;

use super::args::{BenchCommand, DispatchArgs};
use super::error::CliError;
use super::logging;
use super::output::Printer;
use crate::config::LogLevel;

/// Runs the command.
pub(super) async fn run(what: &BenchCommand, printer: &Printer) -> Result<ExitCode, CliError> {
    logging::start(LogLevel::Warn, logging::LogArgs::default(), printer.screen(), printer.err);
    let BenchCommand::Dispatch(args) = what;
    dispatch::dispatch(args, printer).await
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
