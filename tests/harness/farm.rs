//! Farms under test: a job whose samples run in process sandboxes, and the request to open its farm.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use rollout_base::traces::Tracer;
use rollout_coordinator::config::JobOptions;
use rollout_coordinator::launch::farm::FarmRequest;
use rollout_coordinator::launch::host::{HostPaths, OperatorOptions, SANDBOX_COMMAND};
use rollout_coordinator::launch::nats::RemoteOptions;
use rollout_coordinator::plan::{self, PreparedJob};
use rollout_engine::LockWaitPolicy;
use rollout_protocol::farm::FarmSettings;
use rollout_queue::nats::NatsOptions;
use rollout_store::StoreUrl;

use crate::project::Project;

/// Name of the farm.
pub const FARM: &str = "farm";

/// Writes a job with one agent, which runs this script, and one task, `tasks/t`, whose reward is 1 if
/// there is an answer.
#[must_use]
pub fn write_job(project: Project, execute: &str) -> Project {
    let jobs = project.path().join("jobs");
    let execute = serde_json::to_string(execute).expect("a text has a JSON form");
    let job = format!(
        "name: {FARM}\njobs_dir: {}\nn_concurrent_trials: 4\n\
         environment: {{type: process, provider_config: {{ignore_dockerfile: true}}}}\n\
         agents:\n- name: policy\n  execute: {execute}\n\
         datasets: [{{path: tasks}}]\n",
        jobs.display()
    );
    project
        .write("job.yaml", &job)
        .write("tasks/t/task.toml", "version = '1.0'\n")
        .write("tasks/t/instruction.md", "Write the answer.\n")
        .write("tasks/t/environment/Dockerfile", "FROM debian:bookworm-slim\n")
        .write(
            "tasks/t/tests/test.sh",
            "test -s answer.txt; echo $((1 - $?)) >/logs/verifier/reward.txt\n",
        )
}

fn remote((url, lease): (&str, Duration)) -> RemoteOptions {
    let mut options = NatsOptions::parse(url).expect("an address");
    options.lease = lease;
    RemoteOptions {
        options,
        pool: "default".parse().expect("a name"),
        unplaceable_timeout: Some(Duration::from_secs(60)),
        hand_over: false,
    }
}

/// The request to open the farm of the project in this directory, with samples in this process or on
/// workers of the server with this address and lease. `program` is the program under test, which
/// supervises sandboxes.
///
/// # Panics
/// When the job or the address is invalid.
pub fn request(project: &Path, program: &str, server: Option<(&str, Duration)>) -> FarmRequest {
    let is_set = |_: &str| false;
    let read = plan::read(Some(&project.join("job.yaml")), &JobOptions::for_command_line(&is_set));
    let PreparedJob { job, datasets, .. } = read.unwrap_or_else(|errors| panic!("{errors}"));
    FarmRequest {
        settings: FarmSettings::new(FARM),
        job,
        datasets,
        store: Some(StoreUrl::from(project.join("store"))),
        store_cache_mb: 0,
        wait_policy: LockWaitPolicy::default(),
        remote: server.map(remote),
        host: Some(HostPaths {
            image_locks: project.join("locks"),
            sandbox_helper: vec![program.into(), OsString::from(SANDBOX_COMMAND)],
            operator: OperatorOptions::default(),
        }),
        operator: OperatorOptions::default(),
        tracer: Tracer::default(),
        slots: None,
    }
}
