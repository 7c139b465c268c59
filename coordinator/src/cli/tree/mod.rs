//! Commands of tree searches.

mod best;
mod error;
mod gc;
mod init;
#[cfg(feature = "nats")]
mod nats;
mod options;
mod report;
mod run;
mod run_search;
mod score;
mod show;
mod validate;

use std::path::PathBuf;

use clap::Subcommand;
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;

use self::run::TreeRunArgs;
use super::error::CliError;
use super::output::Printer;
use crate::workloads::search::driver::SearchDirectory;
use crate::workloads::search::manifest::SearchManifest;

/// Subcommands of `rollout tree`.
#[derive(Debug, Subcommand)]
pub(super) enum TreeCommand {
    Init(init::InitArgs),
    Run(Box<TreeRunArgs>),
    /// Resume an existing search; like `run`, but never starts a new one
    Resume(Box<TreeRunArgs>),
    Report(report::ReportArgs),
    Show(show::ShowArgs),
    Best(best::BestArgs),
    Apply(best::ApplyArgs),
    Validate(validate::ValidateArgs),
    Score(score::ScoreArgs),
    Gc(gc::TreeGcArgs),
}

impl TreeCommand {
    /// Whether only errors are shown.
    pub(super) fn is_quiet(&self) -> bool {
        matches!(self, Self::Run(args) | Self::Resume(args) if args.quiet)
    }

    /// Runs the command.
    pub(super) async fn run(self, printer: &Printer) -> Result<ExitCode, CliError> {
        match self {
            Self::Init(args) => init::init(args, printer).await,
            Self::Run(args) => Box::pin(run::run(*args, false, printer)).await,
            Self::Resume(args) => Box::pin(run::run(*args, true, printer)).await,
            Self::Report(args) => report::report(args, printer).await,
            Self::Show(args) => show::show(args, printer).await,
            Self::Best(args) => best::best(args, printer).await,
            Self::Apply(args) => best::apply(args, printer).await,
            Self::Validate(args) => validate::validate(args, printer).await,
            Self::Score(args) => score::score(args, printer).await,
            Self::Gc(args) => Box::pin(gc::gc(args, printer)).await,
        }
    }
}

/// Runs `work` on an existing search, which may be running.
async fn with_search<T: Send + 'static>(
    run_dir: PathBuf,
    work: impl FnOnce(
        SearchDirectory,
        SearchManifest,
    ) -> Result<T, crate::workloads::search::driver::SearchError>
    + Send
    + 'static,
) -> Result<T, CliError> {
    let done = supervise::blocking(move || {
        let directory = SearchDirectory::new(run_dir);
        let manifest = directory.manifest()?;
        work(directory, manifest)
    })
    .await;
    Ok(done?)
}
