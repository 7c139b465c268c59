//! Git LFS: a checkout has pointers, which are replaced by the files: by the program `git-lfs`, or without
//! credentials by `lfs_download`. Without the program the pointers stay, and the tasks that have any
//! cannot run.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::FetchError;
use super::git::GitError;
use super::lfs_download::LfsDownload;
use super::remote::RemoteAccess;

/// First bytes of a pointer.
const SIGNATURE: &[u8] = b"version https://git-lfs.github.com/spec/v";

/// Largest pointer, by the specification.
const POINTER_BYTES: u64 = 1024;

/// Whether files can be got in place of pointers.
pub(super) fn is_available(remote: &RemoteAccess, directory: &Path) -> bool {
    remote.public_agent().is_some() || remote.git(directory, ["lfs", "version"]).is_ok()
}

/// Replaces pointers by their files in a checked out repository. Returns the paths of the pointers
/// that stay because `git-lfs` is missing.
pub(super) fn replace_pointers(
    remote: &RemoteAccess,
    commit: &str,
    repository: &Path,
) -> Result<Vec<PathBuf>, FetchError> {
    let unreadable =
        |path: PathBuf, error: &io::Error| FetchError::Cache { path, reason: error.to_string() };
    let mut pointers = Vec::new();
    find_pointers(repository, &mut pointers).map_err(|(path, error)| unreadable(path, &error))?;
    if pointers.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = pointers.iter().fold(0, |sum: u64, (_, pointer)| sum.saturating_add(size(pointer)));
    if remote.max_bytes().is_some_and(|max_bytes| bytes > max_bytes) {
        return Err(remote.too_large().into_unreachable(remote.origin()));
    }
    let relative = |path: &Path| path.strip_prefix(repository).unwrap_or(path).to_owned();
    if !is_available(remote, repository) {
        return Ok(pointers.iter().map(|(path, _)| relative(path)).collect());
    }
    let failed = |error: GitError| error.into_fetch_error(remote.origin(), commit);
    let source = LfsSource::new(remote, repository).map_err(failed)?;
    for (path, pointer) in pointers {
        let written = replace(&path, |file| source.get(&relative(&path), &pointer, file));
        written.map_err(|error| match error {
            ReplaceError::Source(error) => failed(error),
            ReplaceError::File(error) => unreadable(path.clone(), &error),
        })?;
    }
    Ok(Vec::new())
}

/// The size of the file of a pointer, as the pointer says. A file of another size is an error later.
fn size(pointer: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(pointer);
    let size: Option<u64> =
        text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok());
    size.unwrap_or_default()
}

/// The place that files come from.
enum LfsSource<'a> {
    /// The program `git-lfs` in this repository.
    Program {
        remote: &'a RemoteAccess,
        repository: PathBuf,
    },
    Download(LfsDownload<'a>),
}

impl<'a> LfsSource<'a> {
    fn new(remote: &'a RemoteAccess, repository: &Path) -> Result<Self, GitError> {
        if let Some(agent) = remote.public_agent() {
            return Ok(Self::Download(LfsDownload::new(remote, agent)));
        }
        if remote.obeys_repository() {
            return Ok(Self::Program { remote, repository: repository.to_owned() });
        }
        // `.lfsconfig` of the repository names servers. This one has none.
        let empty = repository.with_extension("lfs");
        fs::create_dir_all(&empty).map_err(|error| GitError::Failed(error.to_string()))?;
        remote.git(&empty, ["init", "-q", "--template="])?;
        remote.git(&empty, ["remote", "add", "origin", remote.origin().url()])?;
        Ok(Self::Program { remote, repository: empty })
    }

    /// Writes the file of a pointer.
    fn get(&self, path: &Path, pointer: &[u8], to: &mut fs::File) -> Result<(), ReplaceError> {
        match self {
            Self::Program { remote, repository } => {
                let args = [OsStr::new("lfs"), OsStr::new("smudge"), path.as_os_str()];
                let content = remote.git_with_input(repository, args, pointer);
                to.write_all(&content.map_err(ReplaceError::Source)?).map_err(ReplaceError::File)
            }
            Self::Download(download) => download.get(pointer, to),
        }
    }
}

/// Why a pointer cannot be replaced.
pub(super) enum ReplaceError {
    /// Its file cannot be got.
    Source(GitError),
    /// Its file cannot be written.
    File(io::Error),
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

/// Replaces a file by one with the content that `write` writes.
fn replace(
    path: &Path,
    write: impl FnOnce(&mut fs::File) -> Result<(), ReplaceError>,
) -> Result<(), ReplaceError> {
    let mode = fs::metadata(path).map_err(ReplaceError::File)?.permissions().mode();
    let directory = path.parent().unwrap_or(Path::new("."));
    let file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(directory);
    let mut file = file.map_err(ReplaceError::File)?;
    write(file.as_file_mut())?;
    let permissions = fs::Permissions::from_mode(mode);
    file.as_file().set_permissions(permissions).map_err(ReplaceError::File)?;
    file.persist(path).map(|_| ()).map_err(|error| ReplaceError::File(error.error))
}

#[cfg(test)]
mod tests {
    use super::super::origin::Origin;
    use super::*;
    use crate::config::FetchAccess;

    #[test]
    fn lfs_files_beyond_the_bound_are_not_fetched() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, size: u64| {
            let oid = "0".repeat(64);
            let pointer = format!(
                "version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n"
            );
            assert_eq!(super::size(pointer.as_bytes()), size);
            fs::write(directory.path().join(name), pointer).expect("written");
        };
        write("first", 600);
        write("second", 500);
        let origin = Origin::new("/nonexistent/repository", Path::new("/"));
        // For a user of a server.
        let remote = RemoteAccess::new(&origin, &FetchAccess::default()).with_max_bytes(1000);
        let result = replace_pointers(&remote, "0", directory.path());
        assert!(matches!(result, Err(FetchError::TooLarge { max_bytes: 1000, .. })), "{result:?}");
    }
}
