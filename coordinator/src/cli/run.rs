//! `rollout run`.

use std::path::Path;
use std::sync::Arc;

use rollout_protocol::exit::ExitCode;
use rollout_worker::supervise;

use super::args::{RunArgs, with_run};
use super::error::CliError;
use super::invocation::Invocation;
use super::output::Printer;
use super::{dry_run, env_file, exit, logging, store_url};
use crate::config::{ConfigWarning, JobOptions, LogLevel};
use crate::events::RunReport;
use crate::events::sinks::terminal::{Screen, summary};
use crate::launch::host;
use crate::launch::run::{self as launch, RunOutcome, RunRequest, StopSource};
use crate::plan::{self, PreparedJob};

/// Runs the command.
pub(super) async fn run(args: RunArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let args = Arc::new(args);
    let read = Arc::clone(&args);
    let prepared = supervise::blocking(move || prepare(&read)).await?;
    for warning in ConfigWarning::grouped(&prepared.warnings) {
        printer.warning(&warning);
    }
    let screen = printer.screen();
    logging::start(level(&args, prepared.job.log_level), screen.clone(), printer.err);
    if args.dry_run {
        dry_run::show(prepared, args.json, printer).await
    } else {
        Box::pin(start(prepared, &args, screen, printer)).await
    }
}

async fn start(
    prepared: PreparedJob,
    args: &RunArgs,
    screen: Screen,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let PreparedJob { job, datasets, .. } = prepared;
    let request = RunRequest {
        #[cfg(feature = "nats")]
        remote: args.nats.remote(job.pool.as_deref(), args.unplaceable_timeout)?,
        job,
        datasets,
        store: store_url::parse_optional(args.store.as_deref())?,
        materialize: args.materialize,
        invocation: invocation(args),
        sinks: printer.sinks(screen, true, args.json),
        wait_policy: args.lock_wait_policy(),
        reopen: args.reopen.clone(),
        stops: StopSource::Signals,
    };
    let RunOutcome { run_dir, cancelled, report } = Box::pin(launch::run(request)).await?;
    print_report(&report, &run_dir, args.json, printer)?;
    Ok(exit::for_run(cancelled, &report.tally, args.fail_under))
}

/// Prints the summary of a run.
fn print_report(
    report: &RunReport,
    run_dir: &Path,
    json: bool,
    printer: &Printer,
) -> Result<(), CliError> {
    if let Some(result) = report.result.as_ref().filter(|_| !json && !printer.is_quiet()) {
        printer.data(&summary::render(report, result, run_dir, printer.out))?;
        if result.cancelled {
            printer.hint("run the same command again to resume");
        }
    }
    match &report.unwritten.first {
        None => Ok(()),
        Some((trial, error)) => {
            let failed = CliError::unwritten_files(report.unwritten.count, trial, error);
            let missing = error.is_missing().then(|| store_url::store_hint(run_dir));
            Err(missing.iter().fold(failed, |failed, hint| failed.hint(hint)))
        }
    }
}

/// The command line of the run, for `rollout retry`. A retry does not replace it.
fn invocation(args: &RunArgs) -> Option<serde_json::Value> {
    let invocation = Invocation::from_arguments(with_run(std::env::args_os().collect()))
        .filter(|_| args.reopen.is_none())?;
    serde_json::to_value(invocation).ok()
}

fn prepare(args: &RunArgs) -> Result<PreparedJob, CliError> {
    // Remote workers report which variables they have.
    #[cfg(feature = "nats")]
    let is_remote = args.nats.url.is_some();
    #[cfg(not(feature = "nats"))]
    let remote = false;
    let is_set = |name: &str| is_remote || std::env::var(name).is_ok();
    let variables = match &args.env_file {
        Some(file) => env_file::read(file).map_err(CliError::usage)?,
        None => Vec::new(),
    };
    let options = JobOptions {
        variables,
        trust_tasks: args.yes,
        settings: args.keys.settings().map_err(CliError::usage)?,
        strict: args.strict,
        cache: host::fetched_tasks(|name| std::env::var_os(name)),
        ..JobOptions::new(&is_set)
    };
    let file = args.config.as_deref().or(args.job.as_deref());
    let prepared = plan::read(file, &options)?;
    if let (true, Some(name)) = (is_remote, prepared.job.inline_secrets.names().next()) {
        return Err(CliError::usage(format!(
            "cannot send the value of {name} to the workers: set it on their hosts, start them \
             with `--trial-env {name}`, and write `{name}=${{{name}}}`"
        )));
    }
    Ok(prepared)
}

fn level(args: &RunArgs, job: LogLevel) -> LogLevel {
    match args.log_level {
        _ if args.quiet => LogLevel::Error,
        _ if args.verbose => LogLevel::Debug,
        Some(level) => level,
        None => job,
    }
}
