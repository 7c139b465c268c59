//! A farm in this process: its run, and the session of its users.

mod engine;
mod model_calls;
#[cfg(feature = "nats")]
mod remote;
mod request;
mod session;
#[cfg(test)]
mod tests;

pub use request::FarmRequest;
pub use session::{FarmOutcome, FarmSession, SubmitError};
