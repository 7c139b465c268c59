//! Images: found, pulled or built, once for all concurrent requests.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bollard::models::{ImageInspect, ImageSummary};
use futures_util::StreamExt as _;
use lru::LruCache;
use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_environment::compose;
use rollout_environment::failed_builds::{FailedBuilds, ImageFailure};
use rollout_environment::image_reference::ImageReference;
use rollout_environment::single_flight::SingleFlight;
use rollout_environment::{
    BaseDigests, CaBundle, Failure, FailureKind, Image, ImageRequest, ImageSource, ProxyKey,
    registry_failure,
};
use rollout_protocol::digest::DigestHasher;
use rollout_protocol::id::RunId;
use rollout_protocol::record::ImageBuild;

use super::base_images::{self, BaseImageResolver};
use super::base_platform;
use super::base_triggers;
use super::build::{self, BuildSpec, FrontendSelector};
use super::client::DockerClient;
use super::failure::has_status;
use super::{labels, lock};

/// Version of how contexts become images. It is part of the tag, so that images built in another
/// way are not reused.
const BUILD_FORMAT: &str = "2";

/// Start of the tags of built images.
const BUILT_IMAGES: &str = "rollout/task:";

/// Limit of remembered forced builds, so that a run builds each of its images once and not once per
/// trial.
const FORCED_BUILDS: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// Pulls and builds images.
#[derive(Debug)]
pub(super) struct ImageManager {
    client: Arc<DockerClient>,
    locks: PathBuf,
    frontends: Arc<FrontendSelector>,
    ca_bundle: Option<CaBundle>,
    /// The key of the digests of proxies, beside the locks.
    proxy_key: Arc<ProxyKey>,
    bases: BaseImageResolver,
    in_progress: SingleFlight<Result<Option<ImageBuild>, ImageFailure>>,
    forced: Mutex<LruCache<(String, RunId), ()>>,
    failed: Arc<FailedBuilds>,
}

impl ImageManager {
    /// An image manager for the engine of `client`. Processes that share `locks` build an image
    /// once.
    pub(super) fn new(
        client: Arc<DockerClient>,
        locks: PathBuf,
        frontend: Option<String>,
        ca_bundle: Option<CaBundle>,
    ) -> Self {
        let frontends = Arc::new(FrontendSelector::new(frontend));
        let forced = Mutex::new(LruCache::new(FORCED_BUILDS));
        let in_progress = SingleFlight::default();
        let bases = BaseImageResolver::new(Arc::clone(&client));
        let proxy_key = Arc::new(ProxyKey::in_directory(&locks));
        Self {
            client,
            locks,
            frontends,
            ca_bundle,
            proxy_key,
            bases,
            in_progress,
            forced,
            failed: Arc::default(),
        }
    }

    /// See [`Provider::set_base_digests`](rollout_environment::Provider::set_base_digests).
    pub(super) fn set_base_digests(&self, run: RunId, digests: Arc<dyn BaseDigests>) {
        self.bases.set_digests(run, digests);
    }

    /// See [`Provider::prepare`](rollout_environment::Provider::prepare).
    pub(super) async fn prepare(
        &self,
        request: ImageRequest,
        platform: Option<String>,
    ) -> Result<Image, Failure> {
        let names_own = compose::names_own_image(&request.source).await;
        match &request.source {
            ImageSource::Named(name) => self.prepare_named(name.clone(), &request, platform).await,
            ImageSource::Context { digest, .. } if names_own => {
                Ok(Image::found(format!("{}{digest}", compose::SERVICES_REFERENCE_PREFIX)))
            }
            ImageSource::Context { digest, dir } => {
                let build = BuildSpec::plain(dir.clone(), *digest, platform);
                self.prepare_build(build, &request).await
            }
        }
    }

