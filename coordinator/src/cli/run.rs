//! `rollout run`.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use rollout_base::supervise;
use rollout_engine::ReopenSelection;
use rollout_protocol::exit::ExitCode;

use super::args::{RunArgs, with_run};
use super::error::CliError;
use super::hint_command::{self, HintedRun, RunAction};
use super::invocation::{Invocation, without_session_options};
use super::output::Printer;
use super::remote_api::ServerSubmission;
use super::{dry_run, env_file, executor, logging, remote_api, run_place, store_url, traces};
use crate::config::{ConfigWarning, Job, JobOptions, LogLevel, job_document};
use crate::events::RunReport;
use crate::events::sinks::terminal::{Screen, summary};
use crate::launch::exit;
use crate::launch::host::{self, OperatorOptions};
use crate::launch::masked;
use crate::launch::run::{self as launch, RunOutcome, RunRequest, StopSource};
use crate::plan::{self, PreparedJob};
use crate::results::report::JobResult;

/// Runs the command.
pub(super) async fn run(args: RunArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let words = with_run(std::env::args_os().collect());
    Box::pin(run_words(args, words, printer)).await
}

/// Runs the command of a command line.
async fn run_words(
    mut args: RunArgs,
    words: Vec<OsString>,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    executor::resolve(&mut args)?;
    if args.executor.has_api_server() {
        if args.again.is_some() {
            let what = "cannot use `--remote-endpoint` with a run directory: a server of `rollout \
                        serve` would begin a new run";
            return Err(CliError::usage(what).hint("leave out `--remote-endpoint`"));
        }
        remote_api::check_options(words)?;
    }
    let args = Arc::new(args);
    let read = Arc::clone(&args);
    let prepared = supervise::blocking(move || prepare(&read)).await?;
    for warning in ConfigWarning::grouped(&prepared.warnings) {
        printer.warning(&warning);
    }
    if has_local_times(&args, &prepared.job) {
        printer.warn_of_unknown_zone();
    }
    if args.keys.harbor.print_config {
        printer.json(&job_document(&prepared.job))?;
        return Ok(ExitCode::Success);
    }
    // A dry run refuses such a job as well: it says what the run would do.
    if args.executor.has_api_server() {
        remote_api::check_job(&prepared.job)?;
    }
    let screen = printer.screen();
    let level = level(&args, prepared.job.log_level);
    logging::start(level, args.log, screen.clone(), printer.err);
    let server = args.executor.api_server()?.filter(|_| !args.dry_run);
    if !args.dry_run {
        // A server masks the values that it has.
        let is_remote = args.has_remote_workers() || server.is_some();
        if let Some(line) = masked::of_job(&prepared.job, is_remote).line() {
            printer.note(&line);
        }
    }
    if let Some(server) = server {
        let (detach, json) = (args.executor.is_detached(), args.json);
        let fail_under = args.fail_under;
        let run = ServerSubmission { server, prepared, detach, json, fail_under };
        return Box::pin(remote_api::run(run, printer)).await;
    }
    if args.dry_run {
        dry_run::show(prepared, args.json, printer).await
    } else {
        let session = args.again.as_ref().map(|_| args.session_options.as_slice());
        let run = HintedRun::of_session(prepared.job.run_dir(), session);
        let refused = unopened(&args, &prepared.job);
        let ended = Box::pin(start(prepared, &args, &run, screen, printer)).await;
        ended.map_err(|error| match error.code {
            // Such a session ends before it opens the run, which keeps its former options.
            ExitCode::PlanMismatch => match refused {
                Some(run) => error.for_run(&run),
                None => error,
            },
            _ => error.for_run(&run),
        })
    }
}

/// Whether the run has the local time as its name, or lines with local times are printed.
fn has_local_times(args: &RunArgs, job: &Job) -> bool {
    let is_named = job.provenance.iter().any(|set| set.key == "name");
    let has_lines = !(args.dry_run || args.json || args.executor.is_detached());
    !is_named || args.executor.has_api_server() && has_lines
}

