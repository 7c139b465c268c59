//! `rollout bench`.

use std::path::Path;
use std::sync::Arc;

use rollout_protocol::exit::ExitCode;
use rollout_worker::store::fs::FsStore;

use super::args::{BenchCommand, DispatchArgs};
use super::error::CliError;
use super::output::Printer;
use crate::bench::dispatch::{self, Dispatch, Measured};
use crate::report::Materialize;

/// Runs the command.
pub(super) async fn run(what: &BenchCommand, printer: &Printer) -> Result<ExitCode, CliError> {
    match what {
        BenchCommand::Dispatch(args) => dispatch(args, printer).await,
    }
}

async fn dispatch(args: &DispatchArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let failed = |error: std::io::Error| CliError::failure("cannot use a directory", &error);
    let base = args.dir.as_deref().unwrap_or(Path::new("."));
    let directory =
        tempfile::Builder::new().prefix(".rollout-bench-").tempdir_in(base).map_err(failed)?;
    let store = Arc::new(FsStore::open(directory.path().join("blobs")).await?);
    let materialize = if args.materialize { Materialize::Full } else { Materialize::None };
    let what = Dispatch { items: args.items, window: args.window, materialize };
    let measured = dispatch::dispatch(what, store, directory.path())
        .await
        .map_err(|error| CliError::failure("nothing was measured", &error))?;
    let text = if args.json {
        serde_json::to_string(&measured)
            .map_err(|error| CliError::failure("the figures have no JSON form", &error))?
    } else {
        render(&measured)
    };
    printer.data(&(text + "\n"))?;
    Ok(ExitCode::Success)
}

fn render(measured: &Measured) -> String {
    let memory = measured
        .peak_memory_mib
        .map_or_else(|| "unknown".to_owned(), |mib| format!("{mib:.0} MiB"));
    format!(
        "{} trials, {} at a time, in {:.2} s: {:.0} trials/s\n\
         {:.1} us of processor time and {:.0} bytes of journal per trial, peak memory {memory}\n\
         floor ({}): {:.0}/s, ratio {:.2}",
        measured.items,
        measured.window,
        measured.seconds,
        measured.items_per_second,
        measured.cpu_us_per_item,
        measured.journal_bytes_per_item,
        measured.floor,
        measured.floor_per_second,
        measured.ratio,
    )
}
