//! Runs on workers of other processes, over NATS.

mod error;
pub mod job;
mod retry;
mod server;

pub use error::ServerError;
pub use job::RemoteJob;
pub use server::{ConnectedServer, PreparedServer, RemoteOptions};
