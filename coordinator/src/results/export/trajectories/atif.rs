//! A directory with a file for each trial: `<agent>/<dataset>/<task>__<attempt>.json`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{ExportError, ExportSource, LeftOut, file, store_failed};
use crate::results::files::FileError;
use crate::results::files::durable::{sync_dir, sync_tree};
use crate::results::files::layout;
use crate::results::rows::parent;

/// Writes the trajectories to a directory that is empty or missing: completely or not at all.
pub(in crate::results::export) async fn write(
    source: &ExportSource,
    out: &Path,
) -> Result<(PathBuf, LeftOut), ExportError> {
    let taken = || ExportError::OutputExists(out.to_owned());
    match fs::read_dir(out) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(taken());
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(_) => return Err(taken()),
    }
    let beside = parent(out);
    fs::create_dir_all(beside).map_err(FileError::with_context("create", beside))?;
    let staging = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(beside)
        .map_err(FileError::with_context("create a directory in", beside))?;
    let mut left_out = LeftOut::default();
    for index in 0..source.len() {
        let trial = source.trial(index).await?;
        let Some(blob) = file(&trial) else {
            left_out.without_trajectory += 1;
            continue;
        };
        let mut path = layout::trial_dir(staging.path(), &trial.name).into_os_string();
        path.push(".json");
        let path = PathBuf::from(path);
        let directory = parent(&path);
        fs::create_dir_all(directory).map_err(FileError::with_context("create", directory))?;
        let copied = source.store.get_file(&blob.digest, &path).await;
        copied.map_err(|error| store_failed(&trial, error))?;
    }
    sync_tree(staging.path())?;
    // An empty directory is replaced.
    let staging = staging.keep();
    if let Err(error) = fs::rename(&staging, out) {
        let _best_effort = fs::remove_dir_all(&staging);
        return Err(FileError::with_context("move a directory to", out)(error).into());
    }
    sync_dir(beside)?;
    Ok((out.to_owned(), left_out))
}
