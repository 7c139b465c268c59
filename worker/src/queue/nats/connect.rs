//! Connecting, and whether the server is one that can be worked with.

use std::sync::Arc;

use async_nats::{ConnectErrorKind, Event};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::client::{self, NatsClient};
use super::dispatch::NatsDispatch;
use super::error::{NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT, NatsError};
use super::kv_store::NatsKvStore;
use super::names::NatsName;
use super::options::{NatsOptions, NatsOptionsError};
use super::replies::ReplyRouter;
use super::setup::{self, NatsSetupError};
use super::source::NatsSource;
use super::{incarnation, server_info, snapshot};
use crate::queue::traits::{ConnectionStatus, QueueError};
use crate::supervise::{self, Task};
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::offer::SizeClass;

/// The oldest server that is worked with. Older ones lose streams when they are killed, or leave
/// messages behind when a subject is purged.
pub const MINIMUM_SERVER: (u32, u32, u32) = (2, 10, 23);

/// Events of the connection that may wait to be looked at.
const EVENT_CAPACITY: usize = 256;

/// Why a server is not worked with.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The options forbid it.
    #[error(transparent)]
    Options(#[from] NatsOptionsError),
    /// A file of credentials or certificates cannot be read.
    #[error("credentials for {address} cannot be read")]
    Credentials {
        /// The server.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// It does not answer.
    #[error("{address} cannot be reached: {reason}")]
    Unreachable {
        /// The server.
        address: String,
        /// What the client says.
        reason: String,
    },
    /// It does not let this user in, or lets it do nothing.
    #[error("{address} refuses this user: {reason}")]
    Denied {
        /// The server.
        address: String,
        /// What it says.
        reason: String,
    },
    /// It is too old.
    #[error(
        "{address} is nats-server {found}; {}.{}.{} or newer is needed: older ones can lose \
         streams when they are killed",
        MINIMUM_SERVER.0, MINIMUM_SERVER.1, MINIMUM_SERVER.2
    )]
    TooOld {
        /// The server.
        address: String,
        /// Its version.
        found: String,
    },
    /// It keeps nothing.
    #[error("{address} has no JetStream for this user: {reason}")]
    NoJetStream {
        /// The server.
        address: String,
        /// What it says.
        reason: String,
    },
}

/// A connection to a server. It goes on for ever: while the server is out of reach it is tried
/// again and again. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Nats(Arc<NatsInner>);

#[derive(Debug)]
struct NatsInner {
    link: Arc<NatsClient>,
    _tasks: [Task<()>; 3],
}

/// What JetStream says of the account.
#[derive(Debug, Deserialize)]
struct AccountInfo {}

impl Nats {
    /// Connects, and refuses a server that cannot be worked with.
    ///
    /// # Errors
    /// [`ConnectError`]. No error repeats a secret.
    pub async fn connect(options: NatsOptions) -> Result<Self, ConnectError> {
        options.check()?;
        let address = options.address();
        let (sender, events) = mpsc::channel(EVENT_CAPACITY);
        let client = (options.connect_options().await)
            .map_err(|source| ConnectError::Credentials { address: address.clone(), source })?
            .event_callback(move |event: Event| {
                // The state of the connection is looked at anyway.
                let _full = sender.try_send(event);
                std::future::ready(())
            })
            .connect(options.servers())
            .await
            .map_err(|error| connect_error(&address, &error))?;
        let version = client.server_info().version;
        if parse_version(&version).is_none_or(|found| found < MINIMUM_SERVER) {
            return Err(ConnectError::TooOld { address, found: version });
        }
        let (replies, subscriber) = ReplyRouter::subscribe(&client)
            .await
            .map_err(|f| ConnectError::Unreachable { address, reason: f.to_string() })?;
        let link = Arc::new(NatsClient::new(client, options, replies));
        let answers = supervise::spawn("answers", link.replies.clone().deliver_replies(subscriber));
        let contact = supervise::spawn("contact", client::follow_connection(link.clone(), events));
        check_jetstream(&link).await?;
        let life = supervise::spawn("server life", incarnation::watch_incarnation(link.clone()));
        Ok(Self(Arc::new(NatsInner { link, _tasks: [answers, contact, life] })))
    }

    pub(super) fn client(&self) -> &Arc<NatsClient> {
        &self.0.link
    }

