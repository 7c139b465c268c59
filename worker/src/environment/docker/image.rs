//! Images: found, pulled or built, once for everybody who asks.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use lru::LruCache;
use rollout_protocol::digest::Hasher;
use rollout_protocol::id::RunId;

use super::build::{self, Build};
use super::client::Client;
use super::failed::FailedBuilds;
use super::failure::{self, has_status};
use super::flight::Flights;
use super::lock;
use crate::environment::{Failure, FailureKind, Image, ImageRequest, ImageSource};

/// Version of how contexts become images: part of the tag, so that images of another way of
/// building are not taken for ours.
const BUILD_FORMAT: &str = "1";

/// Forced builds remembered, so that a run builds each of its images once and not once per trial.
const FORCED_BUILDS: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// Begins the reference of what is no image, and could not be one's name: services beside the environment are described in the
/// context, and no Dockerfile, so that their description says what the environment is made of.
pub(super) const OF_SERVICES: &str = "services of ";

/// Names of such descriptions.
const SERVICES: [&str; 4] =
    ["docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"];

/// Makes images present.
#[derive(Debug)]
pub(super) struct Images {
    client: Arc<Client>,
    locks: PathBuf,
    flights: Flights<Result<(), Broken>>,
    forced: Mutex<LruCache<(String, RunId), ()>>,
    failed: Arc<FailedBuilds>,
}

/// A failed build or pull, told to everybody who waited for it.
#[derive(Debug, Clone)]
pub(super) struct Broken {
    /// What kind.
    pub(super) kind: FailureKind,
    /// What happened, with the tail of the log.
    pub(super) message: String,
    /// The log, for as long as somebody may want a copy.
    pub(super) log: Option<Arc<tempfile::TempPath>>,
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self { kind: failure.kind, message: failure.chain(), log: None }
    }
}

impl Images {
    /// Images of the engine of `client`; processes that share `locks` build an image once.
    pub(super) fn new(client: Arc<Client>, locks: PathBuf) -> Self {
        let forced = Mutex::new(LruCache::new(FORCED_BUILDS));
        Self { client, locks, flights: Flights::default(), forced, failed: Arc::default() }
    }

    /// See [`Provider::prepare`](crate::environment::Provider::prepare).
    pub(super) async fn prepare(
        &self,
        request: ImageRequest,
        platform: Option<String>,
    ) -> Result<Image, Failure> {
        match &request.source {
            ImageSource::Named(name) => self.named(name.clone(), &request, platform).await,
            ImageSource::Context { digest, dir }
                if !dir.join(build::DOCKERFILE).is_file()
                    && SERVICES.iter().any(|name| dir.join(name).is_file()) =>
            {
                Ok(Image { reference: format!("{OF_SERVICES}{digest}"), made: false })
            }
            ImageSource::Context { digest, dir } => {
                let build = Build::plain(dir.clone(), *digest, platform);
                self.context(build.tagged(), &request).await
            }
        }
    }

    async fn named(
        &self,
        name: String,
        request: &ImageRequest,
        platform: Option<String>,
    ) -> Result<Image, Failure> {
        if is_present(&self.client, &name, platform.as_deref()).await? {
            return Ok(Image { reference: name, made: false });
        }
        let key = format!("pull {name} {platform:?}");
        let (client, timeout) = (Arc::clone(&self.client), request.timeout);
        let image = name.clone();
        let pull = || async move {
            let pulled = pull(&client, &image, platform.as_deref());
            match tokio::time::timeout(timeout, pulled).await {
                Ok(result) => result.map_err(Broken::from),
                Err(_) => Err(out_of_time(&format!("pulling {image}"), timeout).into()),
            }
        };
        let (result, made) = self.flights.join(&key, pull).await;
        result.map_err(|broken| Failure::new(broken.kind, broken.message))?;
        Ok(Image { reference: name, made })
    }

    /// Makes the image of a build present.
    pub(super) async fn context(
        &self,
        build: Build,
        request: &ImageRequest,
    ) -> Result<Image, Failure> {
        let tag = build.tag.clone();
        let forced = request.force_build.then(|| (tag.clone(), request.labels.run));
        let wanted = match &forced {
            Some(key) => !self.was_forced(key),
            None => !is_present(&self.client, &tag, None).await?,
        };
        if !wanted {
            return Ok(Image { reference: tag, made: false });
        }
        let run = request.labels.run;
        let key = format!("build {tag} for {run}, forced: {}", request.force_build);
        let (client, locks) = (Arc::clone(&self.client), self.locks.clone());
        let (timeout, force) = (request.timeout, request.force_build);
        let (failed, attempt) = (Arc::clone(&self.failed), (tag.clone(), run));
        let work = || async move {
            if let Some(broken) = failed.answer(&attempt) {
                return Err(broken);
            }
            let building = build_once(&client, &locks, &build, force);
            let result = match tokio::time::timeout(timeout, building).await {
                Ok(result) => result,
                Err(_) => Err(out_of_time(&format!("building {}", build.tag), timeout).into()),
            };
            failed.note(attempt, &result);
            result
        };
        let (result, made) = self.flights.join(&key, work).await;
        match result {
            Ok(()) => {
                if let Some(key) = forced {
                    self.forced.lock().unwrap_or_else(PoisonError::into_inner).put(key, ());
                }
                Ok(Image { reference: tag, made })
            }
            Err(broken) => Err(explain(broken, request.log.as_deref()).await),
        }
    }

