//! Connections to a server, and the check that the server is supported.

use std::error::Error as _;
use std::sync::Arc;

use async_nats::{ConnectErrorKind, Event};
use rollout_base::supervise::{self, Task};
use rollout_base::tls_files::TlsFileError;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::client::{self, NatsClient};
use super::dispatch::NatsDispatch;
use super::error::{NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT, NatsError, STREAM_NOT_FOUND};
use super::kv_store::NatsKvStore;
use super::names::NatsName;
use super::options::{NatsOptions, NatsOptionsError};
use super::replies::ReplyRouter;
use super::setup::{self, NatsSetupError};
use super::source::NatsSource;
use super::tls_fault::{self, ReconnectFailure};
use super::{incarnation, names, next_server, server_info, snapshot};
use crate::traits::{ConnectionStatus, QueueError};
use rollout_protocol::limits;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::offer::SizeClass;

/// The oldest supported server. Older ones lose streams when they are killed, or leave messages
/// behind when a subject is purged.
pub const MINIMUM_SERVER: (u32, u32, u32) = (2, 10, 23);

/// Bytes of a message beside the part of a file in it: the epochs of a run with a thousand sessions.
const PART_OVERHEAD_BYTES: u64 = 16 * 1024;

/// Capacity of the queue of connection events.
const EVENT_CAPACITY: usize = 256;

/// Why a connection to a server failed or was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The options are not valid.
    #[error(transparent)]
    Options(#[from] NatsOptionsError),
    /// A file of credentials or certificates cannot be read.
    #[error("cannot read the credentials for {address}")]
    Credentials {
        /// The server.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file for TLS cannot be used.
    #[error(transparent)]
    TlsFile(#[from] TlsFileError),
    /// The server answers, and one side does not accept the TLS of the other.
    #[error("cannot make a TLS connection to {address}: {reason}")]
    Tls {
        /// The server.
        address: String,
        /// The client's error.
        reason: String,
    },
    /// The server does not respond.
    #[error("cannot reach the NATS server {address}: {reason}")]
    Unreachable {
        /// The server.
        address: String,
        /// The client's error.
        reason: String,
    },
    /// The server does not accept this user, or gives it no permissions.
    #[error("{address} refused this user: {reason}")]
    Denied {
        /// The server.
        address: String,
        /// The server's reason.
        reason: String,
    },
    /// The server accepts no client without credentials.
    #[error("{address} requires credentials, and none were given")]
    NoCredentials {
        /// The server.
        address: String,
    },
    /// The server is too old.
    #[error(
        "{address} runs nats-server {found}; {}.{}.{} or newer is required: older ones can lose \
         streams when they are killed",
        MINIMUM_SERVER.0, MINIMUM_SERVER.1, MINIMUM_SERVER.2
    )]
    TooOld {
        /// The server.
        address: String,
        /// Its version.
        found: String,
    },
    /// The server's limit on messages is too low.
    #[error(
        "{address} takes messages of up to {found} bytes (`max_payload`); {} or more are required",
        limits::MESSAGE_BYTES
    )]
    SmallMessages {
        /// The server.
        address: String,
        /// Its limit, bytes.
        found: usize,
    },
    /// The server has no JetStream.
    #[error("{address} has no JetStream for this user: {reason}")]
    NoJetStream {
        /// The server.
        address: String,
        /// The server's reason.
        reason: String,
    },
}

/// A connection to a server. It reconnects for as long as it exists. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Nats(Arc<NatsInner>);

#[derive(Debug)]
struct NatsInner {
    client: Arc<NatsClient>,
    _tasks: [Task<()>; 3],
}

/// JetStream's answer about the account.
#[derive(Debug, Deserialize)]
struct AccountInfo {}

