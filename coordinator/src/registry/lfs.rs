//! Files that a repository keeps elsewhere (Git LFS): what is checked out is a pointer, which the
//! program `git-lfs` turns into the file, where it is installed.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::FetchError;
use super::git;
use super::origin::Origin;

/// How a pointer begins.
const SIGNATURE: &[u8] = b"version https://git-lfs.github.com/spec/v";

/// Largest pointer, by the format's own words.
const POINTER_BYTES: u64 = 1024;

/// Puts the files in the place of their pointers in a checked out repository. What is odd is
/// answered.
pub(super) fn fill(
    origin: &Origin,
    commit: &str,
    repository: &Path,
) -> Result<Vec<String>, FetchError> {
    let mut pointers = Vec::new();
    find(repository, &mut pointers);
    if pointers.is_empty() {
        return Ok(Vec::new());
    }
    if git::run(repository, ["lfs", "version"]).is_err() {
        return Ok(vec![format!(
            "{}: {} files are kept in Git LFS, and the program `git-lfs` is not there: \
             tasks see their pointers",
            origin.shown(),
            pointers.len()
        )]);
    }
    for (path, pointer) in pointers {
        let relative = path.strip_prefix(repository).unwrap_or(&path).to_owned();
        let args = ["lfs".into(), "smudge".into(), relative.into_os_string()];
        let content = git::with_input(repository, args, &pointer)
            .map_err(|error| error.at(origin, commit))?;
        replace(&path, &content)
            .map_err(|error| FetchError::Cache { path: path.clone(), reason: error.to_string() })?;
    }
    Ok(Vec::new())
}

/// Every pointer below a directory. Links are not followed.
fn find(dir: &Path, pointers: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
        if metadata.is_dir() && entry.file_name() != ".git" {
            find(&path, pointers);
        } else if metadata.is_file() && metadata.len() <= POINTER_BYTES {
            let mut text = Vec::new();
            let read = fs::File::open(&path).and_then(|mut file| file.read_to_end(&mut text));
            if read.is_ok() && text.starts_with(SIGNATURE) {
                pointers.push((path, text));
            }
        }
    }
}

fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(directory)?;
    file.write_all(content)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}