    fn was_forced(&self, key: &(String, RunId)) -> bool {
        self.forced.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }
}

impl Build {
    /// The build with the tag of what comes out of it.
    pub(super) fn tagged(mut self) -> Self {
        self.tag = tag(&self);
        self
    }
}

/// The tag of the image that a build makes.
fn tag(build: &Build) -> String {
    let mut hasher = Hasher::default();
    let platform = build.platform.as_deref().unwrap_or("");
    for part in [build.digest.as_bytes().as_slice(), platform.as_bytes()] {
        hasher.part(part);
    }
    hasher.part(BUILD_FORMAT.as_bytes());
    if !build.is_plain() {
        hasher.part(build.dockerfile.as_bytes());
        hasher.part(build.target.as_deref().unwrap_or("").as_bytes());
        for (name, value) in &build.args {
            hasher.part(name.as_bytes());
            hasher.part(value.as_bytes());
        }
    }
    format!("rollout/task:{}", &hasher.finish().hex()[..32])
}

/// Builds unless another process has done it while the lock was waited for.
async fn build_once(
    client: &Client,
    locks: &Path,
    build: &Build,
    force: bool,
) -> Result<(), Broken> {
    let name = build.tag.rsplit(':').next().unwrap_or(&build.tag);
    let path = locks.join(format!("{name}.lock"));
    let lock = lock::exclusive(&path).await.map_err(|error| {
        let message = format!("cannot lock {} to build {}", path.display(), build.tag);
        Failure::new(FailureKind::Bug, message).because(error)
    })?;
    let result = if !force && is_present(client, &build.tag, None).await? {
        Ok(())
    } else {
        build::run(client, build, force).await
    };
    drop(lock);
    result
}

/// The failure for one of those who waited, with the whole log where it was asked for.
async fn explain(broken: Broken, log: Option<&Path>) -> Failure {
    if let (Some(from), Some(to)) = (&broken.log, log)
        && let Err(error) = copy(from, to).await
    {
        tracing::warn!(to = %to.display(), %error, "cannot write the build log");
    }
    Failure::new(broken.kind, broken.message)
}

/// Copies a file into a directory that may not exist yet.
async fn copy(from: &Path, to: &Path) -> std::io::Result<u64> {
    if let Some(directory) = to.parent() {
        tokio::fs::create_dir_all(directory).await?;
    }
    tokio::fs::copy(from, to).await
}

fn out_of_time(what: &str, timeout: std::time::Duration) -> Failure {
    Failure::new(FailureKind::TimedOut, format!("{what} took longer than {timeout:?}"))
}

/// Whether the engine has the image, for the platform when one is asked for.
async fn is_present(client: &Client, name: &str, platform: Option<&str>) -> Result<bool, Failure> {
    match client.docker().await?.inspect_image(name).await {
        Ok(image) => Ok(platform.is_none_or(|platform| {
            let parts = [image.os.as_deref(), image.architecture.as_deref()];
            platform.split('/').zip(parts).all(|(wanted, found)| found == Some(wanted))
        })),
        Err(error) if has_status(&error, 404) => Ok(false),
        Err(error) => Err(client.failure(&format!("looking for the image {name}"), error)),
    }
}

async fn pull(client: &Client, name: &str, platform: Option<&str>) -> Result<(), Failure> {
    let (repository, tag) = split_reference(name);
    let options = bollard::query_parameters::CreateImageOptions {
        from_image: Some(repository.to_owned()),
        tag: Some(tag.to_owned()),
        platform: platform.unwrap_or_default().to_owned(),
        ..Default::default()
    };
    let docker = client.slow().await?;
    let mut progress = docker.create_image(Some(options), None, None);
    let what = format!("pulling the image {name}");
    while let Some(step) = progress.next().await {
        if let Err(error) = step {
            let mut failure = client.failure(&what, error);
            if failure.kind != FailureKind::Unreachable {
                failure.kind = failure::of_registry(&failure.message).unwrap_or(failure.kind);
            }
            return Err(failure);
        }
    }
    Ok(())
}

/// The repository and the tag or digest of an image's name. Without a tag the engine would pull
/// every tag.
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
    use rollout_protocol::digest::Digest;

    use super::*;

    #[test]
    fn references_split_into_repository_and_tag() {
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
    fn the_tag_depends_on_everything_that_decides() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let build = |digest, platform: Option<&str>| {
            Build::plain(PathBuf::new(), digest, platform.map(str::to_owned))
        };
        let plain = tag(&build(a, None));
        assert_eq!(plain, tag(&build(a, None)));
        assert_ne!(plain, tag(&build(b, None)));
        assert_ne!(plain, tag(&build(a, Some("linux/arm64"))));
        let staged = Build { target: Some("test".to_owned()), ..build(a, None) };
        let other = Build { dockerfile: "Other".to_owned(), ..build(a, None) };
        assert!(plain != tag(&staged) && plain != tag(&other) && tag(&staged) != tag(&other));
        assert_eq!(plain.len(), "rollout/task:".len() + 32);
    }
}
