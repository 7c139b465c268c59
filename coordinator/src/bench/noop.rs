//! Trials that do nothing: their plan, run, outputs and runner.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rollout_base::secrets::TrialVariables;
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_engine::{LockOptions, RunError, RunOpenOptions};
use rollout_environment::null::NullProvider;
use rollout_protocol::blob::MediaType;
use rollout_protocol::record::TrialRecord;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_store::BlobStore;
use rollout_worker::executor::{ExecutionServices, Finished, TaskFiles};
use rollout_worker::service::Runner;
use rollout_worker::work::trial::{self, TrialContext};

use super::DispatchBenchError;
use crate::events::{JobFacts, MaterializeMode, never_stopped};
use crate::plan::{self, JobPlan};
use crate::results::metrics::AgentTotal;

/// The provider that the trials ask for.
pub const PROVIDER: ProviderKind = ProviderKind::Process;

/// The plan of trials that do nothing, its documents stored.
///
/// # Errors
/// [`DispatchBenchError`]: the plan or the store.
pub async fn plan(items: u32, store: &dyn BlobStore) -> Result<JobPlan, DispatchBenchError> {
    let (plan, documents) = plan::noop(items)?;
    for document in documents {
        store.put_bytes(document, MediaType::Json).await?;
    }
    Ok(plan)
}

/// A run of the plan in a directory.
pub fn run_open_options(layout: RunLayout, plan: &JobPlan, window: u32) -> RunOpenOptions {
    RunOpenOptions {
        layout,
        job: "bench".to_owned(),
        plan: plan.digest(),
        permits: window as usize,
        retry: RetryPolicy::default(),
        lock: LockOptions::default(),
        timeouts: RemoteTimeouts::default(),
        budget: RunBudget::default(),
        reopen: None,
    }
}

/// The facts of the run for its outputs.
pub fn facts(run_dir: PathBuf, items: u32, materialize: MaterializeMode) -> JobFacts {
    JobFacts {
        run_dir,
        agents: vec![AgentTotal { name: "nop".to_owned(), total: u64::from(items) }],
        metrics: Vec::new(),
        guardrails: Vec::new(),
        materialize,
        config: serde_json::Value::Null,
        store: None,
        datasets: Vec::new(),
        tasks: Arc::default(),
        invocation: None,
        stopped_at_once: never_stopped(),
    }
}

/// The runner of the trials, for a worker in `dir`.
///
/// # Errors
/// [`RunError::File`]: the cache of task files cannot be created.
pub fn runner(dir: &Path, store: Arc<dyn BlobStore>) -> Result<Arc<dyn Runner>, RunError> {
    let cache = dir.join("cache");
    let files = TaskFiles::open(&cache, store).map_err(|source| RunError::File {
        action: "create",
        path: cache,
        source,
    })?;
    Ok(Arc::new(NullRunner(ExecutionServices {
        providers: BTreeMap::from([(PROVIDER, Arc::new(NullProvider(PROVIDER)) as _)]),
        files,
        variables: TrialVariables::default(),
        gateway: None,
        disks: Arc::default(),
        host: "bench".to_owned(),
    })))
}

#[derive(Debug)]
struct NullRunner(ExecutionServices);

#[async_trait]
impl Runner for NullRunner {
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord> {
        trial::run(context, &self.0).await
    }
}
