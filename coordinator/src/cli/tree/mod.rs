//! Commands of tree searches.

mod score;

use clap::Subcommand;
use rollout_protocol::exit::ExitCode;

use super::error::CliError;
use super::output::Printer;

/// What to do about a tree search.
#[derive(Debug, Subcommand)]
pub(super) enum TreeCommand {
    Score(score::ScoreArgs),
}

impl TreeCommand {
    /// Runs the command.
    pub(super) async fn run(self, printer: &Printer) -> Result<ExitCode, CliError> {
        match self {
            Self::Score(args) => score::score(args, printer).await,
        }
    }
}
