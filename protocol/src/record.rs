//! What happened to an execution.
