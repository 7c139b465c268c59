//! Ideas: a command that writes them for one node of a search.
//!
//! [`run`] makes one execution of an [`IdeasSpec`]:
//!
//! ```text
//! mirror -> checkout, earlier ideas, files that describe the node -> environment -> command
//!   -> all processes are killed -> /ideas and /logs are read -> environment removed
//! ```
//!
//! Regular files directly below `/ideas` are ideas, unless
//! [`invalid_idea_reason`](rollout_protocol::spec::ideas::invalid_idea_reason) gives a reason.
//! Everything else there is left out, and the record states why. The result is a
//! [`Finished`](crate::executor::Finished); its files are in the scratch directory of the
//! execution. A command finds its inputs by the variables of [`variables`].

mod agent;
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
    /// Permits for the command.
    pub permits: Arc<dyn StagePermits>,
}
