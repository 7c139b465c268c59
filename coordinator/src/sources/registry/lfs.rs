//! Git LFS: a checkout has pointers, which the program `git-lfs` replaces by the files. Without the
//! program the pointers stay, and the tasks that have any cannot run.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::FetchError;
use super::git;
use super::origin::Origin;

/// First bytes of a pointer.
const SIGNATURE: &[u8] = b"version https://git-lfs.github.com/spec/v";

/// Largest pointer, by the specification.
const POINTER_BYTES: u64 = 1024;

/// Whether `git-lfs` is installed.
pub(super) fn is_available(directory: &Path) -> bool {
    git::run(directory, ["lfs", "version"]).is_ok()
}

/// Replaces pointers by their files in a checked out repository. Returns the paths of the pointers
/// that stay because `git-lfs` is missing.
pub(super) fn replace_pointers(
    origin: &Origin,
    commit: &str,
    repository: &Path,
) -> Result<Vec<PathBuf>, FetchError> {
    let mut pointers = Vec::new();
    find_pointers(repository, &mut pointers)
        .map_err(|(path, error)| FetchError::Cache { path, reason: error.to_string() })?;
    if pointers.is_empty() {
        return Ok(Vec::new());
    }
    let relative = |path: &Path| path.strip_prefix(repository).unwrap_or(path).to_owned();
    if !is_available(repository) {
        return Ok(pointers.iter().map(|(path, _)| relative(path)).collect());
    }
    for (path, pointer) in pointers {
        let relative = relative(&path);
        let args = ["lfs".into(), "smudge".into(), relative.into_os_string()];
        let content = git::with_input(repository, args, &pointer)
            .map_err(|error| error.into_fetch_error(origin, commit))?;
        replace(&path, &content)
            .map_err(|error| FetchError::Cache { path: path.clone(), reason: error.to_string() })?;
    }
    Ok(Vec::new())
}

/// Collects every pointer below a directory. Symlinks are not followed. An unreadable entry is an
/// error: an overlooked pointer would be used as a file.
fn find_pointers(
    dir: &Path,
    pointers: &mut Vec<(PathBuf, Vec<u8>)>,
) -> Result<(), (PathBuf, std::io::Error)> {
    let at = |error| (dir.to_owned(), error);
    for entry in fs::read_dir(dir).map_err(at)? {
        let entry = entry.map_err(at)?;
        let path = entry.path();
        let metadata = entry.metadata().map_err(|error| (path.clone(), error))?;
        if metadata.is_dir() && entry.file_name() != ".git" {
            find_pointers(&path, pointers)?;
        } else if metadata.is_file() && metadata.len() <= POINTER_BYTES {
            let mut text = Vec::new();
            fs::File::open(&path)
                .and_then(|mut file| file.read_to_end(&mut text))
                .map_err(|error| (path.clone(), error))?;
            if text.starts_with(SIGNATURE) {
                pointers.push((path, text));
            }
        }
    }
    Ok(())
}

fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(directory)?;
    file.write_all(content)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}
