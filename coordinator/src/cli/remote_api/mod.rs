//! Runs on a server of `rollout serve`: submission of a job with its datasets, and commands on the URL
//! of a run.

mod client;
mod commands;
mod export;
mod follow;
mod submit;

pub(super) use self::client::{ApiServerClient, RunUrl, is_api_url};
pub(super) use self::commands::{cancel, logs, status};
pub(super) use self::export::export;
pub(super) use self::submit::run;
