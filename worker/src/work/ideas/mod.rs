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

use std::sync::Arc;

use rollout_protocol::spec::ideas::IdeasSpec;

use super::eval::StagePermits;
use crate::executor::ExecutionContext;

pub use self::run::run;

/// The inputs of one execution.
#[derive(Debug, Clone)]
pub struct IdeasContext {
    /// The execution.
    pub execution: ExecutionContext,
    /// The command and its inputs.
    pub ideas: Arc<IdeasSpec>,
    /// Asked before the command.
    pub tickets: Arc<dyn StagePermits>,
}
