//! Agents at work in an environment, shared by trials, evals and commands that write ideas.
//!
//! * `model_calls`: the gateway of an execution, the clock of its agent, the records of its calls;
//! * `script`: a script or the loop of the agent `shell`, run to its end;
//! * `shell`: that loop;
//! * `limits`: what the agent, or a command of a search, is told of its limits;
//! * `command`: the agent of a command of a search;
//! * `install`: installation in the image, once for all executions of a host.

pub(in crate::work) mod command;
mod install;
mod limits;
mod model_calls;
mod script;
mod shell;

use std::collections::BTreeMap;

pub(in crate::work) use self::install::{AgentInstallation, install_in_image};
pub(in crate::work) use self::limits::ToldLimits;
pub(in crate::work) use self::model_calls::{
    CALLS_DIRECTORY, CallsRequest, ModelCalls, blame_server,
};
pub(in crate::work) use self::script::{
    PlannedScript, ScriptFailure, ScriptWork, place_limits, run_agent_script, run_script,
    run_to_end,
};
pub(in crate::work) use self::shell::{KeptSession, ShellAgent};

/// Variables by their names.
pub(in crate::work) type ScriptEnv = BTreeMap<String, String>;
