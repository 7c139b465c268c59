//! First arguments of the program under test for commands that `rollout` does not have.

/// A worker that runs a script in a sandbox and waits to be killed: `BASE SCRIPT`.
pub const SANDBOX_WORKER: &str = "__sandbox-worker";

/// A process that reads a deep tree from a sandbox with few free file descriptors: `BASE`.
pub const STARVED_READER: &str = "__starved-reader";

/// A trainer with a farm in its process: `PROJECT PROGRAM GROUPS`.
pub const FARM_TRAINER: &str = "__farm-trainer";

/// The benchmark of runs over a NATS server, with its options.
pub const QUEUE_OVERHEAD: &str = "__queue-overhead";

/// A disk that can lose its power, for [`crate::power_disk`].
pub const POWER_DISK: &str = "__power-disk";
