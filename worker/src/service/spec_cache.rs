//! Cache of parsed specs of executions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use rollout_base::backoff::{OutageLog, error_chain};
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::limits;
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::eval::EvalSpec;
use rollout_protocol::spec::ideas::IdeasSpec;
use rollout_protocol::spec::settings::TrialSettings;
use rollout_protocol::spec::task::TaskSpec;
use rollout_protocol::spec::trial::TrialRef;
use rollout_store::{BlobStore, StoreError};
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

/// The specs of a trial.
#[derive(Debug, Clone)]
pub(super) struct TrialSpecs {
    pub(super) settings: Arc<TrialSettings>,
    pub(super) agent: Arc<AgentSpec>,
    pub(super) task: Arc<TaskSpec>,
}

#[derive(Debug)]
pub(super) struct SpecCache {
    store: Arc<dyn BlobStore>,
    settings: TypedSpecCache<TrialSettings>,
    agents: TypedSpecCache<AgentSpec>,
    tasks: TypedSpecCache<TaskSpec>,
    evals: TypedSpecCache<EvalSpec>,
    ideas: TypedSpecCache<IdeasSpec>,
}

impl SpecCache {
    pub(super) fn new(store: Arc<dyn BlobStore>) -> Self {
        Self {
            store,
            settings: TypedSpecCache::new(),
            agents: TypedSpecCache::new(),
            tasks: TypedSpecCache::new(),
            evals: TypedSpecCache::new(),
            ideas: TypedSpecCache::new(),
        }
    }

    /// The specs that a trial names, if all are in memory.
    pub(super) fn cached(&self, trial: &TrialRef) -> Option<TrialSpecs> {
        Some(TrialSpecs {
            settings: self.settings.cached(&trial.settings)?,
            agent: self.agents.cached(&trial.agent)?,
            task: self.tasks.cached(&trial.task)?,
        })
    }

    /// The specs that a trial names. Waits for as long as the store is down.
    ///
    /// # Errors
    /// The error to report when the store does not have them.
    pub(super) async fn get(
        &self,
        trial: &TrialRef,
        outage: &OutageLog,
    ) -> Result<TrialSpecs, TrialError> {
        let store = &*self.store;
        Ok(TrialSpecs {
            settings: self.settings.get(store, outage, trial.settings).await?,
            agent: self.agents.get(store, outage, trial.agent).await?,
            task: self.tasks.get(store, outage, trial.task).await?,
        })
    }

    /// The spec of an eval with this digest. Waits for as long as the store is down.
    ///
    /// # Errors
    /// The error to report when the store does not have it.
    pub(super) async fn eval(
        &self,
        spec: Digest,
        outage: &OutageLog,
    ) -> Result<Arc<EvalSpec>, TrialError> {
        self.evals.get(&*self.store, outage, spec).await
    }

    /// The spec of ideas with this digest. Waits for as long as the store is down.
    ///
    /// # Errors
    /// The error to report when the store does not have it.
    pub(super) async fn ideas(
        &self,
        spec: Digest,
        outage: &OutageLog,
    ) -> Result<Arc<IdeasSpec>, TrialError> {
        self.ideas.get(&*self.store, outage, spec).await
    }
}

/// Specs of one type; the least recently used are evicted first.
#[derive(Debug)]
struct TypedSpecCache<T>(Mutex<CachedSpecs<T>>);

#[derive(Debug)]
struct CachedSpecs<T> {
    specs: LruCache<Digest, CachedSpec<T>>,
    bytes: u64,
}

#[derive(Debug)]
struct CachedSpec<T> {
    spec: Arc<OnceCell<Arc<T>>>,
    /// Bytes of its text; 0 while it is being fetched.
    bytes: u64,
}

impl<T: DeserializeOwned> TypedSpecCache<T> {
    fn new() -> Self {
        Self(Mutex::new(CachedSpecs { specs: LruCache::unbounded(), bytes: 0 }))
    }

    fn cached(&self, digest: &Digest) -> Option<Arc<T>> {
        self.entries().specs.get(digest)?.spec.get().cloned()
    }

