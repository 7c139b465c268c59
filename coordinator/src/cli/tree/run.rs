//! `rollout tree run`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{ArgAction, Args};
use rollout_protocol::exit::ExitCode;
use rollout_worker::supervise;

use super::options::KeyOptions;
use super::{show, validate};
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::config::{ConfigWarning, Problems, TreeFile, TreeOptions, read_tree};
use crate::run::{Patience, Taking, signals};
use crate::tree::manifest::Manifest;
use crate::tree::run::play::Player;
use crate::tree::run::{Clock, Opening, TreeError, begin};

/// Seconds after which a silent owner of a search is taken over.
const STALE: u32 = 600;

/// Play a search: everything but its commands and its repository is as it always is
///
/// With `--dry-run`, which is needed for now, no command runs and no repository is touched: what
/// comes of an eval follows from its number, so that every outcome comes up. Equal searches leave
/// equal files. A search that was stopped or died is gone on with by the same command.
#[derive(Debug, Args)]
pub(in crate::cli) struct RunArgs {
    /// The file of the search, YAML or JSON
    tree: PathBuf,

    /// Play commands and repository
    #[arg(long)]
    dry_run: bool,

    /// Whether a search that is there is gone on with; otherwise it is refused
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    resume: bool,

    /// Throw away the results of the depth under way, and make them again
    #[arg(long)]
    rerun_evals: bool,

    /// Throw away ideas of which none was tried, and have them written again
    #[arg(long)]
    force_regenerate_ideas: bool,

    /// Validate the search and make its reports anew, and nothing else
    #[arg(long, conflicts_with_all = ["rerun_evals", "force_regenerate_ideas", "force"])]
    report_only: bool,

    /// Seconds that an owner says nothing before the search is taken over [default: 600]
    ///
    /// An owner whose process exists on this host is taken over only if this is given.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    lock_stale_seconds: Option<u32>,

    /// Take the search over at once, whoever owns it
    #[arg(long)]
    force: bool,

    /// Print the search as one JSON document when it has ended
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    keys: KeyOptions,
}

/// Runs the command.
pub(in crate::cli) async fn run(args: RunArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    if !args.dry_run && !args.report_only {
        return Err(CliError::usage("this version plays searches only: give `--dry-run`"));
    }
    let args = Arc::new(args);
    let read = Arc::clone(&args);
    let (tree, warnings) = supervise::blocking(move || prepare(&read)).await?;
    for warning in ConfigWarning::grouped(&warnings) {
        printer.warning(&warning);
    }
    if args.report_only {
        return validate::anew(tree.run_dir(), args.json, printer).await;
    }
    let run_dir = tree.run_dir();
    let manifest = sit(tree, &args).await?;
    printer.data(&show::text(&manifest, args.json)?)?;
    if !args.json {
        let page = run_dir.join("tree.html");
        printer.hint(&format!("{} has the tree as a drawing", page.display()));
    }
    Ok(ExitCode::Success)
}

fn prepare(args: &RunArgs) -> Result<(TreeFile, Vec<ConfigWarning>), CliError> {
    // Nothing runs, so nothing has to be set.
    let is_set = |name: &str| args.dry_run || std::env::var(name).is_ok();
    let options = TreeOptions { overrides: args.keys.overrides(), ..TreeOptions::new(&is_set) };
    let mut problems = Problems::default();
    let tree = read_tree(&args.tree, &options, &mut problems);
    let (tree, warnings) = problems.finish(tree)?;
    let nothing = || CliError::new(ExitCode::Config, "the file of the search is empty");
    Ok((tree.ok_or_else(nothing)?, warnings))
}

/// Goes on with the search until it has ended; a signal stops it between two blocks.
async fn sit(tree: TreeFile, args: &RunArgs) -> Result<Manifest, CliError> {
    let listening = signals::listen();
    let (mut stops, _signals) =
        listening.map_err(|error| CliError::failure("cannot listen to signals", &error))?;
    let patience = Patience {
        stale: Duration::from_secs(args.lock_stale_seconds.unwrap_or(STALE).into()),
        force: args.force,
        wait: true,
        hung: args.lock_stale_seconds.is_some(),
    };
    let player = Player::new(tree.run_dir(), &tree);
    let opening = Opening {
        tree,
        dry_run: args.dry_run,
        resume: args.resume,
        rerun_evals: args.rerun_evals,
        force_regenerate_ideas: args.force_regenerate_ideas,
        clock: Clock::Counted,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let taking = Taking { patience, shared: None };
    let opened = begin(opening, &taking, player, Arc::clone(&stop), &mut stops).await;
    let (mut sitting, lock) = opened?;
    let listening = supervise::spawn("stop", async move {
        if stops.recv().await.is_some() {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let ran = supervise::blocking(move || -> Result<Manifest, TreeError> {
        sitting.run()?;
        Ok(sitting.manifest().clone())
    })
    .await;
    drop(listening);
    // Nothing is on a board, so there is nothing that could be lost by now.
    drop(lock.release(None).await);
    Ok(ran?)
}
