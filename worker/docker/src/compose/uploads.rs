//! Files of the build context as uploads.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rollout_environment::Upload;
use rollout_environment::dockerignore::Dockerignore;

use super::super::build;

/// Largest file that is uploaded by reading it into memory.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// The upload of a file, or of a directory as an archive.
pub(super) fn of_path(from: &Path, target: String, tar: PathBuf) -> io::Result<Upload> {
    let meta = from.metadata()?;
    if meta.is_dir() {
        let file = File::create_new(&tar)?;
        build::pack_all(from, &Dockerignore::default(), &[], io::BufWriter::new(file))?;
        return Ok(Upload::Archive { path: target, tar });
    }
    if !meta.is_file() || meta.len() > FILE_BYTES {
        let text = format!("it is not a file of at most {FILE_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let executable = meta.permissions().mode() & 0o100 != 0;
    Ok(Upload::File { path: target, bytes: std::fs::read(from)?.into(), executable })
}
