//! Images of environments: names are passed to the cluster, build contexts go to a builder.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use rollout_base::supervise;
use rollout_environment::failed_builds::{FailedBuilds, ImageFailure};
use rollout_environment::image_reference::ImageReference;
use rollout_environment::single_flight::SingleFlight;
use rollout_environment::{
    BuildProxies, Failure, FailureKind, Image, ImageRequest, ImageSource, ProxyKey, compose,
};
use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::id::RunId;
use tokio::sync::oneshot;

use super::Shared;
use super::build::ImageBuilder;
use super::options::BuilderOptions;

/// Limit of remembered forced builds: a run builds each of its images once, not once per trial.
const FORCED_BUILDS: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// Builds in progress, and earlier ones that were forced or failed.
#[derive(Debug)]
pub(super) struct ImageBuilds {
    in_progress: SingleFlight<Result<Image, ImageFailure>>,
    /// References and runs.
    forced: Mutex<LruCache<(String, RunId), ()>>,
    failed: Arc<FailedBuilds>,
}

impl Default for ImageBuilds {
    fn default() -> Self {
        let forced = Mutex::new(LruCache::new(FORCED_BUILDS));
        Self { in_progress: SingleFlight::default(), forced, failed: Arc::default() }
    }
}

impl Shared {
    /// Makes an image present as far as that is this program's work: the cluster pulls images.
    pub(super) async fn prepare_image(
        self: &Arc<Self>,
        request: ImageRequest,
    ) -> Result<Image, Failure> {
        let cluster = Arc::clone(self.client.cluster().await?);
        let names_own = compose::names_own_image(&request.source).await;
        match request.source.clone() {
            ImageSource::Named(name) => {
                let reference: ImageReference = name.parse()?;
                Ok(Image::found(cluster.options.mirrored(reference.as_str())))
            }
            ImageSource::Context { digest, .. } if names_own => {
                Ok(Image::found(format!("{}{digest}", compose::SERVICES_REFERENCE_PREFIX)))
            }
            ImageSource::Context { digest, dir } => {
                let Some(options) = cluster.options.builder.clone() else {
                    let text = "a Dockerfile: the operator of the cluster's workers has not set \
                                `builder`, so only tasks with `docker_image` run";
                    return Err(Failure::new(FailureKind::Unsupported, text));
                };
                let digest = image_digest(digest, &request.proxies, &self.proxy_key);
                let builder = ImageBuilder {
                    shared: Arc::clone(self),
                    reference: reference(&options, &digest),
                    cluster,
                    options,
                    digest,
                    dir,
                    force: request.force_build.then_some(request.labels.run),
                    timeout: request.timeout,
                    proxies: request.proxies.clone(),
                    labels: request.labels.clone(),
                };
                self.prepare_built(builder, &request).await
            }
        }
    }

    async fn prepare_built(
        &self,
        mut builder: ImageBuilder,
        request: &ImageRequest,
    ) -> Result<Image, Failure> {
        let builds = &self.builds;
        let run = builder.labels.run;
        let attempt = (builder.reference.clone(), run);
        builder.force = builder.force.filter(|_| !builds.was_forced(&attempt));
        let forced = builder.force.map(|_| attempt.clone());
        let key = format!("{} for {run}, forced: {}", builder.reference, forced.is_some());
        let failed = Arc::clone(&builds.failed);
        let building = move || async move {
            if let Some(failure) = failed.get(&attempt) {
                return Err(failure);
            }
            let result = build_in_background(builder).await;
            failed.record(attempt, &result);
            result
        };
        let (built, started) = builds.in_progress.join(&key, building).await;
        match built {
            Ok(image) => {
                if let Some(key) = forced {
                    builds.forced.lock().unwrap_or_else(PoisonError::into_inner).put(key, ());
                }
                Ok(Image { made: image.made && started, ..image })
            }
            Err(failure) => Err(failure.into_failure(request.log.as_deref()).await),
        }
    }
}

impl ImageBuilds {
    fn was_forced(&self, key: &(String, RunId)) -> bool {
        self.forced.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }
}

/// Builds in a task of its own. When all callers are gone, the task ends the build and removes its
/// pod.
async fn build_in_background(builder: ImageBuilder) -> Result<Image, ImageFailure> {
    let (mut callers, built) = oneshot::channel();
    let shared = Arc::clone(&builder.shared);
    shared.tasks.track(supervise::spawn("kubernetes image build", async move {
        let result = Box::pin(builder.run(&mut callers)).await;
        // Without callers, the result is of no use.
        drop(callers.send(result));
    }));
    built.await.unwrap_or_else(|_| {
        Err(Failure::new(FailureKind::Bug, "the build of an image was interrupted").into())
    })
}

/// The digest of an image: of its context, and of the proxies of its build, if it has some. A proxy can
/// change what commands fetch, and they can write its password.
fn image_digest(context: Digest, proxies: &BuildProxies, key: &ProxyKey) -> Digest {
    let Some(proxies) = proxies.digest(key) else { return context };
    let mut hasher = DigestHasher::default();
    for part in
        [b"proxies".as_slice(), context.as_bytes().as_slice(), proxies.as_bytes().as_slice()]
    {
        hasher.update_part(part);
    }
    hasher.finish()
}

/// The name of a built image.
fn reference(options: &BuilderOptions, digest: &Digest) -> String {
    format!("{}/task:{}", options.registry.trim_end_matches('/'), digest.hex())
}

#[cfg(test)]
mod tests {
    use super::super::options::KubernetesOptions;
    use super::*;

    #[test]
    fn image_is_named_after_its_context() {
        let options = KubernetesOptions::parse("builder: {registry: r.local/x/}").expect("valid");
        let digest = Digest::sha256(b"context");
        let name = reference(&options.builder.expect("set"), &digest);
        assert_eq!(name, format!("r.local/x/task:{}", digest.hex()));
    }

    #[test]
    fn image_of_each_set_of_proxies_is_another_one() {
        let key = ProxyKey::default();
        let digest = |proxy: Option<&str>| {
            let env = proxy.map(|proxy| ("https_proxy".to_owned(), proxy.to_owned()));
            let proxies = BuildProxies::of(&env.into_iter().collect());
            image_digest(Digest::sha256(b"context"), &proxies, &key)
        };
        assert_eq!(digest(None), Digest::sha256(b"context"));
        let (one, other) = (digest(Some("http://p:1")), digest(Some("http://u:pw@p:1")));
        assert!(one != other && one != digest(None));
        assert_eq!(one, digest(Some("http://p:1")));
    }
}