    /// The spec. Of concurrent calls, one fetches it.
    async fn get(
        &self,
        store: &dyn BlobStore,
        outage: &OutageLog,
        digest: Digest,
    ) -> Result<Arc<T>, TrialError> {
        let cell = {
            let mut entries = self.entries();
            let fresh = || CachedSpec { spec: Arc::default(), bytes: 0 };
            entries.specs.get_or_insert(digest, fresh).spec.clone()
        };
        let fetched = cell.get_or_try_init(async || {
            let (document, bytes) = fetch(store, outage, digest).await?;
            self.record_size(digest, bytes);
            Ok(Arc::new(document))
        });
        let fetched = fetched.await.cloned();
        if fetched.is_err() {
            let mut entries = self.entries();
            let forgotten = entries.specs.pop(&digest).map_or(0, |entry| entry.bytes);
            entries.bytes -= forgotten;
        }
        fetched
    }

    /// Records the size of a spec and evicts others beyond the limit.
    fn record_size(&self, digest: Digest, bytes: u64) {
        let mut entries = self.entries();
        let Some(entry) = entries.specs.get_mut(&digest) else { return };
        let former = std::mem::replace(&mut entry.bytes, bytes);
        entries.bytes = entries.bytes - former + bytes;
        while entries.bytes > limits::DOCUMENT_CACHE_BYTES
            && let Some((_, oldest)) = entries.specs.pop_lru()
        {
            entries.bytes -= oldest.bytes;
        }
    }

    fn entries(&self) -> MutexGuard<'_, CachedSpecs<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Advice for a spec with values that this worker does not know.
const NEWER_SPEC: &str = concat!(
    "; its coordinator is newer than this worker (version ",
    env!("CARGO_PKG_VERSION"),
    "): upgrade the worker",
);

async fn fetch<T: DeserializeOwned>(
    store: &dyn BlobStore,
    outage: &OutageLog,
    digest: Digest,
) -> Result<(T, u64), TrialError> {
    let mut backoff = outage.backoff();
    let bytes = loop {
        match store.get_bytes(&digest, limits::DOCUMENT_BYTES).await {
            Ok(bytes) => break bytes,
            Err(error) if error.is_transient() => backoff.wait_after_failure(&error).await,
            Err(error) => return Err(unreadable_error(&error)),
        }
    };
    backoff.succeeded();
    match serde_json::from_slice(&bytes) {
        Ok(document) => Ok((document, bytes.len() as u64)),
        Err(error) => Err(unreadable_error(&StoreError::Json {
            what: format!("{digest}, read as {}", std::any::type_name::<T>()),
            source: error,
        })),
    }
}

fn unreadable_error(error: &StoreError) -> TrialError {
    // Another worker may have access to a missing spec, and a newer one can read what this one does
    // not know: the digest of the content is right. No worker can read a damaged one.
    let (retry, advice) = match error {
        StoreError::Missing { .. } => (RetryClass::Transient, ""),
        StoreError::Json { .. } => (RetryClass::Transient, NEWER_SPEC),
        _ => (RetryClass::Permanent, ""),
    };
    TrialError::new(
        ErrorType::InternalError,
        ErrorCode::STORE_FAILED,
        ErrorClass::Infrastructure,
        retry,
        format!("cannot read the spec: {}{advice}", error_chain(error)),
    )
}

#[cfg(test)]
mod tests {
    use rollout_store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn spec_of_newer_version_is_left_to_other_workers_with_advice() {
        let store = MemoryStore::default();
        let digest = store.put_value(&serde_json::json!({"kind": "agent_of_newer_version"}));
        let outage = OutageLog::new("the blob store");
        let error = fetch::<AgentSpec>(&store, &outage, digest).await.map(drop);
        let error = error.expect_err("unreadable");
        assert_eq!(error.retry, RetryClass::Transient, "a newer worker can read it");
        assert!(error.message.ends_with("upgrade the worker"), "{}", error.message);
        let missing = fetch::<AgentSpec>(&store, &outage, Digest::sha256(b"missing")).await;
        let error = missing.map(drop).expect_err("missing");
        assert_eq!(error.retry, RetryClass::Transient, "it may be stored yet");
        assert!(!error.message.contains("upgrade"), "{}", error.message);
    }
}
