//! Options of `rollout tree run --nats`, which runs evals on remote workers.

use std::time::Duration;

use clap::Args;

use crate::cli::error::CliError;
use crate::cli::nats::NatsArgs;
use crate::cli::value_parsers;
use crate::launch::nats::RemoteOptions;

/// Server and pool of the workers.
#[derive(Debug, Args)]
pub(super) struct RemoteArgs {
    /// Pool of the workers
    #[arg(long, value_name = "NAME", requires = "url")]
    pool: Option<String>,

    /// How long evals that no worker can run wait before they fail [default: 10m; in an elastic
    /// pool without limit, or that of the pool]
    #[arg(long, value_name = "TIME", value_parser = value_parsers::duration)]
    unplaceable_timeout: Option<Duration>,

    #[command(flatten)]
    nats: NatsArgs,
}

impl RemoteArgs {
    /// Whether evals run on remote workers.
    pub(super) fn is_remote(&self) -> bool {
        self.nats.url.is_some()
    }

    /// The address of the server.
    pub(super) fn url(&self) -> Option<&str> {
        self.nats.url.as_deref()
    }

    /// The server and its pool, if the command line names a server.
    ///
    /// # Errors
    /// The options are invalid.
    pub(super) fn remote(&self) -> Result<Option<RemoteOptions>, CliError> {
        self.nats.remote(self.pool.as_deref(), self.unplaceable_timeout)
    }
}
