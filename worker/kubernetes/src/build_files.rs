//! The files of a build, as they are placed into its pod.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rollout_base::confined::ConfinedDir;
use rollout_base::supervise::{self, BlockingDrop};
use rollout_environment::dockerfile::{Dockerfile, with_ca_bundle, with_images};
use rollout_environment::{Failure, FailureKind, Upload};
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use tempfile::NamedTempFile;

use super::options::BuilderOptions;

/// Directory of a Dockerfile that differs from that of the context, in a build's pod.
pub(super) const DOCKERFILE_DIR: &str = "/.rollout/dockerfile";

/// The files of a context that its builder may read from elsewhere.
const DOCKERFILE: &str = "Dockerfile";
const DOCKERFILE_IGNORE: &str = "Dockerfile.dockerignore";

/// The Dockerfile of a build, if it is not that of the context, which stays as it is.
#[derive(Debug, Default)]
pub(super) struct SentDockerfile {
    /// The files of its directory; none if the builder reads that of the context.
    pub(super) uploads: Vec<Upload>,
    /// The image of its frontend, if a mirror has it.
    pub(super) frontend: Option<String>,
}

/// The Dockerfile of a context for a builder in the cluster: with its images from the mirrors of the
/// builder, and with a CA bundle for its commands.
pub(super) async fn dockerfile(
    dir: PathBuf,
    has_bundle: bool,
    options: &BuilderOptions,
) -> Result<SentDockerfile, Failure> {
    if !has_bundle && options.registry_mirrors.is_empty() {
        return Ok(SentDockerfile::default());
    }
    let reading = move || {
        let dir = ConfinedDir::open(&dir)?;
        let read = |name: &str| match dir.read(Path::new(name), CONFIG_FILE_BYTES) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        Ok((read(DOCKERFILE)?, read(DOCKERFILE_IGNORE)?))
    };
    let read: io::Result<_> = supervise::blocking(reading).await;
    let (written, ignore) = read.map_err(|error| {
        Failure::local(FailureKind::Refused, "cannot read the Dockerfile of an image", error)
    })?;
    // The builder says that there is none.
    let Some(written) = written else { return Ok(SentDockerfile::default()) };
    let written = String::from_utf8_lossy(&written).into_owned();
    let (mut text, frontend) = from_mirrors(&written, options);
    if has_bundle {
        text = with_ca_bundle(&text);
    }
    let mut sent = SentDockerfile { uploads: Vec::new(), frontend };
    if text != written {
        let file = |name: &str, bytes: Bytes| Upload::File {
            path: format!("{DOCKERFILE_DIR}/{name}"),
            bytes,
            executable: false,
        };
        sent.uploads.push(Upload::FreshDir { path: DOCKERFILE_DIR.to_owned() });
        sent.uploads.push(file(DOCKERFILE, Bytes::from(text)));
        sent.uploads.extend(ignore.map(|bytes| file(DOCKERFILE_IGNORE, Bytes::from(bytes))));
    }
    Ok(sent)
}

/// A Dockerfile with its images from mirrors, and its frontend, if a mirror has it.
fn from_mirrors(text: &str, options: &BuilderOptions) -> (String, Option<String>) {
    let file = Dockerfile::read(text);
    let frontend = file.syntax.as_ref();
    let frontend = frontend.and_then(|(_, image)| options.mirror(image));
    let images = file.base_images(&BTreeMap::new()).into_iter().filter_map(|base| {
        let mirror = options.mirror(&base.image)?;
        Some((base, mirror))
    });
    let images: Vec<_> = images.collect();
    (with_images(text, &images), frontend)
}

/// Packs a build context.
pub(super) async fn pack(dir: PathBuf) -> Result<BlockingDrop<NamedTempFile>, Failure> {
    let packing = move || {
        let mut file = NamedTempFile::new()?;
        let mut tar = tar::Builder::new(file.as_file_mut());
        tar.follow_symlinks(false);
        tar.append_dir_all("", &dir)?;
        tar.finish()?;
        drop(tar);
        Ok(BlockingDrop::new(file))
    };
    let packed: std::io::Result<_> = supervise::blocking(packing).await;
    packed.map_err(|error| {
        Failure::local(FailureKind::Bug, "cannot pack the context of an image", error)
    })
}

#[cfg(test)]
mod tests {
    use super::super::options::KubernetesOptions;
    use super::*;

    #[test]
    fn images_of_a_dockerfile_come_from_mirrors_of_the_builder_only() {
        let builder = |text: &str| {
            let options = KubernetesOptions::parse(text).expect("valid");
            options.builder.expect("a builder")
        };
        let mirrors = "registry_mirrors: {docker.io: mirror.test/hub, quay.io: mirror.test/quay}";
        let options = builder(&format!("builder: {{registry: r.test, {mirrors}}}"));
        let text = "# syntax=docker/dockerfile:1\nARG V=12\nFROM debian:$V AS one\nFROM one\n\
                    COPY --from=quay.io/x/y:1 /a /b\nCOPY --from=ghcr.io/x/y /a /b\nRUN echo debian:12\n";
        let expected = "# syntax=docker/dockerfile:1\nARG V=12\nFROM \
                        mirror.test/hub/library/debian:12 AS one\nFROM one\nCOPY \
                        --from=mirror.test/quay/x/y:1 /a /b\nCOPY --from=ghcr.io/x/y /a /b\nRUN echo \
                        debian:12\n";
        let (changed, frontend) = from_mirrors(text, &options);
        assert_eq!(changed, expected);
        assert_eq!(frontend.as_deref(), Some("mirror.test/hub/docker/dockerfile:1"));
        let of_nodes = builder(&format!("builder: {{registry: r.test}}\n{mirrors}"));
        let none = from_mirrors(text, &of_nodes);
        assert_eq!(none, (text.to_owned(), None));
    }
}
