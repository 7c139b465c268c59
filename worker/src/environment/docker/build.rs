//! Building one image with the engine's classic builder.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bollard::query_parameters::BuildImageOptions;
use futures_util::{Stream, StreamExt as _};
use rollout_protocol::digest::Digest;

use super::client::Client;
use super::failure;
use super::image::Broken;
use super::labels;
use super::upload;
use crate::environment::context::{self, ContextKind};
use crate::environment::dockerignore::{self, Dockerignore};
use crate::environment::{Failure, FailureKind};
use crate::supervise;

/// The end of the build log that stands in the failure.
const LOG_TAIL: usize = 4 * 1024;

/// Bytes of the build log that are kept on disk.
const LOG_BYTES: u64 = 16 * 1024 * 1024;

pub(super) const DOCKERFILE: &str = "Dockerfile";

/// What to build.
#[derive(Debug, Clone)]
pub(super) struct Build {
    /// The image's name.
    pub(super) tag: String,
    /// The build context.
    pub(super) context: PathBuf,
    /// Digest of the context.
    pub(super) digest: Digest,
    /// Platform, when one is asked for.
    pub(super) platform: Option<String>,
    /// The Dockerfile, relative to the context.
    pub(super) dockerfile: String,
    /// Values of its arguments.
    pub(super) args: BTreeMap<String, String>,
    /// The stage to build, when it is not the last.
    pub(super) target: Option<String>,
}

impl Build {
    /// The build of a context as it is. The tag is still to be given.
    pub(super) fn plain(context: PathBuf, digest: Digest, platform: Option<String>) -> Self {
        let (tag, dockerfile) = (String::new(), DOCKERFILE.to_owned());
        Self { tag, context, digest, platform, dockerfile, args: BTreeMap::new(), target: None }
    }

    /// Whether the context alone decides what comes out.
    pub(super) fn is_plain(&self) -> bool {
        self.dockerfile == DOCKERFILE && self.args.is_empty() && self.target.is_none()
    }
}

/// Builds the image. Dropping the future ends the build.
pub(super) async fn run(client: &Client, build: &Build, no_cache: bool) -> Result<(), Broken> {
    let what = format!("building {}", build.tag);
    if !build.context.join(&build.dockerfile).is_file() {
        let message = format!("{what}: the build context has no {}", build.dockerfile);
        return Err(Failure::new(FailureKind::Refused, message).into());
    }
    let docker = client.slow().await?;
    let (writer, mut pieces) = upload::pieces();
    let body = futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx));
    let body = bollard::body_try_stream(body);
    let options = options(build, no_cache);
    let mut log = Log::new().map_err(|error| {
        Failure::new(FailureKind::Bug, format!("{what}: no file for the log")).because(error)
    })?;
    let (context, dockerfile) = (build.context.clone(), build.dockerfile.clone());
    let sending = supervise::blocking(move || writer.run(|to| pack(&context, &dockerfile, to)));
    let building = follow(docker.build_image(options, None, Some(body)), &mut log);
    let (built, sent) = tokio::join!(building, sending);
    if let Err(error) = sent
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let message = format!("{what}: reading the build context {}", build.context.display());
        return Err(Failure::new(FailureKind::Refused, message).because(error).into());
    }
    match built {
        Ok(true) => Ok(()),
        Ok(false) => {
            let message = format!("{what}: the engine ended the build without a result");
            Err(Failure::new(FailureKind::Unreachable, message).into())
        }
        Err(error) => Err(broken(client, &what, error, log)),
    }
}

fn options(build: &Build, no_cache: bool) -> BuildImageOptions {
    // One label only: each is a step of its own, in no fixed order.
    let labels = HashMap::from([(labels::CONTEXT.to_owned(), build.digest.to_string())]);
    BuildImageOptions {
        dockerfile: build.dockerfile.clone(),
        buildargs: (!build.args.is_empty()).then(|| build.args.clone().into_iter().collect()),
        target: build.target.clone().unwrap_or_default(),
        t: Some(build.tag.clone()),
        nocache: no_cache,
        rm: true,
        forcerm: true,
        labels: Some(labels),
        platform: build.platform.clone().unwrap_or_default(),
        ..Default::default()
    }
}

