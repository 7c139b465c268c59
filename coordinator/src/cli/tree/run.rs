//! `rollout tree run` and `rollout tree resume`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, Args};
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;

use super::options::KeyOptions;
use super::{best, run_search, show, validate};
use crate::cli::ca_bundle::CaBundleArgs;
use crate::cli::error::CliError;
use crate::cli::hint_command::{self, HintedRun, RunAction};
use crate::cli::listen::ListenArgs;
use crate::cli::logging::{self, LogArgs};
use crate::cli::output::Printer;
use crate::cli::run_place;
use crate::config::{
    ConfigWarning, Diagnostics, LogLevel, TreeFile, TreeOptions, env_vars, read_tree,
};
use crate::launch::masked;
use crate::workloads::search::driver::{SearchDirectory, SearchError, check_baseline};
use crate::workloads::search::manifest::SearchManifest;
use crate::workloads::search::report::OutcomeCounts;

/// Search over the commits of a repository by trying ideas on the best commits so far
///
/// `rollout resume DIR` resumes a search that was stopped by a signal or a crash. The result is the
/// same as without the stop. The first Ctrl-C lets running commands end; the second ends them at
/// once. With `--dry-run` the outcome of an eval follows from its number, so that every outcome
/// occurs.
#[derive(Debug, Args)]
pub(in crate::cli) struct TreeRunArgs {
    /// Search file, YAML or JSON
    tree: PathBuf,

    /// Simulate: run no commands, touch no repository
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Resume an existing search; with `false` it is refused
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub(super) resume: bool,

    /// Discard the results of the current depth, or of the last one if the search has ended, and
    /// run its evals again
    #[arg(long)]
    pub(super) rerun_evals: bool,

    /// Discard ideas of which none was tried, and generate them again
    #[arg(long)]
    pub(super) force_regenerate_ideas: bool,

    /// Count evals that the infrastructure could not run as failed, instead of ending with an error
    #[arg(long)]
    pub(super) fail_unable_evals: bool,

    /// Only validate the search and rewrite its reports
    #[arg(long, conflicts_with_all = ["rerun_evals", "force_regenerate_ideas", "force"])]
    report_only: bool,

    /// Blob store: a directory, or `s3://bucket/prefix?endpoint=URL` [default: <runs_root>/.rollout/blobs]
    #[arg(long, env = env_vars::STORE.name)]
    pub(super) store: Option<String>,

    #[command(flatten)]
    pub(super) ca_bundle: CaBundleArgs,

    #[command(flatten)]
    pub(super) listen: ListenArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,

    /// Seconds without a heartbeat before the search is taken over [default: 600, with `--nats` 30]
    ///
    /// Without `--nats`, an owner whose process exists on this host is taken over only if this
    /// option is given.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) lock_stale_seconds: Option<u32>,

    /// Take the search over at once from any owner
    #[arg(long)]
    pub(super) force: bool,

    /// Print events as lines of JSON; the last line is the finished search
    #[arg(long)]
    pub(super) json: bool,

    /// Show errors only
    #[arg(long, short)]
    pub(in crate::cli) quiet: bool,

    /// Log debug messages
    #[arg(long, short, conflicts_with = "quiet")]
    verbose: bool,

    #[cfg(feature = "nats")]
    #[command(flatten)]
    pub(super) remote: super::nats::RemoteArgs,

    #[command(flatten)]
    pub(super) keys: KeyOptions,

    /// The directory whose options these are, by `rollout retry` and `resume`.
    #[arg(skip)]
    pub(in crate::cli) again: Option<PathBuf>,

    /// The options that this session adds to those of the directory.
    #[arg(skip)]
    pub(in crate::cli) session_options: Vec<String>,
}

impl TreeRunArgs {
    /// Whether commands run on remote workers.
    #[cfg(feature = "nats")]
    pub(super) fn is_remote(&self) -> bool {
        self.remote.is_remote()
    }

    /// Whether commands run on remote workers.
    #[cfg(not(feature = "nats"))]
    pub(super) const fn is_remote(&self) -> bool {
        false
    }
}

