//! Farms: open runs that a trainer asks for groups of samples.
//!
//! * `core`: all decisions about groups and samples; pure
//! * `planner`: the side towards the engine, which runs samples as items
//! * `handle`: the side towards trainers; `state`: what both share
//! * `model_calls`: the model calls of samples, which a pause keeps back
//! * `outcome`: settlements of items as results of samples
//! * `documents`: the tasks of a farm, and the documents that samples run under

pub mod core;
mod documents;
mod handle;
mod metadata_lengths;
mod model_calls;
mod outcome;
mod planner;
mod state;

pub use documents::{FarmDocuments, UnknownTask};
pub use handle::{CompletionPage, FarmEnded, FarmHandle};
pub use model_calls::{FarmCalls, SeenCalls};
pub use planner::FarmPlanner;
