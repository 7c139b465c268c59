//! Images of environments: their source, their preparation, and the log of a build that failed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_base::dependency;
use rollout_base::secrets::Redactor;
use rollout_environment::{
    BuildProxies, EnvironmentLabels, Failure, FailureKind, Image, ImageRequest, ImageSource,
    Provider, descriptor,
};
use rollout_protocol::digest::Digest;
use rollout_protocol::spec::environment::EnvironmentSpec;
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::spec::timeout::seconds;

use super::errors::SetupError;
use super::files::{TaskFiles, TaskPart};

/// Extra time for the provider to report its own timeout: it knows more about the cause.
const GRACE: Duration = Duration::from_secs(10);

/// Path of the log of a failed image build, below the execution's output directory.
pub(crate) const BUILD_LOG: &str = "setup/build.log";

/// Extension of the file beside it that has no secrets.
const MASKED_EXTENSION: &str = "masked.log";

/// The log of an image build. It is kept when the build ends the execution.
#[derive(Debug, Clone)]
pub(crate) struct BuildLog {
    /// Written by the provider, with secrets: proxies have some. The provider may still write it after a stop.
    file: PathBuf,
    building: bool,
}

impl BuildLog {
    /// The log of builds of an execution.
    pub(crate) fn new(scratch: &Path) -> Self {
        Self { file: scratch.join(BUILD_LOG), building: false }
    }

    /// Whether a build has begun and made no image: there may be a log.
    pub(crate) const fn is_unfinished(&self) -> bool {
        self.building
    }

    /// Writes the log of an unsuccessful build without secrets, if the provider wrote one. Returns that
    /// file, which nothing else writes, and its size. A log that cannot be masked is left out. Blocks.
    pub(crate) fn write_masked(&self, redactor: &Redactor) -> Option<(PathBuf, u64)> {
        if !self.building || !fs::symlink_metadata(&self.file).ok()?.is_file() {
            return None;
        }
        let masked = self.file.with_extension(MASKED_EXTENSION);
        let written = fs::read(&self.file).and_then(|text| {
            let mut clean = Vec::with_capacity(text.len());
            redactor.bytes(&text, 0, &mut clean);
            fs::write(&masked, &clean)?;
            Ok(clean.len() as u64)
        });
        match written {
            Ok(bytes) => Some((masked, bytes)),
            Err(error) => {
                tracing::warn!("cannot mask the log of a build, which is left out: {error}");
                None
            }
        }
    }
}

/// A requested image: the settings of the task and of the job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestedImage<'a> {
    /// Settings of the task.
    pub(crate) environment: &'a TaskEnvironment,
    /// Settings of the job.
    pub(crate) settings: &'a EnvironmentSpec,
}

impl RequestedImage<'_> {
    /// Whether the image is named rather than built.
    fn is_named(&self) -> bool {
        // A provider without images follows the Dockerfile, which defines the content.
        let kind = self.settings.provider.kind();
        let has_images = descriptor::for_kind(kind).capabilities.images.is_supported();
        let build = self.settings.force_build || !has_images;
        self.environment.docker_image.is_some() && !(build && self.environment.context.is_some())
    }

    /// The source of the image; the part must live as long as the source is used.
    pub(crate) async fn source(
        &self,
        files: &TaskFiles,
    ) -> Result<(ImageSource, Option<TaskPart>), SetupError> {
        if let Some(image) = self.environment.docker_image.as_ref().filter(|_| self.is_named()) {
            return Ok((ImageSource::Named(image.clone()), None));
        }
        let (digest, part) = match &self.environment.context {
            Some(blob) => (blob.digest, files.directory("the build context", blob).await),
            None => (Digest::sha256(b""), files.empty_directory().await),
        };
        let part = part.map_err(SetupError::Files)?;
        Ok((ImageSource::Context { digest, dir: part.path().to_owned() }, Some(part)))
    }

    /// Pulls or builds the image; `proxies` are those of the commands of a build.
    pub(crate) async fn prepare(
        &self,
        provider: &dyn Provider,
        source: &ImageSource,
        proxies: BuildProxies,
        labels: &EnvironmentLabels,
        log: &mut BuildLog,
    ) -> Result<Image, SetupError> {
        let limit = seconds(self.environment.build_sec);
        let named = matches!(source, ImageSource::Named(_));
        let request = ImageRequest {
            source: source.clone(),
            force_build: self.settings.force_build,
            timeout: limit,
            log: Some(log.file.clone()),
            proxies,
            settings: self.settings.provider.clone(),
            labels: labels.clone(),
        };
        log.building = true;
        let image = prepare_image(provider, request).await;
        let image = image.map_err(|failure| SetupError::Image { named, limit, failure })?;
        log.building = false;
        Ok(image)
    }
}

/// Pulls or builds an image, and gives up on a provider that does not answer. The limit does not
/// count the time in which the provider's engine did not answer.
///
/// # Errors
/// [`Failure`].
pub async fn prepare_image(
    provider: &dyn Provider,
    request: ImageRequest,
) -> Result<Image, Failure> {
    let limit = provider.prepare_limit(request.timeout).saturating_add(GRACE);
    let prepared =
        dependency::within(provider.dependency(), limit, provider.prepare(request)).await;
    prepared.unwrap_or_else(|| {
        Err(Failure::new(FailureKind::TimedOut, "the provider did not answer in time"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_log_that_is_written_after_its_end_changes_no_masked_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let redactor = Redactor::new([("PASSWORD", "hunter2hunter2")]);
        let mut log = BuildLog::new(dir.path());
        fs::create_dir_all(log.file.parent().expect("a directory")).expect("made");
        fs::write(&log.file, "at hunter2hunter2@proxy").expect("written");
        assert_eq!(log.write_masked(&redactor), None, "no build has begun");
        log.building = true;
        let (masked, bytes) = log.write_masked(&redactor).expect("a log");
        fs::write(&log.file, "once more at hunter2hunter2@proxy").expect("written");
        let text = fs::read_to_string(masked).expect("a text");
        assert_eq!(text, "at [redacted:PASSWORD]@proxy");
        assert_eq!(bytes, text.len() as u64);
        fs::remove_file(&log.file).expect("removed");
        assert_eq!(log.write_masked(&redactor), None, "there is none");
    }
}
