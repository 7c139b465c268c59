//! `rollout run`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_protocol::event::RunEvent;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::host::WorkerDir;
use rollout_worker::store::BlobStore;
use rollout_worker::store::fs::FsStore;
use rollout_worker::supervise;
use tokio::sync::mpsc;

use super::args::RunArgs;
#[cfg(feature = "nats")]
use super::cluster::Elsewhere;
use super::error::CliError;
use super::output::Printer;
use super::retry::Invocation;
use super::{SANDBOX, dry_run, env_file, exit, image_locks, logging, place};
use crate::config::{self, ConfigWarning, Job, LogLevel, Options};
use crate::engine::Taking;
use crate::events::sinks::terminal::{Screen, summary};
use crate::events::{Report, Reporter, RunFacts, Sinks};
use crate::launch::embedded::Sitting;
use crate::launch::facts::dataset_facts;
use crate::launch::host::HostPaths;
use crate::launch::local::LocalJob;
use crate::launch::signals;
use crate::plan::{self, JobPlan, Prepared};
use crate::results::files::store::{StoreNote, find as find_store};
use crate::results::metrics::AgentTotal;
use crate::results::report::{DatasetFacts, TasksFacts};
use crate::sources::datasets::{Dataset, KnownParts, Sink};

/// Where it is noted, beside the blobs, what was packed.
pub(super) const KNOWN_PARTS: &str = "bundles";

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
    prepared: Prepared,
    args: &RunArgs,
    screen: Screen,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let Prepared { job, datasets, .. } = prepared;
    #[cfg(feature = "nats")]
    let elsewhere = Elsewhere::connect(&args.nats, job.pool.as_deref()).await?;
    let own = job.jobs_dir.join(".rollout");
    let blobs = match &args.store {
        Some(store) => place::directory(store)?,
        // A run that was begun with a store is resumed with it.
        None if StoreNote::read(&job.run_dir()).is_some() => find_store(&job.run_dir())?,
        None => own.join("blobs"),
    };
    let store: Arc<dyn BlobStore> = Arc::new(FsStore::open(&blobs).await?);
    let read = dataset_facts(&job, &datasets);
    let plan = make_plan(&job, datasets, Arc::clone(&store), own.join("planning")).await?;
    let run_dir = job.run_dir();
    let sinks = Sinks {
        store: Arc::clone(&store),
        json: args.json.then(|| printer.json()),
        terminal: (!printer.is_quiet()).then_some((screen, printer.err)),
    };
    let failed = |what| move |error: std::io::Error| CliError::failure(what, &error);
    let (events, reporter) = Reporter::start(facts(&job, &plan, read, args, blobs), sinks)
        .map_err(failed("cannot start the outputs"))?;
    let (stops, _listening) = signals::listen().map_err(failed("cannot listen for signals"))?;
    #[cfg(feature = "nats")]
    let sitting = match elsewhere {
        Some(elsewhere) => Box::pin(elsewhere.run(args, job, plan, store, events, stops)).await,
        None => run_here(args, job, plan, store, events, stops).await,
    };
    #[cfg(not(feature = "nats"))]
    let sitting = run_here(args, job, plan, store, events, stops).await;
    let report = reporter.finish().await;
    let (Sitting { ended, lock }, report) = (sitting?, report?);
    drop(lock);
    tell(&report, &run_dir, args.json, printer)?;
    Ok(exit::of_run(ended.cancelled, &report.tally, args.fail_under))
}

/// Runs a sitting in this process.
async fn run_here(
    args: &RunArgs,
    job: Job,
    plan: JobPlan,
    store: Arc<dyn BlobStore>,
    events: mpsc::Sender<Vec<RunEvent>>,
    stops: mpsc::Receiver<StopLevel>,
) -> Result<Sitting, CliError> {
    let own = job.jobs_dir.join(".rollout");
    let (host, environment) = (host_paths(&own)?, environment());
    let taking = Taking { patience: args.patience(), shared: None };
    let reopen = args.reopen.clone();
    let local = LocalJob { job, plan, store, host, environment, events, stops, taking, reopen };
    Ok(local.run().await?)
}

/// What is of this host and outlives a run; `own` is for users without a cache.
pub(super) fn host_paths(own: &Path) -> Result<HostPaths, CliError> {
    let image_locks = image_locks::directory(|name| std::env::var_os(name), own.join("locks"));
    Ok(HostPaths { image_locks, sandbox_helper: sandbox_helper()? })
}

