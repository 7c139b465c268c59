//! Executors under test: a job whose trials end, heed controls or wait for their cancellation, the
//! contract suite, and an executor that has references only.

pub mod contract;
pub mod mock;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::traces::Tracer;
use rollout_coordinator::config::JobOptions;
use rollout_coordinator::events::MaterializeMode;
use rollout_coordinator::launch::host::{HostPaths, OperatorOptions, SANDBOX_COMMAND};
use rollout_coordinator::launch::nats::RemoteOptions;
use rollout_coordinator::launch::run::{RunRequest, StopSource};
use rollout_coordinator::plan::{self, JobPlan, PreparedJob};
use rollout_coordinator::sources::datasets::BundleSink;
use rollout_engine::LockWaitPolicy;
use rollout_queue::nats::NatsOptions;
use rollout_store::{BlobStore, StoreUrl};
use serde_json::json;
use tokio::sync::mpsc;

use crate::project::Project;

/// A harness that runs steps until it reads `stop`, then writes its output and an answer.
pub const HEEDING: &str = r#"
ids=$(sed 's/.*"ids":\({[^}]*}\).*/\1/' "$ROLLOUT_TRIAL_INPUT")
seq=0 step=0 action=continue
emit() {
  printf '{"event_type":"%s","ts":"%s","seq":%d,"ids":%s,"step_index":%d%s}\n' \
    "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$seq" "$ids" "$step" "$2" >>"$ROLLOUT_EVENTS_PATH"
  seq=$((seq + 1))
}
while [ "$action" != stop ]; do
  emit agent_step_start
  sleep 0.2
  emit agent_step_end
  control=$(cat "$ROLLOUT_CONTROL_PATH"; echo x)
  version=$(printf %s "${control%x}" | sha256sum | cut -d' ' -f1)
  action=$(printf %s "$control" | sed -n 's/.*"action":"\([a-z]*\)".*/\1/p')
  emit control_ack ",\"control_version\":\"sha256:$version\",\"action_observed\":\"$action\""
  step=$((step + 1))
done
echo done >answer.txt
printf '{"schema_version":"trial_output_v1","ids":%s,"outcome":"success"}' "$ids" \
  >"$ROLLOUT_TRIAL_OUTPUT"
"#;

/// Name of the job of the contract suite.
pub const JOB: &str = "contract";

/// The agent that writes an answer and an artifact, and ends.
pub const WRITES: &str = "writes";
/// The agent with the harness [`HEEDING`].
pub const HEEDS: &str = "heeds";
/// The agent that waits until it is ended.
pub const WAITS: &str = "waits";

/// The text that [`WRITES`] keeps as an artifact.
pub const KEPT: &str = "kept\n";

/// Writes the job of the contract suite and its task.
#[must_use]
pub fn write_job(project: Project) -> Project {
    let heeding = json!(HEEDING);
    let jobs = project.path().join("jobs");
    let job = format!(
        "name: {JOB}\njobs_dir: {}\nn_concurrent_trials: 3\n\
         environment: {{type: process, provider_config: {{ignore_dockerfile: true}}}}\n\
         artifacts: [{{source: /kept.txt, type: workspace_diff}}]\n\
         agents:\n\
         - name: {WRITES}\n  execute: 'echo hello; echo done >answer.txt; echo kept >/kept.txt'\n\
         - name: {HEEDS}\n  harness:\n    command: {heeding}\n    integration_level: cli_events\n    \
           events_path: /logs/agent/e.jsonl\n\
         - name: {WAITS}\n  execute: sleep 86400\n\
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

/// The job of a project.
///
/// # Panics
/// When it is invalid.
pub fn prepare(project: &Project) -> PreparedJob {
    let is_set = |_: &str| false;
    let options = JobOptions::for_command_line(&is_set);
    let read = plan::read(Some(&project.path().join("job.yaml")), &options);
    read.unwrap_or_else(|errors| panic!("{errors}"))
}

/// The plan of a project's job, with its documents in `store`.
///
/// # Panics
/// When it cannot be made.
pub async fn plan(project: &Project, store: Arc<dyn BlobStore>) -> JobPlan {
    let PreparedJob { job, datasets, .. } = prepare(project);
    let scratch = tempfile::tempdir().expect("a directory");
    let sink = BundleSink {
        store: Some(store),
        scratch: scratch.path().to_owned(),
        holder: None,
        pack_cache: None,
    };
    plan::build(&job, datasets, &sink).await.expect("a plan").0
}

/// A request for a run of a project's job, in this process or on the server with this address.
/// `program` is the program under test.
///
/// # Panics
/// When the job or the address is invalid.
pub fn request(
    project: &Project,
    program: &str,
    store: &Path,
    server: Option<(&str, Duration)>,
) -> RunRequest {
    let PreparedJob { job, datasets, .. } = prepare(project);
    let remote = server.map(|(url, lease)| {
        let mut options = NatsOptions::parse(url).expect("an address");
        options.lease = lease;
        RemoteOptions {
            options,
            pool: "default".parse().expect("a name"),
            unplaceable_timeout: Some(Duration::from_secs(60)),
            hand_over: false,
        }
    });
    RunRequest {
        job,
        datasets,
        store: Some(StoreUrl::from(store.to_owned())),
        store_cache_mb: 0,
        materialize: Some(MaterializeMode::None),
        sink: None,
        invocation: None,
        sinks: Vec::new(),
        wait_policy: LockWaitPolicy::default(),
        reopen: None,
        accept_changed: false,
        remote,
        stops: StopSource::Channel(mpsc::channel(1).1),
        on_demand: None,
        tracer: Tracer::default(),
        slots: None,
        operator: OperatorOptions::default(),
        host: Some(HostPaths {
            image_locks: project.path().join("locks"),
            sandbox_helper: vec![program.into(), OsString::from(SANDBOX_COMMAND)],
            operator: OperatorOptions::default(),
        }),
    }
}
