//! The files of a build, as they are placed into its pod.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use tempfile::NamedTempFile;

use super::build_pod::{BUNDLE_FILE, DOCKERFILE_DIR};
use crate::confined::ConfinedDir;
use crate::environment::dockerfile::with_ca_bundle;
use crate::environment::{CaBundle, Failure, FailureKind, Upload};
use crate::supervise::{self, BlockingDrop};

/// The files of a context that its builder reads from elsewhere with a CA bundle.
const DOCKERFILE: &str = "Dockerfile";
const DOCKERFILE_IGNORE: &str = "Dockerfile.dockerignore";

/// A CA bundle, and the Dockerfile of a context whose commands have it. The context stays as it is.
pub(super) async fn with_bundle(bundle: &CaBundle, dir: PathBuf) -> Result<Vec<Upload>, Failure> {
    let file = |path, bytes| Upload::File { path, bytes, executable: false };
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
    let (dockerfile, ignore) = read.map_err(|error| {
        Failure::local(FailureKind::Refused, "cannot read the Dockerfile of an image", error)
    })?;
    let dockerfile = dockerfile.map(|bytes| with_ca_bundle(&String::from_utf8_lossy(&bytes)));
    let named =
        [(DOCKERFILE, dockerfile.map(Bytes::from)), (DOCKERFILE_IGNORE, ignore.map(Bytes::from))];
    let mut uploads = vec![
        file(BUNDLE_FILE.to_owned(), bundle.pem().clone()),
        Upload::FreshDir { path: DOCKERFILE_DIR.to_owned() },
    ];
    let found = named.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
    uploads.extend(found.map(|(name, bytes)| file(format!("{DOCKERFILE_DIR}/{name}"), bytes)));
    Ok(uploads)
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