/// The run of a session that ends before it opens it: its next session needs the options of this one,
/// also the consent to changes. `None` if the options of this one are other ones than those of the
/// run, not further ones.
fn unopened(args: &RunArgs, job: &Job) -> Option<HintedRun> {
    let directory = job.run_dir();
    let mut options = match args.again {
        Some(_) => without_session_options(args.session_options.clone()),
        None => invocation(args, job)?.further_than(&Invocation::read(&directory).ok()?)?,
    };
    options.extend(args.accept_changed.then(|| "--accept-changed".to_owned()));
    Some(HintedRun::Session { directory, options })
}

async fn start(
    prepared: PreparedJob,
    args: &RunArgs,
    run: &HintedRun,
    screen: Screen,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let PreparedJob { job, datasets, .. } = prepared;
    let mut sinks = printer.sinks(screen, true, args.json);
    let traces = traces::for_run(&mut sinks);
    let _monitoring = args.listen.for_run(&mut sinks, &traces).await?;
    let invocation =
        invocation(args, &job).and_then(|invocation| serde_json::to_value(invocation).ok());
    let request = RunRequest {
        #[cfg(feature = "nats")]
        remote: (args.nats.remote(job.pool.as_deref(), args.unplaceable_timeout)?)
            .map(|remote| remote.handing_over(args.hand_over)),
        job,
        datasets,
        store: store_url::parse_optional(args.store.as_deref())?,
        store_cache_mb: args.store_cache,
        materialize: args.executor.materialize(args.materialize),
        sink: args.sink,
        invocation,
        sinks,
        wait_policy: args.lock_wait_policy(),
        reopen: args.reopen.clone(),
        accept_changed: args.accept_changed,
        stops: StopSource::Signals,
        on_demand: None,
        host: None,
        operator: OperatorOptions {
            #[cfg(feature = "kubernetes")]
            kubernetes_config: args.kubernetes_config.clone(),
            #[cfg(not(feature = "kubernetes"))]
            kubernetes_config: None,
            ca_bundle: args.ca_bundle.of_process(args.has_remote_workers(), printer),
        },
        tracer: traces.tracer(),
        slots: None,
    };
    let outcome = Box::pin(launch::run(request)).await?;
    finish(outcome, run, args.json, args.fail_under, printer)
}

/// Prints the summary of a run that ended, and gives its exit code.
pub(super) fn finish(
    outcome: RunOutcome,
    run: &HintedRun,
    json: bool,
    fail_under: Option<f64>,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let RunOutcome { run_dir, cancelled, is_over_budget, report, incomplete_catalog } = outcome;
    print_report(&report, &run_dir, run, (json, is_over_budget), printer)?;
    match incomplete_catalog {
        Some(error) => Err(error.into()),
        None if is_over_budget => Ok(ExitCode::OverBudget),
        None => Ok(exit::for_run(cancelled, &report.tally, fail_under)),
    }
}