    async fn prepare_named(
        &self,
        name: String,
        request: &ImageRequest,
        platform: Option<String>,
    ) -> Result<Image, Failure> {
        if is_present(&self.client, &name, platform.as_deref()).await? {
            return Ok(Image::found(name));
        }
        let key = format!("pull {name} {platform:?}");
        let (client, timeout) = (Arc::clone(&self.client), request.timeout);
        let image = name.clone();
        let pull = || async move {
            let pulled = pull(&client, &image, platform.as_deref());
            match client.engine().within(timeout, pulled).await {
                Some(result) => result.map(|()| None).map_err(ImageFailure::from),
                None => Err(out_of_time(&format!("cannot pull {image}"), timeout).into()),
            }
        };
        let (result, made) = self.in_progress.join(&key, pull).await;
        result.map_err(|broken| Failure::new(broken.kind, broken.message))?;
        Ok(Image { made, ..Image::found(name) })
    }

    /// Makes the image of a build present.
    pub(super) async fn prepare_build(
        &self,
        mut build: BuildSpec,
        request: &ImageRequest,
    ) -> Result<Image, Failure> {
        build.access = base_triggers::access(&request.settings);
        build.proxies = request.proxies.clone();
        build.proxy_key = Arc::clone(&self.proxy_key);
        build.ca_bundle.clone_from(&self.ca_bundle);
        build.recipe = recipe(&build, self.frontends.named());
        if !build.is_local {
            let read = build.clone();
            let images = supervise::blocking(move || base_platform::images(&read)).await?;
            build.base_images = self.bases.resolve(request.labels.run, images).await?;
        }
        build.tag = tag(&build);
        let tag = build.tag.clone();
        let forced = request.force_build.then(|| (tag.clone(), request.labels.run));
        if forced.as_ref().is_none_or(|key| self.was_forced(key))
            && let Some(found) = inspect(&self.client, &tag).await?
        {
            lock::touch(lock::lock_path(&self.locks, &tag)).await;
            return Ok(Image { build: read_build_label(&found), ..Image::found(tag) });
        }
        let run = request.labels.run;
        if !request.force_build
            && self.failed.get(&(tag.clone(), run)).is_none()
            && let Some(earlier) = self.find_earlier(run, &build).await?
        {
            lock::touch(lock::lock_path(&self.locks, &earlier.reference)).await;
            return Ok(earlier);
        }
        // An image that is there was checked when it was built: its recipe says so.
        if build.is_guarded() {
            build.has_triggers = self.check_triggers(&build, request).await?;
        }
        let key = format!("build {tag} for {run}, forced: {}", request.force_build);
        let (client, locks) = (Arc::clone(&self.client), self.locks.clone());
        let frontends = Arc::clone(&self.frontends);
        let (timeout, force) = (request.timeout, request.force_build);
        let (failed, attempt) = (Arc::clone(&self.failed), (tag.clone(), run));
        let work = || async move {
            if let Some(broken) = failed.get(&attempt) {
                return Err(broken);
            }
            let building = build_once(&client, &frontends, &locks, &build, force);
            let result = match client.engine().within(timeout, building).await {
                Some(result) => result,
                None => Err(out_of_time(&format!("cannot build {}", build.tag), timeout).into()),
            };
            failed.record(attempt, &result);
            result
        };
        let (result, made) = self.in_progress.join(&key, work).await;
        match result {
            Ok(build) => {
                lock::touch(lock::lock_path(&self.locks, &tag)).await;
                if let Some(key) = forced {
                    self.forced.lock().unwrap_or_else(PoisonError::into_inner).put(key, ());
                }
                Ok(Image { reference: tag, made, build })
            }
            Err(broken) => Err(broken.into_failure(request.log.as_deref()).await),
        }
    }

    /// Refuses a build whose base images have triggers that fetch something; returns whether they have
    /// others. An image that the engine does not have is pulled: it cannot be told otherwise.
    async fn check_triggers(
        &self,
        build: &BuildSpec,
        request: &ImageRequest,
    ) -> Result<bool, Failure> {
        let mut has_triggers = false;
        let read = build.clone();
        for base in supervise::blocking(move || base_triggers::bases(&read)).await? {
            let reference = &base.reference;
            self.prepare_named(reference.clone(), request, base.platform.clone()).await?;
            let found = inspect(&self.client, reference).await?.ok_or_else(|| {
                let message = format!("cannot inspect the base image `{}`", base.image);
                Failure::new(FailureKind::Unreachable, message)
            })?;
            base_triggers::check(&base.image, &found)?;
            has_triggers |= base_triggers::of(&found).next().is_some();
        }
        Ok(has_triggers)
    }

