//! The queue over NATS JetStream.
//!
//! Only the core client is used: subscriptions, publications, requests. What JetStream is asked for
//! is written here, because the library's pull streams stall, its acknowledgements succeed without
//! having been heard, and its readers recreate themselves where a position must be checked.
//!
//! # Layout
//! * [`Nats`] is a connection. [`Nats::prepare`] makes what is missing on the server; everything else
//!   only uses it.
//! * [`NatsSource`], [`NatsDispatch`] and [`NatsBoard`] are the ports.
//! * A life of the server (its [`Incarnation`]) is named by the creation times of both streams, and
//!   changes also when a stream's last sequence went back. It is looked at over each new connection
//!   before anything is acknowledged, and every two seconds.
//!
//! [`Incarnation`]: rollout_protocol::wire::position::Incarnation

mod binding;
mod board;
mod connect;
mod dispatch;
mod fault;
mod flood;
mod kv;
mod life;
mod link;
mod meta;
mod names;
mod options;
mod publish;
mod replies;
mod setup;
mod snapshot;
mod source;
mod survey;

pub use self::binding::{BindError, Bound};
pub use self::board::NatsBoard;
pub use self::connect::{ConnectError, MINIMUM_SERVER, Nats};
pub use self::dispatch::NatsDispatch;
pub use self::names::{InvalidName, Name};
pub use self::options::{Credentials, NatsOptions, OptionsError, Secret, Tls};
pub use self::setup::SetupError;
pub use self::source::NatsSource;
pub use self::survey::{ConsumerState, Limits, StreamFound, Survey};