/// Follows the build to its end; whether an image came out.
async fn follow(
    mut steps: impl Stream<Item = Result<bollard::models::BuildInfo, bollard::errors::Error>> + Unpin,
    log: &mut Log,
) -> Result<bool, bollard::errors::Error> {
    let mut built = false;
    while let Some(step) = steps.next().await {
        let step = step?;
        for text in [step.stream, step.status].into_iter().flatten() {
            log.add(&text);
        }
        built |= step.aux.is_some_and(|image| image.id.is_some());
    }
    Ok(built)
}

fn broken(client: &Client, what: &str, error: bollard::errors::Error, mut log: Log) -> Broken {
    let stream_error = matches!(error, bollard::errors::Error::DockerStreamError { .. });
    let mut failure = client.failure(what, error);
    if stream_error && failure.kind == FailureKind::Service {
        // What the builder says of an instruction is the Dockerfile's fault, unless it is about
        // the registry of a base image.
        failure.kind = failure::of_registry(&failure.message).unwrap_or(FailureKind::Refused);
    } else if failure.message.contains("Cannot locate specified Dockerfile") {
        failure.kind = FailureKind::Refused;
    }
    log.add(&format!("\n{}\n", failure.message));
    let mut broken = Broken::from(failure);
    let tail = log.tail();
    if !tail.trim().is_empty() {
        broken.message = format!("{}\nThe build's log ends:\n{}", broken.message, tail.trim());
    }
    broken.log = Some(Arc::new(log.file.into_temp_path()));
    broken
}

/// Writes the context as an archive that is the same for the same content.
pub(super) fn pack(context: &Path, dockerfile: &str, to: impl Write) -> io::Result<()> {
    let ignore = Dockerignore::read(context)?;
    pack_all(context, &ignore, &[dockerfile, dockerignore::FILE_NAME], to)
}

/// Writes what `ignore` leaves of a directory, and what stands in `always`.
pub(super) fn pack_all(
    dir: &Path,
    ignore: &Dockerignore,
    always: &[&str],
    to: impl Write,
) -> io::Result<()> {
    let mut tar = tar::Builder::new(to);
    for entry in context::list(dir, ignore, always)? {
        match entry.kind {
            ContextKind::Dir => upload::directory(&mut tar, &entry.path, 0o755)?,
            ContextKind::File { executable } => {
                let file = File::open(dir.join(&entry.path))?;
                let size = file.metadata()?.len();
                let mode = if executable { 0o755 } else { 0o644 };
                let mut header = upload::header(tar::EntryType::Regular, mode, size);
                tar.append_data(&mut header, &entry.path, io::Read::take(file, size))?;
            }
            ContextKind::Link { target } => {
                let mut header = upload::header(tar::EntryType::Symlink, 0o777, 0);
                tar.append_link(&mut header, &entry.path, target)?;
            }
        }
    }
    tar.into_inner()?.flush()
}

/// The log of a build: its beginning on disk, its end in memory.
#[derive(Debug)]
struct Log {
    file: tempfile::NamedTempFile,
    written: u64,
    tail: Vec<u8>,
}

impl Log {
    fn new() -> io::Result<Self> {
        Ok(Self { file: tempfile::NamedTempFile::new()?, written: 0, tail: Vec::new() })
    }

    fn add(&mut self, text: &str) {
        let room = usize::try_from(LOG_BYTES.saturating_sub(self.written)).unwrap_or(usize::MAX);
        let kept = &text.as_bytes()[..text.len().min(room)];
        // A log that cannot be written must not end a build.
        if self.file.write_all(kept).is_ok() {
            self.written += kept.len() as u64;
        }
        self.tail.extend_from_slice(text.as_bytes());
        if self.tail.len() > 2 * LOG_TAIL {
            self.tail.drain(..self.tail.len() - LOG_TAIL);
        }
    }

    /// The last bytes, without the escape sequences the engine wraps around error output.
    fn tail(&mut self) -> String {
        if self.written >= LOG_BYTES {
            let end = String::from_utf8_lossy(&self.tail).into_owned();
            self.file.seek(SeekFrom::End(0)).ok();
            self.file.write_all(format!("\n[…]\n{end}").as_bytes()).ok();
        }
        let from = self.tail.len().saturating_sub(LOG_TAIL);
        let text = String::from_utf8_lossy(&self.tail[from..]);
        text.replace("\u{1b}[91m", "").replace("\u{1b}[0m", "")
    }
}
