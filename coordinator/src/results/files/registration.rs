//! Registration of a run in its blob store, repeated until it succeeds.
//!
//! The collection of unneeded blobs removes those of a run that the store does not know. A starting
//! run therefore waits a while for its registration. It continues without one while the store does
//! not answer, and a run that ends without one fails.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollout_base::backoff::{OutageLog, error_chain};
use rollout_base::supervise::{self, Task};
use rollout_store::{BlobStore, StoreError};
use tokio_util::bytes::Bytes;

/// How long the start of a run waits: as long as a service takes to restart.
const START_WAIT: Duration = Duration::from_secs(30);

/// How long the end of a run waits. The store was in use until then: workers kept the results in it.
const END_WAIT: Duration = Duration::from_secs(120);

/// The run is not registered in its blob store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot register the run in its blob store, so that a collection of unneeded blobs may remove \
     its blobs: {reason}"
)]
pub struct RegistrationError {
    /// The last error of the store.
    reason: String,
}

/// A registration in progress. Dropped, it ends.
#[derive(Debug)]
pub struct Registration {
    state: RegistrationState,
    last_error: Arc<Mutex<String>>,
}

#[derive(Debug)]
enum RegistrationState {
    Running(Task<Result<(), StoreError>>),
    Done,
    Failed,
}

impl Registration {
    /// Writes the document at `path`. Returns when that is done, cannot be done, or has taken
    /// [`START_WAIT`]; then it goes on.
    pub(super) async fn start(store: Arc<dyn BlobStore>, path: String, text: Bytes) -> Self {
        let last_error = Arc::<Mutex<String>>::default();
        let noted = Arc::clone(&last_error);
        let task = supervise::spawn("registration", register(store, path, text, noted));
        let mut registration = Self { state: RegistrationState::Running(task), last_error };
        registration.wait(START_WAIT).await;
        registration
    }

    /// Waits for the registration, for at most two minutes.
    ///
    /// # Errors
    /// [`RegistrationError`].
    pub async fn finish(mut self) -> Result<(), RegistrationError> {
        self.wait(END_WAIT).await;
        match self.state {
            RegistrationState::Done => Ok(()),
            RegistrationState::Running(_) | RegistrationState::Failed => {
                let reason = lock(&self.last_error).clone();
                Err(RegistrationError { reason })
            }
        }
    }

    async fn wait(&mut self, most: Duration) {
        let RegistrationState::Running(task) = &mut self.state else { return };
        let Ok(ended) = tokio::time::timeout(most, task).await else { return };
        self.state = match ended {
            Ok(Ok(())) => RegistrationState::Done,
            Ok(Err(_)) => RegistrationState::Failed,
            Err(panic) => {
                *lock(&self.last_error) = panic.to_string();
                RegistrationState::Failed
            }
        };
    }
}

async fn register(
    store: Arc<dyn BlobStore>,
    path: String,
    text: Bytes,
    last_error: Arc<Mutex<String>>,
) -> Result<(), StoreError> {
    let outage = OutageLog::new("registering the run in its blob store");
    let mut backoff = outage.backoff();
    loop {
        match store.put_document(&path, text.clone()).await {
            Ok(_created) => {
                backoff.succeeded();
                return Ok(());
            }
            Err(error) => {
                *lock(&last_error) = error_chain(&error);
                if !error.is_transient() {
                    return Err(error);
                }
                backoff.wait_after_failure(&error).await;
            }
        }
    }
}

fn lock(text: &Mutex<String>) -> std::sync::MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use rollout_store::testing::{FaultyStore, StoreCall, StoreFault};

    use super::*;

    async fn start(store: &Arc<FaultyStore>) -> Registration {
        let store = Arc::clone(store) as Arc<dyn BlobStore>;
        Registration::start(store, "runs/a/b".to_owned(), "text".into()).await
    }

    fn documents(store: &FaultyStore) -> Vec<String> {
        store.inner().document_paths()
    }

    #[tokio::test(start_paused = true)]
    async fn run_is_registered_when_store_answers_later() {
        let store = Arc::new(FaultyStore::default());
        store.set_down(true);
        let registration = start(&store).await;
        assert_eq!(documents(&store), [""; 0], "the run goes on");
        store.set_down(false);
        registration.finish().await.expect("registered");
        assert_eq!(documents(&store), ["runs/a/b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn run_starts_registered_when_store_answers() {
        let store = Arc::new(FaultyStore::default());
        store.inject(StoreCall::PutDocument, 1, StoreFault::Fail);
        let registration = start(&store).await;
        assert_eq!(documents(&store), ["runs/a/b"]);
        store.set_down(true);
        registration.finish().await.expect("it was registered before");
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_run_that_is_not_registered_is_error() {
        let store = Arc::new(FaultyStore::default());
        store.set_down(true);
        let error = start(&store).await.finish().await.expect_err("not registered");
        assert!(error.reason.contains("injected"), "{error}");
        let bad = Registration::start(store, "../x".to_owned(), "text".into()).await;
        assert!(bad.finish().await.is_err());
    }
}
