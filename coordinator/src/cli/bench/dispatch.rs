//! `rollout bench dispatch`.

use rollout_protocol::exit::ExitCode;

use super::{directory, json};
use crate::bench::dispatch::{self, DispatchBench, DispatchMeasurement};
use crate::cli::args::DispatchArgs;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::events::MaterializeMode;

pub(super) async fn dispatch(args: &DispatchArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let materialize = if args.materialize { MaterializeMode::Full } else { MaterializeMode::None };
    for window in &args.window {
        let directory = directory(args)?;
        let store = rollout_store::open(&directory.path().join("blobs").into()).await?;
        let what = DispatchBench { items: args.items, window: *window, materialize };
        let measured = dispatch::dispatch(what, store, directory.path())
            .await
            .map_err(|error| CliError::failure("the measurement failed", &error))?;
        let text = if args.json { json(&measured)? } else { render(&measured) };
        printer.data(&(text + "\n"))?;
    }
    Ok(ExitCode::Success)
}

fn render(measured: &DispatchMeasurement) -> String {
    let memory = measured
        .peak_memory_mib
        .map_or_else(|| "unknown".to_owned(), |mib| format!("{mib:.0} MiB"));
    format!(
        "{} trials, {} at a time, in {:.2} s: {:.0} trials/s; tables in {:.2} s\n\
         {:.1} us of processor time and {:.0} bytes of journal per trial, peak memory {memory}\n\
         floor ({}): {:.0}/s, ratio {:.2}",
        measured.items,
        measured.window,
        measured.seconds,
        measured.items_per_second,
        measured.tables_seconds,
        measured.cpu_us_per_item,
        measured.journal_bytes_per_item,
        measured.floor,
        measured.floor_per_second,
        measured.ratio,
    )
}
