//! The queue over NATS JetStream.
//!
//! Only the core client is used: subscriptions, publications, requests. JetStream requests are
//! written here, because the library's pull streams stall, its acknowledgements succeed before the
//! server has them, and its readers recreate themselves where a position must be checked.
//!
//! # Layout
//! * [`Nats`] is a connection. [`Nats::prepare`] creates what is missing on the server; everything
//!   else only uses it.
//! * [`NatsSource`], [`NatsDispatch`] and [`NatsKvStore`] implement the queue traits.
//! * The server's [`Incarnation`] is identified by the creation times of both streams, and also
//!   changes when a stream's last sequence went back. It is checked over each new connection before
//!   anything is acknowledged, and every two seconds.
//!
//! [`Incarnation`]: rollout_protocol::wire::position::Incarnation

mod client;
mod connect;
mod consumers;
mod delivery_metadata;
mod dispatch;
mod elastic_pool;
mod error;
mod incarnation;
mod kv_store;
mod missing_disk;
mod names;
mod next_server;
mod options;
mod pool_binding;
mod publish;
mod removed_entries;
mod replicas;
mod replies;
mod run_messages;
mod server_info;
mod setup;
mod snapshot;
mod source;
mod stored_message;
mod tls_fault;

pub use self::connect::{ConnectError, MINIMUM_SERVER, Nats};
pub use self::dispatch::NatsDispatch;
pub use self::elastic_pool::PoolElasticity;
pub use self::kv_store::NatsKvStore;
pub use self::missing_disk::MissingDisk;
pub use self::names::{InvalidNatsName, NatsName};
pub use self::options::{NatsCredentials, NatsOptions, NatsOptionsError, NatsSecret, TlsFiles};
pub use self::pool_binding::{BindError, PoolBinding};
pub use self::run_messages::QueueEnds;
pub use self::server_info::{
    AccountLimits, ConsumerStatus, NatsServerInfo, StreamCopies, StreamStatus,
};
pub use self::setup::NatsSetupError;
pub use self::source::NatsSource;
