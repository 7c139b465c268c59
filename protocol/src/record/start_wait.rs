//! The wait for an environment between its start and its first command.

use serde::{Deserialize, Serialize};

/// A wait for programs that an environment runs by itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StartWait {
    /// What ended the wait.
    pub until: StartWaitEnd,
    /// Its length, seconds.
    pub waited_sec: f64,
    /// Processes of the environment's own programs at its end, if they were observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Sockets on which they listened, if they were observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
}

/// What ended the wait for an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartWaitEnd {
    /// The healthcheck of the task, the image or the compose file succeeded.
    Healthcheck,
    /// The time of `start_grace_sec` was over.
    Grace,
    /// No process of the environment's own programs ran.
    Idle,
    /// Processes and listening sockets no longer changed.
    Settled,
    /// They still changed at the end of the longest wait.
    Limit,
}