    /// An image of an earlier run, for when a registry does not resolve a base image. If all are
    /// resolved, reports that a base image has changed.
    async fn find_earlier(&self, run: RunId, build: &BuildSpec) -> Result<Option<Image>, Failure> {
        if build.base_images.is_empty() {
            return Ok(None);
        }
        let filter = format!("{}={}", labels::RECIPE, build.recipe);
        let options = bollard::query_parameters::ListImagesOptions {
            filters: Some([("label".to_owned(), vec![filter])].into()),
            ..Default::default()
        };
        let listed = self.client.docker().await?.list_images(Some(options)).await;
        let listed = listed.map_err(|e| self.client.failure("cannot list built images", e))?;
        let Some((tag, image)) = newest_built(listed) else { return Ok(None) };
        let label = image.labels.get(labels::BUILD);
        let how: Option<ImageBuild> = label.and_then(|label| serde_json::from_str(label).ok());
        let before = how.as_ref().map(|how| how.bases.clone()).unwrap_or_default();
        for (base, known) in &build.base_images {
            let Some(known) = known else {
                let base = &base.image;
                tracing::warn!(
                    base,
                    tag,
                    "cannot resolve the base image in a registry: using the image built earlier"
                );
                return Ok(Some(Image { build: how, ..Image::found(tag) }));
            };
            let (base, now) = (&base.image, known.to_string());
            if let Some(before) = before.get(base).filter(|before| **before != now)
                && self.bases.mark_reported(run, base)
            {
                tracing::warn!(
                    base,
                    now,
                    before,
                    "the base image has changed: building the image again"
                );
            }
        }
        Ok(None)
    }

    /// The engine.
    pub(super) fn client(&self) -> &DockerClient {
        &self.client
    }

    /// The CA bundle of environments and builds.
    pub(super) const fn ca_bundle(&self) -> Option<&CaBundle> {
        self.ca_bundle.as_ref()
    }

    /// Directory of the build locks.
    pub(super) fn locks(&self) -> &Path {
        &self.locks
    }

    fn was_forced(&self, key: &(String, RunId)) -> bool {
        self.forced.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }
}

/// The newest image with a tag that builds make, and this tag. Another image has its labels from whoever
/// made it.
fn newest_built(listed: Vec<ImageSummary>) -> Option<(String, ImageSummary)> {
    let built = listed.into_iter().filter_map(|image| {
        // Podman writes a host before names of its own.
        let is_own =
            |tag: &&String| tag.strip_prefix("localhost/").unwrap_or(tag).starts_with(BUILT_IMAGES);
        let tag = image.repo_tags.iter().find(is_own).cloned()?;
        Some((tag, image))
    });
    built.max_by_key(|(_, image)| image.created)
}

/// The tag of the image that a build makes.
fn tag(build: &BuildSpec) -> String {
    let bases = base_images::recorded(&build.base_images);
    if bases.is_empty() {
        return format!("{BUILT_IMAGES}{}", build.recipe);
    }
    let mut hasher = DigestHasher::default();
    hasher.update_part(build.recipe.as_bytes());
    for (image, digest) in &bases {
        hasher.update_part(image.as_bytes());
        hasher.update_part(digest.as_bytes());
    }
    format!("{BUILT_IMAGES}{}", &hasher.finish().hex()[..32])
}