/// Runs the command; with `existing_only` it begins no search.
pub(in crate::cli) async fn run(
    args: TreeRunArgs,
    existing_only: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let existing_only = existing_only || args.again.is_some();
    let args = Arc::new(args);
    let read = Arc::clone(&args);
    let (tree, warnings) = supervise::blocking(move || prepare(&read)).await?;
    for warning in ConfigWarning::grouped(&warnings) {
        printer.warning(&warning);
    }
    if !tree.is_named && (existing_only || args.report_only) {
        let what = if existing_only { "`rollout tree resume`" } else { "`--report-only`" };
        return Err(CliError::name_required(what));
    }
    if args.report_only {
        return validate::validate_and_report(tree.run_dir(), args.json, printer).await;
    }
    let level = if args.verbose { LogLevel::Debug } else { LogLevel::Info };
    let level = if args.quiet { LogLevel::Error } else { level };
    let screen = printer.screen();
    logging::start(level, args.log, screen.clone(), printer.err);
    let run_dir = tree.run_dir();
    if existing_only {
        let directory = SearchDirectory::new(&run_dir);
        supervise::blocking(move || directory.manifest()).await.map_err(CliError::from)?;
    }
    validate_baseline(&tree, args.dry_run, printer).await?;
    if let Some(line) = masked::of_search(&tree, args.is_remote()).line() {
        printer.note(&line);
    }
    let session = args.again.as_ref().map(|_| args.session_options.as_slice());
    let run = HintedRun::of_session(run_dir.clone(), session);
    // A simulation does not store its command line.
    let named = (!tree.is_named).then(|| format!("--tree-run-id={}", tree.name));
    let named: Vec<String> = named.into_iter().collect();
    if !tree.is_named {
        printer.warn_of_unknown_zone();
        let resume = match args.dry_run {
            true => hint_command::of_this_process(&named),
            false => hint_command::command(&run, &RunAction::Resume, &[]),
        };
        printer.hint(&format!("this search is named {}: {resume} resumes it", tree.name));
    }
    let result = run_search::run_search(tree, &args, screen, printer).await;
    let manifest = result.map_err(|error| error.for_run(&run).for_this_command(&named))?;
    if !args.json {
        printer.data(&show::text(&manifest, false, printer.out.width)?)?;
        let page = run_dir.join("tree.html");
        printer.hint(&format!("open {} to see the tree as a drawing", page.display()));
        best::hint_after_search(&manifest, &run_dir, printer);
    }
    Ok(exit_code(&manifest, printer))
}

/// The exit code of a search that ended.
fn exit_code(manifest: &SearchManifest, printer: &Printer) -> ExitCode {
    let counts = OutcomeCounts::from_manifest(manifest);
    if !counts.has_only_failures() {
        return ExitCode::Success;
    }
    let first = manifest.evaluations.iter().find_map(|(id, eval)| Some((id, eval.error.as_ref()?)));
    let first = first.map(|(id, error)| format!("; eval {id}: {}", error.message));
    let first = first.unwrap_or_default();
    printer.warning(&format!("none of {} evals has results to compare{first}", counts.total()));
    match counts.failed_by_infrastructure {
        0 => ExitCode::NothingMeasured,
        _ => ExitCode::Infrastructure,
    }
}

fn prepare(args: &TreeRunArgs) -> Result<(TreeFile, Vec<ConfigWarning>), CliError> {
    let is_set = |name: &str| args.dry_run || std::env::var(name).is_ok();
    let options = TreeOptions {
        overrides: args.keys.overrides(),
        is_remote: args.is_remote(),
        ..TreeOptions::for_command_line(&is_set)
    };
    let mut problems = Diagnostics::default();
    let tree = read_tree(&args.tree, &options, &mut problems);
    let (tree, warnings) = problems.finish(tree)?;
    let nothing = || CliError::new(ExitCode::Config, "the search file is empty");
    let mut tree = tree.ok_or_else(nothing)?;
    if let Some(run_dir) = &args.again {
        tree.is_named = true;
        if let Some((runs_root, name)) = run_place::moved(run_dir, &tree.run_dir())? {
            (tree.runs_root, tree.name) = (runs_root, name);
        }
    }
    Ok((tree, warnings))
}

/// Refuses a baseline that nothing can be compared with, before anything is created. A simulated
/// search is not scored, so it only warns.
async fn validate_baseline(
    tree: &TreeFile,
    dry_run: bool,
    printer: &Printer,
) -> Result<(), CliError> {
    let looked = tree.clone();
    match supervise::blocking(move || check_baseline(&looked)).await {
        Ok(warnings) => warnings.iter().for_each(|odd| printer.warning(odd)),
        Err(SearchError::Baseline { path, missing }) if dry_run => {
            let path = path.display();
            for what in missing {
                printer.warning(&format!("a search without `--dry-run` refuses {path}: {what}"));
            }
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
