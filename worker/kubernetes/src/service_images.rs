//! The plan of an environment with services, and the images of all of them.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise;
use rollout_environment::build_context::{self, ContextKind};
use rollout_environment::dockerignore::Dockerignore;
use rollout_environment::{
    BuildProxies, CreateRequest, Failure, FailureKind, ImageRequest, ImageSource,
};
use rollout_protocol::digest::{Digest, DigestHasher};

use super::Shared;
use super::cluster::Cluster;
use super::options::KubernetesOptions;
use super::services::{self, ServiceImage, ServiceSetup, ServiceShares, ServicesPlan};
use super::settings::PodSettings;

/// Timeout for the builds of all services of an environment.
pub(super) const IMAGES_WITHIN: Duration = Duration::from_secs(480);

/// Services whose images are known.
#[derive(Debug)]
pub(super) struct PreparedServices {
    pub(super) plan: ServicesPlan,
    shares: ServiceShares,
    images: BTreeMap<String, String>,
}

impl PreparedServices {
    /// As inputs of a pod.
    pub(super) fn setup<'a>(
        &'a self,
        settings: &'a PodSettings,
        options: &'a KubernetesOptions,
    ) -> ServiceSetup<'a> {
        let Self { plan, shares, images } = self;
        ServiceSetup { plan, shares, images, settings, options }
    }
}

impl Shared {
    /// Reads the compose file of a request, if it has one, and makes the images present.
    pub(super) async fn prepare_services(
        self: &Arc<Self>,
        cluster: &Cluster,
        request: &CreateRequest,
    ) -> Result<Option<PreparedServices>, Failure> {
        let Some(file) = request.compose.clone() else { return Ok(None) };
        let (asked, may_show) = (request.clone(), cluster.options.trial_variables_in_manifests);
        let name = file.name();
        let plan = supervise::blocking(move || services::plan(&asked, &file, may_show)).await?;
        let shares = ServiceShares::divide(&plan, &request.resources);
        let shares = shares.map_err(|why| {
            Failure::new(FailureKind::Unsupported, format!("{name}: `services`: {why}"))
        })?;
        let naming = self.name_images(cluster, request, &name, &plan);
        let images = tokio::time::timeout(IMAGES_WITHIN, naming).await.unwrap_or_else(|_| {
            let text = format!("{name}: the images of services took longer than {IMAGES_WITHIN:?}");
            Err(Failure::new(FailureKind::TimedOut, text))
        })?;
        Ok(Some(PreparedServices { plan, shares, images }))
    }

    /// The image of each service, which is built if need be.
    async fn name_images(
        self: &Arc<Self>,
        cluster: &Cluster,
        request: &CreateRequest,
        name: &str,
        plan: &ServicesPlan,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut images = BTreeMap::new();
        for service in [&plan.main].into_iter().chain(&plan.others) {
            let image = match &service.image {
                ServiceImage::Prepared => request.image.reference.clone(),
                ServiceImage::Named(name) => cluster.options.mirrored(name),
                ServiceImage::Built(_) if cluster.options.builder.is_none() => {
                    let text = format!(
                        "{name}: `services.{}.build`: the operator of the cluster's workers has not \
                         set `builder`",
                        service.name
                    );
                    return Err(Failure::new(FailureKind::Unsupported, text));
                }
                ServiceImage::Built(dir) => {
                    self.build_service(request, dir.clone()).await.map_err(|mut failure| {
                        let service = &service.name;
                        failure.message =
                            format!("the image of service `{service}`: {}", failure.message);
                        failure
                    })?
                }
            };
            images.insert(service.name.clone(), image);
        }
        Ok(images)
    }

    async fn build_service(
        self: &Arc<Self>,
        request: &CreateRequest,
        dir: PathBuf,
    ) -> Result<String, Failure> {
        let context = dir.clone();
        let digest = supervise::blocking(move || content_digest(&context)).await;
        let digest = digest.map_err(|error| {
            let text = "cannot read the build context of a service";
            Failure::new(FailureKind::Refused, text).with_source(error)
        })?;
        let building = self.prepare_image(ImageRequest {
            source: ImageSource::Context { digest, dir },
            force_build: false,
            timeout: IMAGES_WITHIN,
            log: None,
            proxies: BuildProxies::of(&request.env),
            settings: request.settings.clone(),
            labels: request.labels.clone(),
        });
        Ok(Box::pin(building).await?.reference)
    }
}

/// The digest of everything in a build context.
fn content_digest(dir: &Path) -> io::Result<Digest> {
    let mut digest = DigestHasher::default();
    let mut buffer = vec![0; 64 * 1024];
    for entry in build_context::list(dir, &Dockerignore::default(), &[])? {
        digest.update(entry.path.as_bytes());
        match entry.kind {
            ContextKind::Dir => digest.update(b"\0d\0"),
            ContextKind::Link { target } => {
                digest.update(b"\0l");
                digest.update(target.as_os_str().as_encoded_bytes());
                digest.update(b"\0");
            }
            ContextKind::File { executable } => {
                let mut file = std::fs::File::open(dir.join(&entry.path))?;
                let size = file.metadata()?.len();
                let mode = if executable { 'x' } else { '-' };
                digest.update(format!("\0f{mode}{size}\0").as_bytes());
                loop {
                    let read = file.read(&mut buffer)?;
                    if read == 0 {
                        break;
                    }
                    digest.update(&buffer[..read]);
                }
            }
        }
    }
    Ok(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_context_changes_with_content_and_names() {
        let digest = |files: &[(&str, &str)]| {
            let dir = tempfile::tempdir().expect("a directory");
            for (name, text) in files {
                std::fs::write(dir.path().join(name), text).expect("written");
            }
            content_digest(dir.path()).expect("a digest")
        };
        let first = digest(&[("Dockerfile", "FROM x"), ("a", "1")]);
        assert_eq!(first, digest(&[("a", "1"), ("Dockerfile", "FROM x")]));
        assert_ne!(first, digest(&[("Dockerfile", "FROM x"), ("a", "2")]));
        assert_ne!(first, digest(&[("Dockerfile", "FROM x"), ("b", "1")]));
    }
}
