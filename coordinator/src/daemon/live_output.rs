//! Output of trials that run, in this process or on workers.

#[cfg(feature = "nats")]
use std::time::Duration;

#[cfg(feature = "nats")]
use rollout_queue::nats::{ConnectError, Nats, NatsOptions};

use super::Daemon;
use super::hosted_run::HostedRun;
use crate::launch::live_output::{
    LiveOutput, LiveOutputError, LiveOutputSource, LivePiece, RunningTrial,
};

/// Longest wait for a connection: its waiter looks at the run meanwhile.
#[cfg(feature = "nats")]
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The connection for requests that belong to no session: for output of workers, and removals. It is
/// opened with the first request.
#[cfg(feature = "nats")]
#[derive(Debug, Default)]
pub(super) struct OutputConnection {
    nats: tokio::sync::Mutex<Option<Nats>>,
}

impl Daemon {
    /// The next piece of output of a trial that runs; `None` if there is nothing new.
    ///
    /// # Errors
    /// [`LiveOutputError`]. The same call may succeed later.
    pub async fn next_output(
        &self,
        run: &HostedRun,
        trial: RunningTrial,
        output: &mut LiveOutput,
    ) -> Result<Option<LivePiece>, LiveOutputError> {
        #[cfg(feature = "nats")]
        if let Some(options) = &self.options.nats {
            let nats = self.output_connection.open(options).await?;
            return output.next_piece(&LiveOutputSource::Workers(nats), trial).await;
        }
        output.next_piece(&LiveOutputSource::ThisHost(run.workers()), trial).await
    }
}

#[cfg(feature = "nats")]
impl OutputConnection {
    pub(super) async fn open(&self, options: &NatsOptions) -> Result<Nats, ConnectError> {
        let mut nats = self.nats.lock().await;
        if let Some(nats) = &*nats {
            return Ok(nats.clone());
        }
        let connected = tokio::time::timeout(CONNECT_LIMIT, Nats::connect(options.clone())).await;
        let connected = connected.map_err(|_| ConnectError::Unreachable {
            address: options.address(),
            reason: "the connection took too long".to_owned(),
        })??;
        Ok(nats.insert(connected).clone())
    }
}
