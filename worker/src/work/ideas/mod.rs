//! Ideas: a command that writes them for one node of a search.
//!
//! [`run`] makes one execution of an [`IdeasSpec`]:
//!
//! ```text
//! mirror -> checkout, earlier ideas, files that describe the node -> environment -> command
//!   -> every process is ended -> /ideas and /logs are read -> environment gone
//! ```
//!
//! Regular files directly below `/ideas` are ideas, as
//! [`fault_of_idea`](rollout_protocol::spec::ideas::fault_of_idea) defines them. Everything else there
//! is left out, and the record says why. The answer is a [`Finished`](crate::executor::Finished);
//! the scratch directory of the execution has its files. A command finds its inputs by the variables of [`variables`].

mod collect;
mod failure;
mod record;
mod run;
mod setup;
#[cfg(test)]
mod tests;
pub mod variables;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::digest::Digest;
use rollout_protocol::spec::ideas::IdeasSpec;
use rollout_protocol::wire::control::StopLevel;
use tokio::sync::watch;

use super::eval::Tickets;
use crate::environment::Labels;
use crate::executor::{PhaseSink, Slot};

pub use self::run::run;

/// The inputs of one execution.
#[derive(Debug, Clone)]
pub struct IdeasContext {
    /// Identity of the execution.
    pub labels: Labels,
    /// Digest of the spec.
    pub spec: Digest,
    /// The command and its inputs.
    pub ideas: Arc<IdeasSpec>,
    /// A directory of this execution alone, which does not exist yet.
    pub scratch: PathBuf,
    /// Whether and how hard to stop.
    pub stop: watch::Receiver<Option<StopLevel>>,
    /// Told of every phase that begins.
    pub phases: Arc<dyn PhaseSink>,
    /// Asked before the command.
    pub tickets: Arc<dyn Tickets>,
    /// The slot that it occupies.
    pub slot: Arc<dyn Slot>,
    /// Longest time in which it waits for a service that gives no answer; zero does not wait.
    pub max_park: Duration,
}
