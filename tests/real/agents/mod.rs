//! Agents of the catalogue and the agent `shell`: each solves a task with a scripted model, whose calls
//! go through the gateway.

mod budget;
mod fixture;
mod networks;
mod outages;
mod programs;
mod shell;
mod task_tools;
mod trajectories;

use std::time::Duration;

/// Longest duration of a run of the agent `shell`, on a busy machine with two processors.
const DEADLINE: Duration = Duration::from_secs(240);

/// Longest duration of a run that installs an agent.
const INSTALL_DEADLINE: Duration = Duration::from_secs(1500);