impl Nats {
    /// Connects, and refuses an unsupported server.
    ///
    /// # Errors
    /// [`ConnectError`]. No error contains a secret.
    pub async fn connect(options: NatsOptions) -> Result<Self, ConnectError> {
        options.check()?;
        let tls = options.tls.clone();
        supervise::blocking(move || tls.check()).await?;
        let address = options.address();
        let (sender, events) = mpsc::channel(EVENT_CAPACITY);
        let connect_options = (options.connect_options().await)
            .map_err(|source| ConnectError::Credentials { address: address.clone(), source })?;
        let failure = Arc::<ReconnectFailure>::default();
        let client = next_server::reconnect_in_turn(connect_options, Arc::clone(&failure))
            .event_callback(move |event: Event| {
                // The state of the connection is polled anyway.
                let _full = sender.try_send(event);
                std::future::ready(())
            })
            .connect(options.servers())
            .await
            .map_err(|error| connect_error(&options, &error))?;
        let version = client.server_info().version;
        if parse_version(&version).is_none_or(|found| found < MINIMUM_SERVER) {
            return Err(ConnectError::TooOld { address, found: version });
        }
        let found = client.server_info().max_payload;
        if found < limits::MESSAGE_BYTES {
            return Err(ConnectError::SmallMessages { address, found });
        }
        let (replies, subscriber) = ReplyRouter::subscribe(&client)
            .await
            .map_err(|f| ConnectError::Unreachable { address, reason: f.to_string() })?;
        let client = Arc::new(NatsClient::new(client, options, replies, failure));
        let answers =
            supervise::spawn("answers", client.replies.clone().deliver_replies(subscriber));
        let status = supervise::spawn("contact", client::follow_connection(client.clone(), events));
        check_jetstream(&client).await?;
        let incarnation =
            supervise::spawn("incarnation", incarnation::watch_incarnation(client.clone()));
        Ok(Self(Arc::new(NatsInner { client, _tasks: [answers, status, incarnation] })))
    }

    pub(super) fn client(&self) -> &Arc<NatsClient> {
        &self.0.client
    }

    /// Largest part of a file that fits into one message of the server.
    pub fn part_bytes(&self) -> u64 {
        let message = self.client().inner.server_info().max_payload as u64;
        // Base64 takes four bytes for three.
        (message.saturating_sub(PART_OVERHEAD_BYTES) / 4 * 3).min(limits::RUN_FILE_PART_BYTES)
    }

    /// Largest text of output, if less than usual fits into one message of the server.
    pub fn output_bytes(&self) -> Option<u64> {
        let message = self.client().inner.server_info().max_payload as u64;
        // JSON takes up to six bytes for one.
        let fitting = message.saturating_sub(PART_OVERHEAD_BYTES) / 6;
        (fitting < limits::LIVE_OUTPUT_BYTES).then_some(fitting)
    }

    /// The options it was connected with.
    pub fn options(&self) -> &NatsOptions {
        &self.client().options
    }

    /// The connection to the server, from now on.
    pub fn connection_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.client().connection_status()
    }

    /// Creates what is missing on the server: streams, buckets, and the consumers of these classes
    /// of the pool. Compares existing ones with the required settings.
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

    /// Gives every stream and bucket of the namespace `copies` copies in the cluster. Returns the
    /// names of the streams that had another number. They must exist, see [`Nats::prepare`].
    ///
    /// # Errors
    /// [`NatsSetupError`].
    pub async fn change_replicas(&self, copies: u8) -> Result<Vec<String>, NatsSetupError> {
        setup::change_replicas(self.client(), copies).await
    }

    /// The coordinator's side. Creates what is missing on the server when a request needs it.
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

    /// A worker's side, for the work of a pool. `store` is the identity of the worker's blob store:
    /// offers of a pool that is bound to another store are not pulled.
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

    /// The last heartbeat of every worker that sent one, with its age by the server's clock.
    ///
    /// # Errors
    /// [`QueueError`] when the server does not respond.
    pub async fn heartbeats(&self) -> Result<Vec<ReceivedHeartbeat>, QueueError> {
        let found = match snapshot::read_bucket(self.client(), &self.client().names.workers).await {
            Ok(found) => found,
            // The server was never set up.
            Err(fault) if fault.is_missing() => return Ok(Vec::new()),
            Err(fault) => return Err(fault.into()),
        };
        let parsed = found.into_iter().filter_map(|aged| {
            let heartbeat = serde_json::from_slice(&aged.stored.payload).ok()?;
            Some(ReceivedHeartbeat { heartbeat, age: aged.age })
        });
        Ok(parsed.collect())
    }

    /// Whether a run or a set-up has created the namespace's streams and buckets.
    ///
    /// # Errors
    /// [`QueueError`] when the server does not respond.
    pub async fn is_set_up(&self) -> Result<bool, QueueError> {
        let stream = names::bucket_stream(&self.client().names.workers);
        match snapshot::stream_age(self.client(), &stream).await {
            Ok(_) => Ok(true),
            Err(NatsError::Api(error)) if error.err_code == STREAM_NOT_FOUND => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }

    /// The server's version, limits, streams and consumers, for diagnosis.
    ///
    /// # Errors
    /// [`QueueError`] when the server does not respond.
    pub async fn server_info(&self) -> Result<server_info::NatsServerInfo, QueueError> {
        Ok(server_info::read_server_info(self.client()).await?)
    }
}

