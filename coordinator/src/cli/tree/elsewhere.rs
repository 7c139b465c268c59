//! `rollout tree run --nats`: evals run on workers elsewhere.

use std::time::Duration;

use clap::Args;

use crate::cli::cluster::NatsArgs;
use crate::cli::error::CliError;
use crate::launch::nats::Remote;

/// Where workers are.
#[derive(Debug, Args)]
pub(super) struct ElsewhereArgs {
    /// Pool of the workers
    #[arg(long, value_name = "NAME", requires = "url")]
    pool: Option<String>,

    /// How long evals that no worker could run wait for one that can before they fail
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = crate::cli::values::duration)]
    unplaceable_timeout: Duration,

    #[command(flatten)]
    nats: NatsArgs,
}

impl ElsewhereArgs {
    /// Whether evals run on workers elsewhere.
    pub(super) fn is_given(&self) -> bool {
        self.nats.url.is_some()
    }

    /// The server and its pool, if the command line names a server.
    ///
    /// # Errors
    /// The options are faulty.
    pub(super) fn remote(&self) -> Result<Option<Remote>, CliError> {
        self.nats.remote(self.pool.as_deref(), self.unplaceable_timeout)
    }
}
