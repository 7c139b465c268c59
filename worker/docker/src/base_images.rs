//! Resolution of the base images of Dockerfiles. Each is looked up once per run and stays the same
//! for the whole run on every worker, even if its tag moves meanwhile.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bollard::models::ImageInspect;
use lru::LruCache;
use rollout_environment::dockerfile::{BaseImage, Dockerfile};
use rollout_environment::image_reference::ImageReference;
use rollout_environment::{BaseDigests, Failure};
use rollout_protocol::id::RunId;
use tokio::sync::OnceCell;

use super::build::BuildSpec;
use super::client::DockerClient;
use super::image::inspect;

/// Limit of remembered base images, over all runs.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// Limit of runs whose digests are remembered.
const RUNS: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");

/// Timeout of a registry lookup. Without an answer the local image is used.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Pause before a registry that did not resolve a base image is asked again.
const REGISTRY_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The resolved base image of a run, once it is known.
type ResolvedBaseCell = Arc<OnceCell<ResolvedBase>>;

/// The image that a base resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResolvedBase {
    /// The image with this digest in its registry.
    Digest(String),
    /// An image of this host that no registry knows, by its id.
    Local(String),
}

impl std::fmt::Display for ResolvedBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Digest(digest) => f.write_str(digest),
            Self::Local(id) => write!(f, "local:{id}"),
        }
    }
}

/// The base images of a build, each with its resolution if that is known.
pub(super) type ResolvedBases = Vec<(BaseImage, Option<ResolvedBase>)>;

/// Resolves the base images of all runs.
#[derive(Debug)]
pub(super) struct BaseImageResolver {
    client: Arc<DockerClient>,
    known: Mutex<LruCache<(RunId, String), ResolvedBaseCell>>,
    runs: Mutex<LruCache<RunId, Arc<dyn BaseDigests>>>,
    reported: Mutex<LruCache<(RunId, String), ()>>,
    silent: Mutex<LruCache<String, Instant>>,
}

impl BaseImageResolver {
    pub(super) fn new(client: Arc<DockerClient>) -> Self {
        let known = Mutex::new(LruCache::new(REMEMBERED));
        let reported = Mutex::new(LruCache::new(REMEMBERED));
        let silent = Mutex::new(LruCache::new(REMEMBERED));
        Self { client, known, runs: Mutex::new(LruCache::new(RUNS)), reported, silent }
    }

    /// Sets the store of a run's base image digests.
    pub(super) fn set_digests(&self, run: RunId, digests: Arc<dyn BaseDigests>) {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).put(run, digests);
    }

    /// Returns whether this is the first report about a base image in a run.
    pub(super) fn mark_reported(&self, run: RunId, image: &str) -> bool {
        let mut told = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        told.put((run, image.to_owned()), ()).is_none()
    }

    /// Resolves the base images of a build in a run.
    pub(super) async fn resolve(
        &self,
        run: RunId,
        images: Vec<BaseImage>,
    ) -> Result<ResolvedBases, Failure> {
        let mut found = Vec::new();
        for base in images {
            check_name(&base)?;
            if base.has_digest() {
                continue;
            }
            let known = self.resolve_image(run, &base.image).await?;
            found.push((base, known));
        }
        Ok(found)
    }

    async fn resolve_image(
        &self,
        run: RunId,
        image: &str,
    ) -> Result<Option<ResolvedBase>, Failure> {
        let is_silent = {
            let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
            silent.get(image).is_some_and(|since| since.elapsed() < REGISTRY_RETRY_INTERVAL)
        };
        let cell = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get_or_insert_mut((run, image.to_owned()), ResolvedBaseCell::default).clone()
        };
        // Without an answer the registry is asked again later.
        if let (None, true) = (cell.get(), is_silent) {
            return Ok(None);
        }
        match cell.get_or_try_init(|| self.look_up(run, image)).await {
            Ok(base) => Ok(Some(base.clone())),
            Err(Some(failure)) => Err(failure),
            Err(None) => {
                let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
                silent.put(image.to_owned(), Instant::now());
                Ok(None)
            }
        }
    }

    /// Looks up one image; the error is empty when the image cannot be resolved.
    async fn look_up(&self, run: RunId, image: &str) -> Result<ResolvedBase, Option<Failure>> {
        let local = inspect(&self.client, image).await?;
        let kept = self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&run).cloned();
        let digest = local.as_ref().and_then(|local| local_digest(local, image));
        if let (Some(local), None) = (&local, &digest) {
            tracing::info!(image, "no registry has the base image: using the local image");
            return local.id.clone().map(ResolvedBase::Local).ok_or(None);
        }
        if let Some(kept) = &kept
            && let Some(digest) = kept.chosen_digest(image).await?
        {
            return Ok(ResolvedBase::Digest(digest));
        }
        match self.ask_registry(image).await? {
            Ok(digest) => {
                let digest = match kept {
                    Some(kept) => kept.choose_digest(image, digest).await?,
                    None => digest,
                };
                Ok(ResolvedBase::Digest(digest))
            }
            Err(why) => {
                if digest.is_some() {
                    tracing::warn!(
                        image,
                        "cannot resolve the image in its registry ({why}): using the local image"
                    );
                }
                digest.map(ResolvedBase::Digest).ok_or(None)
            }
        }
    }

    /// The digest in the registry, or the reason why it is not known.
    async fn ask_registry(&self, image: &str) -> Result<Result<String, String>, Failure> {
        let reference: ImageReference = image.parse()?;
        let docker = self.client.docker().await?;
        let asked = docker.inspect_registry_image(reference.as_str(), None);
        Ok(match tokio::time::timeout(ANSWER_WITHIN, asked).await {
            Ok(Ok(found)) => found.descriptor.digest.ok_or_else(|| "no digest".to_owned()),
            Ok(Err(error)) => Err(self.client.failure("cannot ask the registry", error).message),
            Err(_) => Err(format!("no answer within {ANSWER_WITHIN:?}")),
        })
    }
}