fn connect_error(options: &NatsOptions, error: &async_nats::ConnectError) -> ConnectError {
    let (address, reason) = (options.address(), connect_failure(error));
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation if options.is_anonymous() => {
            ConnectError::NoCredentials { address }
        }
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            ConnectError::Denied { address, reason }
        }
        ConnectErrorKind::Tls => ConnectError::Tls { address, reason },
        _ if tls_fault::is_final(error) => ConnectError::Tls { address, reason },
        _ => ConnectError::Unreachable { address, reason },
    }
}

/// The last cause of an error. The kind is added only where the cause does not imply it.
fn connect_failure(error: &async_nats::ConnectError) -> String {
    let kind = error.kind();
    let Some(mut cause) = error.source() else { return kind.to_string() };
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text = cause.to_string();
    let text = text.strip_prefix("nats: ").unwrap_or(&text);
    match kind {
        ConnectErrorKind::Io | ConnectErrorKind::Dns | ConnectErrorKind::AuthorizationViolation => {
            text.to_owned()
        }
        _ => format!("{kind}: {text}"),
    }
}

async fn check_jetstream(client: &NatsClient) -> Result<(), ConnectError> {
    let address = client.options.address();
    let answer = client.api_call::<AccountInfo>("INFO", &json!({})).await;
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
    use async_nats::ServerError;

    use super::*;
    use crate::nats::{NatsCredentials, NatsSecret};

    #[test]
    fn connect_error_states_last_cause_once() {
        let text =
            |options: &NatsOptions, kind, cause: Box<dyn std::error::Error + Send + Sync>| {
                let error = async_nats::ConnectError::with_source(kind, cause);
                connect_error(options, &error).to_string()
            };
        let mut options = NatsOptions::parse("nats://127.0.0.1:1").expect("valid");
        let refused = || std::io::Error::from_raw_os_error(111).into();
        assert_eq!(
            text(&options, ConnectErrorKind::Io, refused()),
            "cannot reach the NATS server nats://127.0.0.1:1: Connection refused (os error 111)"
        );
        assert!(text(&options, ConnectErrorKind::Tls, refused()).contains(": TLS error: "));
        let denied = || ServerError::AuthorizationViolation.into();
        let kind = ConnectErrorKind::AuthorizationViolation;
        assert_eq!(
            text(&options, kind, denied()),
            "nats://127.0.0.1:1 requires credentials, and none were given"
        );
        options.credentials = NatsCredentials::Token(NatsSecret::new("hush"));
        assert_eq!(
            text(&options, kind, denied()),
            "nats://127.0.0.1:1 refused this user: authorization violation"
        );
    }

    #[test]
    fn nats_server_versions_compare_as_numbers() {
        assert_eq!(parse_version("2.10.27"), Some((2, 10, 27)));
        assert_eq!(parse_version("v2.15.1-beta.2"), Some((2, 15, 1)));
        assert_eq!(parse_version("2.9"), None);
        assert!(parse_version("2.10.3").expect("a version") < MINIMUM_SERVER);
        assert!(parse_version("2.9.100").expect("a version") < MINIMUM_SERVER);
    }
}