/// Prints the summary of a run.
fn print_report(
    report: &RunReport,
    run_dir: &Path,
    run: &HintedRun,
    (json, is_over_budget): (bool, bool),
    printer: &Printer,
) -> Result<(), CliError> {
    if let Some(result) = report.result.as_ref().filter(|_| !json && !printer.is_quiet()) {
        printer.data(&summary::render(report, result, run_dir, printer.out))?;
        if is_over_budget {
            let resume = hint_command::command(run, &RunAction::Resume, &[]);
            printer.hint(&format!("raise `budget`, then run {resume} to run the skipped trials"));
        } else if let Some(step) = next_step(result, run) {
            printer.hint(&step);
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

/// The command that follows a run that was stopped or has failed trials. Unsupported trials fail
/// again.
fn next_step(result: &JobResult, run: &HintedRun) -> Option<String> {
    let failures = &result.headline.failures;
    let (action, purpose) = if result.cancelled {
        (RunAction::Resume, "resume")
    } else if failures.infrastructure > 0 {
        (RunAction::Retry(ReopenSelection::Infrastructure), "run infrastructure failures again")
    } else if result.failed_trials > failures.unsupported {
        let purpose = "run failed trials again, with corrected tasks or settings if needed";
        (RunAction::Retry(ReopenSelection::Failed), purpose)
    } else {
        return None;
    };
    let command = hint_command::command(run, &action, &[]);
    Some(format!("run {command} to {purpose}"))
}

/// The command line of the run, for `rollout retry` and `resume`, which do not replace it. It names
/// the run, whose name may come from the clock.
fn invocation(args: &RunArgs, job: &Job) -> Option<Invocation> {
    let mut invocation = Invocation::of_process(&["run"]).filter(|_| args.again.is_none())?;
    if !args.keys.has_name() {
        invocation.add("--name", &job.name);
    }
    #[cfg(feature = "nats")]
    if let Some(url) = &args.nats.url {
        invocation.add_server(url);
    }
    Some(invocation)
}

fn prepare(args: &RunArgs) -> Result<PreparedJob, CliError> {
    // Remote workers report which variables they have.
    let is_remote = args.has_remote_workers() || args.executor.has_api_server();
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
        ..JobOptions::for_command_line(&is_set)
    };
    let file = args.config.as_deref().or(args.job.as_deref());
    let mut prepared = plan::read(file, &options)?;
    if let Some(run_dir) = &args.again
        && let Some((jobs_dir, name)) = run_place::moved(run_dir, &prepared.job.run_dir())?
    {
        (prepared.job.jobs_dir, prepared.job.name) = (jobs_dir, name);
    }
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

#[cfg(test)]
mod tests {
    use rollout_protocol::error::{ErrorClass, ErrorType, TrialError};
    use rollout_protocol::record::Verdict;

    use super::*;
    use crate::results::metrics::AgentTotal;
    use crate::results::report::{Ledger, RunOverview};
    use crate::results::testing;

    fn step_after(verdict: Verdict, cancelled: bool) -> Option<String> {
        let mut ledger = Ledger::default();
        ledger.add(0, &testing::settlement(testing::trial("a", "t", 1), 1, verdict));
        let overview = RunOverview {
            run: testing::run(),
            job: "demo".to_owned(),
            started_at: testing::at(0),
            ended_at: testing::at(1),
            cancelled,
        };
        let agents = [AgentTotal { name: "a".into(), total: 1 }];
        let result = JobResult::new(overview, &agents, &[], &ledger);
        next_step(&result, &HintedRun::Directory("jobs/demo".into()))
    }

    #[cfg(feature = "docker")]
    #[tokio::test]
    async fn dry_run_for_a_server_refuses_what_the_run_is_refused_for() {
        use clap::Parser as _;

        use crate::cli::args::{Cli, Command};

        let temp = tempfile::tempdir().expect("a directory");
        let tasks = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/docker/tasks");
        let job = temp.path().join("job.yaml");
        let text = format!(
            "jobs_dir: elsewhere\nagents: [{{name: oracle}}]\ndatasets: [{{path: {tasks}}}]\n"
        );
        std::fs::write(&job, text).expect("written");
        let job = job.to_str().expect("text");
        for dry in [&["--dry-run"][..], &[]] {
            let words = ["rollout", "run", job, "--remote-endpoint", "http://127.0.0.1:1"];
            let words: Vec<OsString> = words.iter().chain(dry).map(OsString::from).collect();
            let Command::Run(args) = Cli::try_parse_from(&words).expect("valid").command else {
                panic!("not a run");
            };
            let ran = Box::pin(run_words(*args, words, &Printer::from_environment(true))).await;
            let refused = ran.expect_err("the server has its own directory");
            assert_eq!(refused.code, ExitCode::Usage, "{dry:?}");
            assert!(refused.message.contains("`jobs_dir`"), "{dry:?}: {}", refused.message);
        }
    }

    #[test]
    fn run_with_failures_ends_with_next_step() {
        assert_eq!(step_after(testing::passed(1.0), false), None);
        let stopped = step_after(testing::passed(1.0), true);
        assert_eq!(stopped.as_deref(), Some("run `rollout resume jobs/demo` to resume"));
        let unsupported = testing::failed(TrialError::unsupported("no graphics processors"));
        assert_eq!(step_after(unsupported, false), None);
        for (class, option) in
            [(ErrorClass::Infrastructure, "--infra"), (ErrorClass::Task, "--failed")]
        {
            let error = testing::error(ErrorType::InternalError, class, "a cause");
            let step = step_after(testing::failed(error), false).expect("a step");
            assert!(step.contains(&format!("`rollout retry jobs/demo {option}`")), "{step}");
        }
    }
}
