//! `rollout resume`.

use std::path::PathBuf;

use clap::Args;
#[cfg(feature = "nats")]
use rollout_engine::ReopenSelection;
use rollout_engine::journal::RunLayout;
use rollout_protocol::exit::ExitCode;

use super::error::CliError;
use super::live::{LiveRun, ServerArgs, end_pause};
#[cfg(feature = "nats")]
use super::nats::ServerAddress;
use super::output::Printer;
use super::retry;
use super::run_place::CatalogAddress;

/// Hint for the directory of a search.
const SEARCH_HINT: &str = "a search has no pause: `rollout resume DIR` resumes one that ended";

/// Resume a run or a search that was stopped, paused or lost its owner, from its directory or from
/// the catalog of a store
///
/// A run whose coordinator runs is told to end its pause; nothing else happens then, and options
/// after `--` are refused.
///
/// A directory is resumed with the options that the run or the search was started with; `-- OPTION…`
/// adds others, or replaces their values. No other run is started. A run in a catalog (`rollout run
/// --sink catalog|hybrid`) is resumed on any host, without its job file and its datasets, by the
/// workers of `--nats`; its directory is made in `--jobs-dir`.
#[derive(Debug, Args)]
pub(super) struct ResumeArgs {
    /// Directory of a run or a search; a run on a server: `nats://host:4222#RUN`; or in a catalog:
    /// `s3://bucket/prefix?endpoint=URL#RUN`, with the id of the run or the name of its job
    pub(super) run: PathBuf,

    #[cfg(feature = "nats")]
    #[command(flatten)]
    pub(super) catalog: catalog::CatalogRunArgs,

    /// Further options of `rollout run`, or of `rollout tree run`, for a directory
    #[arg(last = true, value_name = "OPTION")]
    pub(super) options: Vec<String>,
}

#[cfg(feature = "nats")]
impl ResumeArgs {
    fn server(&self) -> &ServerArgs {
        &self.catalog.nats
    }

    fn json(&self) -> bool {
        self.catalog.json
    }
}

#[cfg(not(feature = "nats"))]
impl ResumeArgs {
    fn server(&self) -> &ServerArgs {
        &ServerArgs {}
    }

    fn json(&self) -> bool {
        false
    }
}

/// Runs the command.
pub(super) async fn resume(args: ResumeArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let (text, server) = (args.run.to_string_lossy(), args.server().clone());
    if !RunLayout::is_search(&args.run)
        && let Some(live) = LiveRun::find(&text, &server, "resume", SEARCH_HINT).await?
    {
        live.refuse_options("resume", &args.options).await?;
        if let Some(code) = end_pause(&live, args.json(), printer).await? {
            return Ok(code);
        }
    }
    #[cfg(feature = "nats")]
    if ServerAddress::parse(&args.run).is_some() {
        return Err(CliError::refused("cannot resume the run: its coordinator does not run").hint(
            "resume it from its run directory, or from its catalog: `s3://bucket/prefix#RUN`",
        ));
    }
    let Some(address) = CatalogAddress::parse(&args.run)? else {
        #[cfg(feature = "nats")]
        let mut options = args.catalog.options_of_run(args.options)?;
        #[cfg(not(feature = "nats"))]
        let mut options = args.options;
        retry::add_server(&server, Some(&args.run), &mut options);
        return retry::run_again(&args.run, None, options, printer).await;
    };
    if !args.options.is_empty() {
        return Err(CliError::usage("cannot use options after `--` with a run in a catalog"));
    }
    #[cfg(feature = "nats")]
    return Box::pin(catalog::resume(address, &args.catalog, None, printer)).await;
    #[cfg(not(feature = "nats"))]
    Err(not_built(&address))
}

/// Runs trials of a run in a catalog again; `options` are those of `rollout resume`.
#[cfg(feature = "nats")]
pub(super) async fn retry_in_catalog(
    address: CatalogAddress,
    reopen: ReopenSelection,
    options: Vec<String>,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let args = catalog::parse(options)?;
    Box::pin(catalog::resume(address, &args, Some(reopen), printer)).await
}

/// A program without the queue cannot resume runs of a catalog.
#[cfg(not(feature = "nats"))]
pub(super) fn not_built(_: &CatalogAddress) -> CliError {
    CliError::usage("cannot resume a run in a catalog: this program was built without `nats`")
        .hint("build it with `--features nats`")
}

#[cfg(feature = "nats")]
mod catalog {
    use std::path::PathBuf;
    use std::time::Duration;

    use clap::{Args, Parser};
    use rollout_engine::{LockWaitPolicy, ReopenSelection};
    use rollout_protocol::exit::ExitCode;

    use crate::cli::error::CliError;
    use crate::cli::hint_command::HintedRun;
    use crate::cli::listen::ListenArgs;
    use crate::cli::logging::LogArgs;
    use crate::cli::nats::{NatsArgs, POOL};
    use crate::cli::output::Printer;
    use crate::cli::run_place::CatalogAddress;
    use crate::cli::value_parsers::{self, STORE_CACHE_MB};
    use crate::cli::{logging, run as run_command, traces};
    use crate::config::LogLevel;
    use crate::events::MaterializeMode;
    use crate::launch::resume::{self, ResumeRequest};
    use crate::launch::run::StopSource;