/// Digest of all inputs of a build but its base images, including the frontend that the host sets. Images
/// whose base images were checked are apart from others, and so are those of each set of proxies: a
/// proxy can change what commands fetch, and they can write its password.
fn recipe(build: &BuildSpec, frontend: Option<&str>) -> String {
    let mut hasher = DigestHasher::default();
    let platform = build.platform.as_deref().unwrap_or("");
    for part in [build.digest.as_bytes().as_slice(), platform.as_bytes()] {
        hasher.update_part(part);
    }
    hasher.update_part(BUILD_FORMAT.as_bytes());
    if !build.is_plain() {
        hasher.update_part(build.dockerfile.as_bytes());
        hasher.update_part(build.target.as_deref().unwrap_or("").as_bytes());
        for (name, value) in &build.args {
            hasher.update_part(name.as_bytes());
            hasher.update_part(value.as_bytes());
        }
    }
    if let Some(frontend) = frontend {
        hasher.update_part(b"frontend");
        hasher.update_part(frontend.as_bytes());
    }
    if build.is_guarded() {
        hasher.update_part(b"guarded");
    }
    if let Some(proxies) = build.proxies.digest(&build.proxy_key) {
        hasher.update_part(b"proxies");
        hasher.update_part(proxies.as_bytes());
    }
    hasher.finish().hex()[..32].to_owned()
}

/// Builds the image, unless another process built it during the wait for the lock.
async fn build_once(
    client: &DockerClient,
    frontends: &FrontendSelector,
    locks: &Path,
    build: &BuildSpec,
    force: bool,
) -> Result<Option<ImageBuild>, ImageFailure> {
    let path = lock::lock_path(locks, &build.tag);
    let lock = lock::exclusive(&path).await.map_err(|error| {
        let message = format!("cannot lock {} to build {}", shown(&path), build.tag);
        Failure::local(FailureKind::Bug, message, error)
    })?;
    let found = if force { None } else { inspect(client, &build.tag).await? };
    let result = match found {
        Some(found) => Ok(read_build_label(&found)),
        None => build::run(client, frontends, build, force).await.map(Some),
    };
    drop(lock);
    result
}

/// The build info in an image's label.
fn read_build_label(image: &ImageInspect) -> Option<ImageBuild> {
    let label = image.config.as_ref()?.labels.as_ref()?.get(labels::BUILD)?;
    serde_json::from_str(label).ok()
}

fn out_of_time(what: &str, timeout: std::time::Duration) -> Failure {
    Failure::new(FailureKind::TimedOut, format!("{what}: it took longer than {timeout:?}"))
}

/// Whether the engine has the image, for the platform when one is asked for.
pub(super) async fn is_present(
    client: &DockerClient,
    name: &str,
    platform: Option<&str>,
) -> Result<bool, Failure> {
    Ok(inspect(client, name).await?.is_some_and(|image| {
        platform.is_none_or(|platform| {
            let parts = [image.os.as_deref(), image.architecture.as_deref()];
            platform.split('/').zip(parts).all(|(wanted, found)| found == Some(wanted))
        })
    }))
}

/// The engine's description of an image, if it has it.
pub(super) async fn inspect(
    client: &DockerClient,
    name: &str,
) -> Result<Option<ImageInspect>, Failure> {
    let reference: ImageReference = name.parse()?;
    match client.docker().await?.inspect_image(reference.as_str()).await {
        Ok(image) => Ok(Some(image)),
        Err(error) if has_status(&error, 404) => Ok(None),
        Err(error) => Err(client.failure(&format!("cannot look for the image {name}"), error)),
    }
}

pub(super) async fn pull(
    client: &DockerClient,
    name: &str,
    platform: Option<&str>,
) -> Result<(), Failure> {
    let reference: ImageReference = name.parse()?;
    let (repository, tag) = split_reference(reference.as_str());
    let options = bollard::query_parameters::CreateImageOptions {
        from_image: Some(repository.to_owned()),
        tag: Some(tag.to_owned()),
        platform: platform.unwrap_or_default().to_owned(),
        ..Default::default()
    };
    let docker = client.slow().await?;
    let mut progress = docker.create_image(Some(options), None, None);
    let what = format!("cannot pull the image {name}");
    while let Some(step) = progress.next().await {
        if let Err(error) = step {
            let mut failure = client.failure(&what, error);
            if failure.kind != FailureKind::Unreachable {
                failure.kind =
                    registry_failure::kind_for_registry(&failure.message).unwrap_or(failure.kind);
            }
            return Err(failure);
        }
    }
    Ok(())
}

