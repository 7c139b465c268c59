//! What shall run: fully resolved, immutable, named by digest. Nothing here is as the user wrote
//! it; the coordinator's configuration passes make these from job and task files.

pub mod agent;
pub mod environment;
pub mod eval;
pub mod ideas;
pub mod metric;
pub mod resources;
pub mod settings;
pub mod task;
pub mod timeout;
pub mod trial;
