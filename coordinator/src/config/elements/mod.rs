//! Elements of the file formats, one file each: keys, checks and result types.

mod agent_model;
mod agent_source;
pub(crate) mod agent_tasks;
pub(super) mod agents;
pub(super) mod artifacts;
pub(super) mod budget;
pub(super) mod built_in;
pub(super) mod compose_overlays;
pub(super) mod datasets;
pub(super) mod environment;
pub(super) mod extra_instructions;
pub(super) mod gateway;
pub(super) mod guardrails;
pub(super) mod harness;
mod mcp_secrets;
pub(super) mod metrics;
pub(super) mod names;
pub(super) mod proxies;
pub(super) mod resources;
pub(super) mod retry;
mod session;
pub(super) mod step_agent;
mod task_patterns;
pub(super) mod timeouts;
pub(crate) mod units;
pub(super) mod variables;
pub(super) mod verifier;

#[cfg(test)]
mod testing;
