//! The directory of a control socket. The path of a socket is limited to about a hundred bytes, and
//! paths of run directories are often longer.

use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::env_vars;
use crate::launch::host::StateDir;

/// Longest path of a socket, bytes: macOS allows 103, Linux 107.
const MAX_PATH_BYTES: usize = 103;

/// Mode of the directory: only its user enters it.
const DIRECTORY_MODE: u32 = 0o700;

/// Name prefix of temporary directories of sockets.
const TEMPORARY_PREFIX: &str = "rollout-control-";

/// A path for a socket of this name, in a directory of the user: the first that is short enough of
/// the user's runtime directory, the user's state, and a new temporary directory.
pub(super) fn socket_path(
    name: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> io::Result<PathBuf> {
    let runtime = variable(env_vars::RUNTIME_DIR.name).map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute()).map(|path| path.join("rollout"));
    let state = StateDir::for_user(&variable).map(|state| state.root().join("control"));
    for directory in runtime.into_iter().chain(state) {
        let path = directory.join(name);
        if path.as_os_str().as_bytes().len() <= MAX_PATH_BYTES && own(&directory).is_ok() {
            return Ok(path);
        }
    }
    // The variable for temporary files may name a long path, too.
    let directory = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .permissions(Permissions::from_mode(DIRECTORY_MODE))
        .tempdir_in("/tmp")?;
    Ok(directory.keep().join(name))
}

/// Makes a directory that only this user enters.
fn own(directory: &Path) -> io::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory);
    made?;
    let found = std::fs::symlink_metadata(directory)?;
    if !found.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    // Fails for a directory of another user.
    std::fs::set_permissions(directory, Permissions::from_mode(DIRECTORY_MODE))
}

/// Removes a socket, and its directory if that is a temporary one. A missing one is no error.
pub(super) fn remove(socket: &Path) {
    use std::os::unix::fs::FileTypeExt as _;
    let is_socket =
        std::fs::symlink_metadata(socket).is_ok_and(|found| found.file_type().is_socket());
    if is_socket {
        drop(std::fs::remove_file(socket));
    }
    let directory = socket.parent().filter(|directory| {
        let name = directory.file_name().unwrap_or_default();
        name.as_bytes().starts_with(TEMPORARY_PREFIX.as_bytes())
    });
    if let Some(directory) = directory {
        drop(std::fs::remove_dir(directory));
    }
}
