//! Providers of environments in this build.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::secrets::TrialVariables;
use rollout_engine::RunError;
use rollout_environment::Provider;
use rollout_environment::descriptor::ProviderPaths;
use rollout_gateway::ModelGateway;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_store::BlobStore;
use rollout_worker::disk::{DiskUse, DiskWatch};
use rollout_worker::executor::{ExecutionServices, TaskFiles};
use rollout_worker::service::LocalRunner;
use rollout_worker::work::eval::Repositories;

use super::HostPaths;
use crate::providers;

/// Creates a provider; its sandboxes, if it has any, are in `sandboxes`.
///
/// # Errors
/// [`RunError::NotBuilt`].
pub fn provider(
    kind: ProviderKind,
    host: &HostPaths,
    sandboxes: &Path,
) -> Result<Arc<dyn Provider>, RunError> {
    let paths = ProviderPaths {
        image_locks: &host.image_locks,
        sandboxes,
        sandbox_helper: &host.sandbox_helper,
        kubernetes_config: host.operator.kubernetes_config.as_deref(),
        ca_bundle: host.operator.ca_bundle.as_ref(),
    };
    let built = providers::for_kind(kind).ok_or(RunError::NotBuilt(kind))?;
    Ok((built.make)(&paths))
}

/// How long the service of a provider may take to answer before a run starts.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the settings and the service of every provider before a run starts. A run waits for a
/// service that fails later, but not for one that was never there.
///
/// # Errors
/// [`RunError::ProviderSettings`], [`RunError::NoAnswer`], or [`RunError::NotBuilt`].
pub async fn check_services(
    kinds: impl IntoIterator<Item = ProviderKind>,
    host: &HostPaths,
    sandboxes: &Path,
) -> Result<(), RunError> {
    for kind in kinds {
        let provider = provider(kind, host, sandboxes)?;
        let checked = provider.check_settings();
        checked.map_err(|failure| RunError::ProviderSettings(failure.chain()))?;
        let Some(service) = provider.dependency() else { continue };
        // Nothing is logged: the run has not started, and its error says the same.
        let answer = service.probe_once(ANSWER_TIMEOUT).await;
        answer.map_err(|reason| RunError::NoAnswer { kind, reason })?;
    }
    Ok(())
}

/// The providers that can be asked for leftovers: all but those whose service does not answer. That
/// is no fault of work that does not use it, so nothing is logged.
pub async fn answering(providers: Vec<Arc<dyn Provider>>) -> Vec<Arc<dyn Provider>> {
    let mut found = Vec::with_capacity(providers.len());
    for provider in providers {
        let answers = match provider.dependency() {
            Some(service) => service.probe_once(ANSWER_TIMEOUT).await.is_ok(),
            None => true,
        };
        if answers {
            found.push(provider);
        }
    }
    found
}

/// The disks that executions and their outputs use.
fn disks(
    worker_dir: &Path,
    store: &dyn BlobStore,
    providers: &BTreeMap<ProviderKind, Arc<dyn Provider>>,
) -> DiskWatch {
    let own = (worker_dir.to_owned(), DiskUse::Own);
    let store = store.directory().map(|path| (path.to_owned(), DiskUse::Work));
    let temporary = (std::env::temp_dir(), DiskUse::Temporary);
    let paths = [own].into_iter().chain(store).chain([temporary]);
    DiskWatch::new(paths, providers.values().cloned())
}

/// The model gateway of a worker, if this build has one.
fn model_gateway() -> Option<Arc<dyn ModelGateway>> {
    #[cfg(feature = "gateway")]
    let gateway: Option<Arc<dyn ModelGateway>> =
        Some(Arc::new(rollout_gateway::proxy::Gateway::new()));
    #[cfg(not(feature = "gateway"))]
    let gateway = None;
    gateway
}

/// Maximum size of a worker's repository cache, bytes.
const REPOSITORY_BYTES: u64 = 16 * 1024 * 1024 * 1024;

/// The runner of a worker's executions, with its caches below the worker's directory.
///
/// # Errors
/// [`RunError::File`].
pub fn runner(
    providers: BTreeMap<ProviderKind, Arc<dyn Provider>>,
    worker_dir: &Path,
    store: Arc<dyn BlobStore>,
    variables: TrialVariables,
    host: String,
) -> Result<LocalRunner, RunError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| RunError::File { action: "create", path, source }
    };
    let cache = worker_dir.join("cache");
    let files = TaskFiles::open(&cache, Arc::clone(&store)).map_err(failed(&cache))?;
    let home = worker_dir.join("repositories");
    let disks = Arc::new(disks(worker_dir, store.as_ref(), &providers));
    let repositories = Repositories::open(&home, store, REPOSITORY_BYTES).map_err(failed(&home))?;
    let gateway = model_gateway();
    let services = ExecutionServices { providers, files, variables, gateway, disks, host };
    Ok(LocalRunner { services, repositories })
}