    /// Options for a run in a catalog.
    #[derive(Debug, Args)]
    #[command(next_help_heading = "Runs in a catalog")]
    pub(in crate::cli) struct CatalogRunArgs {
        /// Parent of the run directory, which gets the name of the job [default: jobs]
        #[arg(long, value_name = "DIR")]
        jobs_dir: Option<PathBuf>,

        /// Which result files to write [default: as in the last session]
        #[arg(long, value_name = "WHAT")]
        materialize: Option<MaterializeMode>,

        /// Print events as lines of JSON on standard output; the last line is the job's result
        #[arg(long)]
        pub(super) json: bool,

        /// Size of the local cache of what is read from a store in S3; 0 for none [default: 2g]
        #[arg(long, value_name = "SIZE", value_parser = value_parsers::size)]
        store_cache: Option<u64>,

        /// How long trials that no worker can run wait before they fail [default: 10m; in an elastic
        /// pool without limit, or that of the pool]
        #[arg(long, value_name = "TIME", value_parser = value_parsers::duration)]
        unplaceable_timeout: Option<Duration>,

        /// Take the run over at once from any owner; later work of the former owner does not count
        #[arg(long, conflicts_with = "no_wait")]
        force: bool,

        /// Exit with 6 instead of waiting for an owner that may be dead
        #[arg(long)]
        no_wait: bool,

        #[command(flatten)]
        listen: ListenArgs,

        #[command(flatten)]
        log: LogArgs,

        /// Log level [default: info]
        #[arg(long, value_name = "LEVEL")]
        log_level: Option<LogLevel>,

        #[command(flatten)]
        pub(super) nats: NatsArgs,
    }

    impl CatalogRunArgs {
        /// The options of a run directory's command, and `further` ones after it. The directory has
        /// the others, which can be given again after `--`.
        pub(super) fn options_of_run(&self, further: Vec<String>) -> Result<Vec<String>, CliError> {
            let given = [
                (self.jobs_dir.is_some(), "--jobs-dir"),
                (self.materialize.is_some(), "--materialize"),
                (self.store_cache.is_some(), "--store-cache"),
                (self.unplaceable_timeout.is_some(), "--unplaceable-timeout"),
                (self.log_level.is_some(), "--log-level"),
            ];
            if let Some((_, name)) = given.iter().find(|(is_given, _)| *is_given) {
                let what = format!("cannot use `{name}` with a run directory, which has its own");
                return Err(CliError::usage(what).hint(&format!(
                    "give options of `rollout run` after `--`, as in `-- {name} VALUE`"
                )));
            }
            let flags =
                [(self.force, "--force"), (self.no_wait, "--no-wait"), (self.json, "--json")];
            let flags = flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag);
            Ok(flags.map(str::to_owned).chain(further).collect())
        }
    }

    /// The same as a command line of its own, for `rollout retry`.
    #[derive(Debug, Parser)]
    struct CatalogRunOptions {
        #[command(flatten)]
        options: CatalogRunArgs,
    }

    /// Parses options that follow `--`.
    pub(super) fn parse(options: Vec<String>) -> Result<CatalogRunArgs, CliError> {
        let words = std::iter::once("rollout".to_owned()).chain(options);
        let parsed = CatalogRunOptions::try_parse_from(words);
        parsed
            .map(|parsed| parsed.options)
            .map_err(|error| CliError::usage(format!("cannot read the options: {error}")))
    }

    /// Resumes a run in a catalog.
    pub(super) async fn resume(
        address: CatalogAddress,
        args: &CatalogRunArgs,
        reopen: Option<ReopenSelection>,
        printer: &Printer,
    ) -> Result<ExitCode, CliError> {
        let Some(url) = &args.nats.url else {
            let verb = if reopen.is_some() { "retry" } else { "resume" };
            return Err(CliError::refused(format!(
                "cannot {verb} a run in a catalog without a NATS server: name the server of its \
                 workers with `--nats`",
            ))
            .hint("without one, runs in a catalog can only be read"));
        };
        // The directory here is a copy, whose command belongs to another host.
        let run = HintedRun::Catalog(address.to_string());
        let screen = printer.screen();
        let level = args.log_level.unwrap_or(LogLevel::Info);
        logging::start(level, args.log, screen.clone(), printer.err);
        let mut sinks = printer.sinks(screen, true, args.json);
        let traces = traces::for_run(&mut sinks);
        let _monitoring = args.listen.for_run(&mut sinks, &traces).await?;
        let request = ResumeRequest {
            store: address.store,
            store_cache_mb: args.store_cache.unwrap_or(STORE_CACHE_MB),
            run: address.run,
            jobs_dir: args.jobs_dir.clone().unwrap_or_else(|| PathBuf::from("jobs")),
            materialize: args.materialize,
            nats: args.nats.access.options(url)?,
            default_pool: POOL.parse().expect("the default pool has a valid name"),
            unplaceable_timeout: args.unplaceable_timeout,
            sinks,
            wait_policy: LockWaitPolicy {
                force: args.force,
                wait: !args.no_wait,
                ..LockWaitPolicy::default()
            },
            reopen,
            stops: StopSource::Signals,
        };
        let outcome = Box::pin(resume::resume(request)).await;
        let ended = outcome
            .map_err(CliError::from)
            .and_then(|outcome| run_command::finish(outcome, &run, args.json, None, printer));
        ended.map_err(|error| error.for_run(&run))
    }
}