/// The variables of this process that are text.
pub(super) fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The end of a run for people.
fn tell(report: &Report, run_dir: &Path, json: bool, printer: &Printer) -> Result<(), CliError> {
    if let Some(result) = report.result.as_ref().filter(|_| !json && !printer.is_quiet()) {
        printer.data(&summary::render(report, result, run_dir, printer.out))?;
        if result.cancelled {
            printer.hint("the same command goes on with this run");
        }
    }
    match &report.unwritten.first {
        None => Ok(()),
        Some((trial, error)) => {
            let failed = CliError::unwritten(report.unwritten.count, trial, error);
            let missing = error.is_missing().then(|| place::store_hint(run_dir));
            Err(missing.iter().fold(failed, |failed, hint| failed.hint(hint)))
        }
    }
}

fn facts(
    job: &Job,
    plan: &JobPlan,
    datasets: Vec<DatasetFacts>,
    args: &RunArgs,
    blobs: PathBuf,
) -> RunFacts {
    let each = plan.tasks().len() as u64 * u64::from(plan.n_attempts());
    let agents = plan.agents().iter().map(|agent| agent.spec.name.clone());
    RunFacts {
        run_dir: job.run_dir(),
        agents: agents.map(|name| AgentTotal { name, total: each }).collect(),
        metrics: job.metrics.clone(),
        materialize: args.materialize,
        config: config::document(job),
        blobs: Some(blobs),
        datasets,
        tasks: Arc::new(TasksFacts::of(plan)),
        invocation: invocation(args),
    }
}

/// How the run was started, so that it can be repeated. A repetition changes nothing of it.
fn invocation(args: &RunArgs) -> Option<serde_json::Value> {
    let invocation = Invocation::of(std::env::args_os()).filter(|_| args.reopen.is_none())?;
    serde_json::to_value(invocation).ok()
}

/// Bundles the tasks, with archives on their way in a directory of this process in `base`.
async fn make_plan(
    job: &Job,
    datasets: Vec<Dataset>,
    store: Arc<dyn BlobStore>,
    base: PathBuf,
) -> Result<JobPlan, CliError> {
    let at = base.clone();
    let mine = supervise::blocking(move || {
        for left_by_a_dead_process in WorkerDir::adoptable(&at)? {
            left_by_a_dead_process.remove()?;
        }
        WorkerDir::create(&at)
    })
    .await?;
    let scratch = mine.scratch();
    let known = Some(Arc::new(KnownParts::new(base.with_file_name(KNOWN_PARTS))));
    let built = plan::build(job, datasets, &Sink { store: Some(store), scratch, known }).await;
    supervise::blocking(move || mine.remove()).await?;
    // Another process may be planning there.
    let _in_use = std::fs::remove_dir(base);
    let (plan, _) = built?;
    Ok(plan)
}

/// How this program is started as the supervisor of a sandbox.
pub(super) fn sandbox_helper() -> Result<Vec<std::ffi::OsString>, CliError> {
    let me = std::env::current_exe()
        .map_err(|error| CliError::failure("cannot find the program's own file", &error))?;
    Ok(vec![me.into(), SANDBOX.into()])
}

fn prepare(args: &RunArgs) -> Result<Prepared, CliError> {
    // Elsewhere, workers say themselves which variables they have.
    #[cfg(feature = "nats")]
    let elsewhere = args.nats.url.is_some();
    #[cfg(not(feature = "nats"))]
    let elsewhere = false;
    let is_set = |name: &str| elsewhere || std::env::var(name).is_ok();
    let variables = match &args.env_file {
        Some(file) => env_file::read(file).map_err(CliError::usage)?,
        None => Vec::new(),
    };
    let options = Options {
        variables,
        trust_tasks: args.yes,
        settings: args.keys.settings().map_err(CliError::usage)?,
        strict: args.strict,
        cache: image_locks::fetched(|name| std::env::var_os(name)),
        ..Options::new(&is_set)
    };
    let file = args.config.as_deref().or(args.job.as_deref());
    let prepared = plan::read(file, &options)?;
    if let (true, Some(name)) = (elsewhere, prepared.job.given.names().next()) {
        return Err(CliError::usage(format!(
            "the value of {name} would have to travel to the workers: set it where they run, start \
             them with `--trial-env {name}`, and write `{name}=${{{name}}}`"
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
