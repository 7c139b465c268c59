//! Runs on workers of other processes, over NATS.

mod error;
mod job;
mod retry;
mod server;

pub use error::ServerError;
use job::RemoteJob;
pub use server::{ConnectedServer, PreparedServer, RemoteOptions};