/// Refuses a base image whose name engines do not take.
fn check_name(base: &BaseImage) -> Result<(), Failure> {
    let checked = base.image.parse::<ImageReference>().map(drop);
    checked.map_err(|error| {
        let mut failure = Failure::from(error);
        failure.message = format!("line {} of the Dockerfile: {}", base.line, failure.message);
        failure
    })
}

/// The text of a build's Dockerfile, if it can be read. Blocks.
pub(super) fn text(build: &BuildSpec) -> Option<String> {
    let text = std::fs::read(build.context.join(&build.dockerfile)).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The Dockerfile of a build, if it can be read. Blocks.
pub(super) fn dockerfile(build: &BuildSpec) -> Option<Dockerfile> {
    text(build).map(|text| Dockerfile::read(&text))
}

/// The base images of a build. A Dockerfile that cannot be read has none. Blocks.
pub(super) fn images(build: &BuildSpec) -> Vec<BaseImage> {
    dockerfile(build).map(|file| file.base_images(&build.args)).unwrap_or_default()
}

/// The digest of a local image in the repository of `name`. Other repositories may have it
/// too: it was pushed there, or pulled from there and tagged.
fn local_digest(image: &ImageInspect, name: &str) -> Option<String> {
    let digests = image.repo_digests.iter().flatten();
    let mut known = digests.filter_map(|known| known.split_once('@'));
    let known = known.find(|(known, _)| repository(known) == repository(name));
    known.map(|(_, digest)| digest.to_owned())
}

/// The repository of an image in the short form that engines use.
pub(super) fn repository(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    let last = image.rfind('/').map_or(0, |slash| slash + 1);
    let tag = image[last..].find(':').map_or(image.len(), |colon| last + colon);
    let name = &image[..tag];
    let hub = ["index.docker.io/", "docker.io/"].iter().find_map(|hub| name.strip_prefix(hub));
    hub.map_or(name, |name| name.strip_prefix("library/").unwrap_or(name))
}

/// The base images in the form of records.
pub(super) fn recorded(found: &ResolvedBases) -> BTreeMap<String, String> {
    let known = found.iter().filter_map(|(base, known)| Some((base, known.as_ref()?)));
    known.map(|(base, known)| (base.image.clone(), known.to_string())).collect()
}

/// The base images by digest, for the Dockerfile that is sent.
pub(super) fn by_digest(found: &ResolvedBases) -> Vec<(BaseImage, String)> {
    let digests = found.iter().filter_map(|(base, known)| match known {
        Some(ResolvedBase::Digest(digest)) => {
            Some((base.clone(), format!("{}@{digest}", base.image)))
        }
        _ => None,
    });
    digests.collect()
}

#[cfg(test)]
mod tests {
    use rollout_environment::FailureKind;

    use super::*;

    #[test]
    fn base_image_whose_name_is_no_reference_is_refused_with_its_line() {
        let checked = |image: &str| {
            let file = Dockerfile::read(&format!("FROM debian\nCOPY --from={image} /a /b\n"));
            let bases = file.base_images(&BTreeMap::new());
            bases.iter().try_for_each(check_name)
        };
        for image in ["debian:12", "localhost:5000/x", "h.example/a/b:1@sha256:00"] {
            assert!(checked(image).is_ok(), "{image}");
        }
        for image in ["a/../127.0.0.1:18901/y", "a/../../info#", "a?x=1"] {
            let refused = checked(image).expect_err(image);
            assert_eq!(refused.kind, FailureKind::Refused, "{image}");
            assert!(refused.message.starts_with("line 2 of the Dockerfile: "), "{refused:?}");
        }
    }

    #[test]
    fn base_image_digest_of_other_repository_is_ignored() {
        let digests = |known: &[&str]| ImageInspect {
            repo_digests: Some(known.iter().map(|&known| known.to_owned()).collect()),
            ..ImageInspect::default()
        };
        let pushed = digests(&["host:5000/base@sha256:11", "mirror.test/library/base@sha256:22"]);
        for (name, expected) in [
            ("base:1", None),
            ("docker.io/library/base", None),
            ("host:5000/base:2", Some("sha256:11")),
            ("host:5000/base", Some("sha256:11")),
            ("host:5001/base", None),
            ("mirror.test/library/base:1", Some("sha256:22")),
            ("mirror.test/base:1", None),
        ] {
            assert_eq!(local_digest(&pushed, name).as_deref(), expected, "{name}");
        }
        let pulled = digests(&["host:5000/base@sha256:11", "base@sha256:33"]);
        for name in ["base", "base:1", "docker.io/base:1", "index.docker.io/library/base:1"] {
            assert_eq!(local_digest(&pulled, name).as_deref(), Some("sha256:33"), "{name}");
        }
        assert_eq!(local_digest(&digests(&["some/base@sha256:44"]), "docker.io/base"), None);
        assert_eq!(local_digest(&ImageInspect::default(), "base"), None);
    }
}
