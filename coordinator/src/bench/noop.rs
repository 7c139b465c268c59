//! Trials that do nothing: their plan, what runs them, and the outputs that take them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_protocol::blob::MediaType;
use rollout_protocol::digest::Digest;
use rollout_protocol::record::TrialRecord;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentSpec};
use rollout_protocol::spec::environment::{
    EnvironmentSpec, PreservePolicy, ProcessSettings, ProviderKind, ProviderSpec, Rates,
};
use rollout_protocol::spec::settings::{TrialSettings, VerifierSettings};
use rollout_protocol::spec::task::TaskSpec;
use rollout_protocol::wire::offer::SizeClass;
use rollout_worker::executor::{Finished, TaskFiles, TrialServices};
use rollout_worker::secrets::TrialVariables;
use rollout_worker::service::Runner;
use rollout_worker::store::BlobStore;
use rollout_worker::work::trial::{self, TrialContext};
use serde::Serialize;

use super::BenchError;
use super::null::Null;
use crate::config::About;
use crate::engine::core::Bounds;
use crate::engine::journal::Layout;
use crate::engine::{Opening, RunError, Taking};
use crate::events::{Materialize, RunFacts};
use crate::plan::{JobPlan, PlannedTask};
use crate::results::metrics::AgentTotal;

/// The provider that the trials ask for.
pub(super) const KIND: ProviderKind = ProviderKind::Process;

/// One agent that does nothing, one task without files, as many attempts as there are items.
pub(crate) async fn plan(items: u32, store: &dyn BlobStore) -> Result<JobPlan, BenchError> {
    let settings = TrialSettings {
        instruction_path: "/tmp/instruction.md".to_owned(),
        environment: EnvironmentSpec {
            provider: ProviderSpec::Process(ProcessSettings::default()),
            force_build: false,
            preserve_env: PreservePolicy::Never,
            rates: Rates::default(),
        },
        verifier: VerifierSettings { disable: true, ..VerifierSettings::default() },
        artifacts: Vec::new(),
    };
    let agent = AgentSpec {
        name: "nop".to_owned(),
        kind: AgentKind::Nop,
        env: BTreeMap::new(),
        limits: AgentLimits::default(),
    };
    let task = TaskSpec::new("bench", "noop");
    put(store, &settings).await?;
    put(store, &agent).await?;
    let spec = put(store, &task).await?;
    let planned = PlannedTask {
        dataset: task.dataset,
        name: task.name,
        spec,
        git_commit_id: None,
        files: Digest::of(b""),
        rules: Digest::of(b""),
        class: SizeClass::default(),
        resources: task.environment.resources,
        variables: BTreeSet::new(),
        format: None,
        about: About::default(),
    };
    Ok(JobPlan::new(settings, vec![agent], vec![planned], items)?)
}

async fn put<T: Serialize + Sync>(
    store: &dyn BlobStore,
    document: &T,
) -> Result<Digest, BenchError> {
    let bytes = serde_json::to_vec(document).map_err(std::io::Error::from)?;
    Ok(store.put_bytes(Bytes::from(bytes), MediaType::Json).await?.digest)
}

/// A run of the plan in a directory.
pub(super) fn opening(layout: Layout, plan: &JobPlan, window: u32) -> Opening {
    Opening {
        layout,
        job: "bench".to_owned(),
        plan: plan.digest(),
        permits: window as usize,
        retry: RetryPolicy::default(),
        taking: Taking::default(),
        bounds: Bounds::default(),
        reopen: None,
    }
}

/// What the outputs know of the run.
pub(super) fn facts(run_dir: PathBuf, items: u32, materialize: Materialize) -> RunFacts {
    RunFacts {
        run_dir,
        agents: vec![AgentTotal { name: "nop".to_owned(), total: u64::from(items) }],
        metrics: Vec::new(),
        materialize,
        config: serde_json::Value::Null,
        blobs: None,
        datasets: Vec::new(),
        tasks: Arc::default(),
        invocation: None,
    }
}

/// What runs the trials, for a worker in `dir`.
pub(super) fn runner(dir: &Path, store: Arc<dyn BlobStore>) -> Result<Arc<dyn Runner>, RunError> {
    let cache = dir.join("cache");
    let files = TaskFiles::open(&cache, store).map_err(|source| RunError::File {
        action: "create",
        path: cache,
        source,
    })?;
    Ok(Arc::new(NullRunner(TrialServices {
        providers: BTreeMap::from([(KIND, Arc::new(Null(KIND)) as _)]),
        files,
        variables: TrialVariables::default(),
        disks: Arc::default(),
        host: "bench".to_owned(),
    })))
}

#[derive(Debug)]
struct NullRunner(TrialServices);

#[async_trait]
impl Runner for NullRunner {
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord> {
        trial::run(context, &self.0).await
    }
}