/// Splits an image name into the repository and the tag or digest. Without a tag the engine would
/// pull every tag.
fn split_reference(name: &str) -> (&str, &str) {
    if let Some((repository, digest)) = name.split_once('@') {
        return (repository, digest);
    }
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (name, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use rollout_environment::BuildProxies;
    use rollout_environment::image_access::ImageAccess;
    use rollout_protocol::digest::Digest;

    use super::*;

    #[test]
    fn image_reference_splits_into_repository_and_tag() {
        for (name, repository, tag) in [
            ("debian", "debian", "latest"),
            ("debian:12", "debian", "12"),
            ("localhost:5000/a/b", "localhost:5000/a/b", "latest"),
            ("localhost:5000/a/b:c", "localhost:5000/a/b", "c"),
            ("a/b@sha256:00", "a/b", "sha256:00"),
            ("a/b:1@sha256:00", "a/b:1", "sha256:00"),
        ] {
            assert_eq!(split_reference(name), (repository, tag));
        }
    }

    #[test]
    fn earlier_image_is_one_with_the_tag_of_a_build() {
        let image = |created: i64, tags: &[&str]| ImageSummary {
            created,
            repo_tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            ..ImageSummary::default()
        };
        let pulled = image(9, &["a/b:1", "h.example/rollout/task:1", "rollout/tasks:1"]);
        assert_eq!(newest_built(vec![pulled.clone(), image(8, &[])]), None);
        let built = [image(1, &["rollout/task:1"]), image(2, &["a/b:2", "rollout/task:2"])];
        let newest = newest_built([&[pulled][..], &built].concat());
        assert_eq!(newest, Some(("rollout/task:2".to_owned(), built[1].clone())));
        let of_podman = image(3, &["localhost/rollout/task:3"]);
        let newest = newest_built(vec![of_podman.clone()]);
        assert_eq!(newest, Some(("localhost/rollout/task:3".to_owned(), of_podman)));
    }

    #[test]
    fn image_tag_changes_with_every_build_input() {
        let (a, b) = (Digest::sha256(b"a"), Digest::sha256(b"b"));
        let build = |digest, platform: Option<&str>| {
            BuildSpec::plain(PathBuf::new(), digest, platform.map(str::to_owned))
        };
        let plain = recipe(&build(a, None), None);
        assert_eq!(plain, recipe(&build(a, None), None));
        assert_ne!(plain, recipe(&build(b, None), None));
        assert_ne!(plain, recipe(&build(a, Some("linux/arm64")), None));
        let proxied = |proxy: &str| {
            let env = [("HTTP_PROXY".to_owned(), proxy.to_owned())].into();
            BuildSpec { proxies: BuildProxies::of(&env), ..build(a, None) }
        };
        let [one, other, same] = ["http://p:1", "http://u:secret@p:1", "http://p:1"]
            .map(|proxy| recipe(&proxied(proxy), None));
        assert!(plain != one && plain != other && one != other, "commands can write proxies");
        assert_eq!(one, same);
        let staged = BuildSpec { target: Some("test".to_owned()), ..build(a, None) };
        let other = BuildSpec { dockerfile: "Other".to_owned(), ..build(a, None) };
        let (staged, other) = (recipe(&staged, None), recipe(&other, None));
        assert!(plain != staged && plain != other && staged != other);
        assert_ne!(plain, recipe(&build(a, None), Some("x/y:1")));
        let guarded = BuildSpec { access: ImageAccess::default(), ..build(a, None) };
        assert_ne!(plain, recipe(&guarded, None));
        assert_eq!(plain.len(), 32);

        let mut based = BuildSpec { recipe: plain.clone(), ..build(a, None) };
        assert_eq!(tag(&based), format!("rollout/task:{plain}"));
        let file = rollout_environment::dockerfile::Dockerfile::read("FROM x\n");
        let mut tags = ["sha256:1", "sha256:2"].map(|digest| {
            let base = file.base_images(&std::collections::BTreeMap::new()).remove(0);
            based.base_images =
                vec![(base, Some(base_images::ResolvedBase::Digest(digest.to_owned())))];
            tag(&based)
        });
        tags.sort();
        assert!(tags[0] != tags[1] && !tags[0].ends_with(&plain), "{tags:?}");
    }
}