    /// The options it was connected with.
    pub fn options(&self) -> &NatsOptions {
        &self.client().options
    }

    /// Whether the server is reached, from now on.
    pub fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.client().connection_status()
    }

    /// Makes what is missing on the server: streams, buckets, and the consumers of these classes of
    /// the pool. Compares what is there with what is wanted.
    ///
    /// # Errors
    /// [`NatsSetupError`].
    pub async fn prepare(
        &self,
        pool: &NatsName,
        classes: &[SizeClass],
    ) -> Result<(), NatsSetupError> {
        setup::ensure_resources(self.client(), pool, classes).await?;
        self.client().check_incarnation().await.map_err(QueueError::from)?;
        Ok(())
    }

    /// The coordinator's side. Makes what is missing when it is missed.
    ///
    /// # Errors
    /// [`NatsSetupError`].
    pub async fn dispatch(
        &self,
        pool: &NatsName,
        classes: &[SizeClass],
    ) -> Result<NatsDispatch, NatsSetupError> {
        self.prepare(pool, classes).await?;
        NatsDispatch::new(self.clone(), pool.clone(), classes.to_vec()).await
    }

    /// A worker's side, for the work of a pool. `store` is the identity of the blob store that the
    /// worker uses: offers of a pool that is bound to another are not pulled.
    ///
    /// # Errors
    /// [`QueueError`].
    pub async fn source(&self, pool: &NatsName, store: &str) -> Result<NatsSource, QueueError> {
        NatsSource::new(self.clone(), pool.clone(), store.to_owned()).await
    }

    /// Locks and states of runs.
    pub fn kv_store(&self) -> NatsKvStore {
        NatsKvStore::new(self.clone())
    }

    /// The last hello of every worker that said one, aged by the server's own clock.
    ///
    /// # Errors
    /// [`QueueError`] when the server does not answer.
    pub async fn heartbeats(&self) -> Result<Vec<ReceivedHeartbeat>, QueueError> {
        let found = match snapshot::read_bucket(self.client(), &self.client().names.workers).await {
            Ok(found) => found,
            // A server that was never used.
            Err(fault) if fault.is_missing() => return Ok(Vec::new()),
            Err(fault) => return Err(fault.into()),
        };
        let parsed = found.into_iter().filter_map(|aged| {
            let hello = serde_json::from_slice(&aged.stored.payload).ok()?;
            Some(ReceivedHeartbeat { hello, age: aged.age })
        });
        Ok(parsed.collect())
    }

    /// What the server is, has and lets one do, for people who look for a fault.
    ///
    /// # Errors
    /// [`QueueError`] when the server does not answer.
    pub async fn server_info(&self) -> Result<server_info::NatsServerInfo, QueueError> {
        Ok(server_info::read_server_info(self.client()).await?)
    }
}

fn connect_error(address: &str, error: &async_nats::ConnectError) -> ConnectError {
    let (address, reason) = (address.to_owned(), crate::backoff::error_chain(error));
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            ConnectError::Denied { address, reason }
        }
        _ => ConnectError::Unreachable { address, reason },
    }
}

async fn check_jetstream(link: &NatsClient) -> Result<(), ConnectError> {
    let address = link.options.address();
    let answer = link.api_call::<AccountInfo>("INFO", &json!({})).await;
    let Err(fault) = answer else { return Ok(()) };
    let reason = fault.to_string();
    Err(match fault {
        NatsError::Denied(_) => ConnectError::Denied { address, reason },
        NatsError::NoResponders(_) => ConnectError::NoJetStream { address, reason },
        NatsError::Api(error)
            if [NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT].contains(&error.err_code) =>
        {
            ConnectError::NoJetStream { address, reason }
        }
        NatsError::Unreachable(_) | NatsError::Api(_) => {
            ConnectError::Unreachable { address, reason }
        }
    })
}

fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let release = text.trim_start_matches('v').split(['-', '+']).next()?;
    let mut parts = release.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nats_server_versions_compare_as_numbers() {
        assert_eq!(parse_version("2.10.27"), Some((2, 10, 27)));
        assert_eq!(parse_version("v2.15.1-beta.2"), Some((2, 15, 1)));
        assert_eq!(parse_version("2.9"), None);
        assert!(parse_version("2.10.3").unwrap() < MINIMUM_SERVER);
        assert!(parse_version("2.9.100").unwrap() < MINIMUM_SERVER);
    }
}
