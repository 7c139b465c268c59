//! Base image digests chosen by a run, as documents in its blob store. The first worker that asks a
//! registry decides for all workers.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_base::backoff::error_chain;
use rollout_environment::{BaseDigests, Failure, FailureKind};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_store::{BlobStore, StoreError};

/// The digests of one run.
#[derive(Debug)]
pub(super) struct RunBaseDigests {
    store: Arc<dyn BlobStore>,
    run: RunId,
}

impl RunBaseDigests {
    pub(super) fn new(store: Arc<dyn BlobStore>, run: RunId) -> Self {
        Self { store, run }
    }

    /// The path of the document for an image.
    fn path(&self, image: &str) -> String {
        format!("bases/{}/{}", self.run, Digest::sha256(image.as_bytes()).hex())
    }
}

fn store_failure(image: &str, error: &StoreError) -> Failure {
    let text = format!("cannot store or read the digest of image {image}: {}", error_chain(error));
    Failure::new(FailureKind::Unreachable, text)
}

#[async_trait]
impl BaseDigests for RunBaseDigests {
    async fn chosen_digest(&self, image: &str) -> Result<Option<String>, Failure> {
        let found = self.store.get_document(&self.path(image)).await;
        let found = found.map_err(|error| store_failure(image, &error))?;
        Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    async fn choose_digest(&self, image: &str, digest: String) -> Result<String, Failure> {
        let put = self.store.put_document(&self.path(image), Bytes::from(digest.clone())).await;
        if put.map_err(|error| store_failure(image, &error))? {
            return Ok(digest);
        }
        Ok(self.chosen_digest(image).await?.unwrap_or(digest))
    }
}

#[cfg(test)]
mod tests {
    use rollout_store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn base_image_digest_first_settled_stays_for_run() {
        let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::default());
        let of = |run: u8| RunBaseDigests::new(Arc::clone(&store), RunId::from_bytes([run; 16]));
        let image = "registry:5000/a/b:c";
        assert_eq!(of(1).chosen_digest(image).await.expect("readable"), None);
        for digest in ["sha256:1", "sha256:2"] {
            assert_eq!(
                of(1).choose_digest(image, digest.to_owned()).await.expect("chosen"),
                "sha256:1"
            );
        }
        assert_eq!(
            of(1).chosen_digest(image).await.expect("readable").as_deref(),
            Some("sha256:1")
        );
        assert_eq!(
            of(2).choose_digest(image, "sha256:2".to_owned()).await.expect("chosen"),
            "sha256:2"
        );
    }
}
