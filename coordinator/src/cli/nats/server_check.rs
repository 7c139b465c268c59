//! The check of the NATS server that a server of runs makes when it starts.

use rollout_base::backoff::error_chain;
use rollout_queue::nats::{ConnectError, Nats, NatsOptions};

use crate::cli::error::CliError;

/// Checks that the TLS settings of this process and of the NATS server fit. A NATS server that is out of
/// reach, or cannot be used for another reason, is left to the runs, which try it again or say why not.
///
/// # Errors
/// The mistake in the settings.
pub(in crate::cli) async fn check_tls(options: &NatsOptions) -> Result<(), CliError> {
    match Nats::connect(options.clone()).await {
        Ok(_connected) => {}
        Err(error @ (ConnectError::Tls { .. } | ConnectError::TlsFile(_))) => {
            return Err(error.into());
        }
        Err(error) => {
            tracing::warn!("{}: runs cannot use it for now", error_chain(&error));
        }
    }
    Ok(())
}
