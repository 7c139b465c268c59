//! Runs on a server of `rollout serve`: options that have an effect there, submission of a job with its
//! datasets, lists, and commands on the URL of a run.

mod client;
mod commands;
mod export;
mod follow;
mod lists;
mod options;
mod submit;

pub(super) use self::client::{ApiServerClient, RunUrl, is_api_url};
pub(super) use self::commands::{cancel, logs, status};
pub(super) use self::export::export;
pub(super) use self::lists::{FarmUrl, ServerUrl, read};
pub(super) use self::options::check_options;
pub(super) use self::submit::{ServerSubmission, check_job, run};
