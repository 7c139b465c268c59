//! The path of a control socket. It is limited to about a hundred bytes, and paths of run directories
//! are often longer.

use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use rollout_protocol::id::RunId;
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use tempfile::TempDir;
use tokio::net::UnixListener;

use crate::config::env_vars;
use crate::launch::host::StateDir;

/// Longest path of a socket, bytes: macOS allows 103, Linux 107.
const MAX_PATH_BYTES: usize = 103;

/// Mode of the directory: only its user enters it.
const DIRECTORY_MODE: u32 = 0o700;

/// Parent of temporary directories. The variable for temporary files may name a long path.
const TEMPORARY_PARENT: &str = "/tmp";

/// Name prefix of temporary directories of sockets.
const TEMPORARY_PREFIX: &str = "rollout-control-";

/// Characters of the run's id in the name of a socket.
const RUN_DIGITS: usize = 12;

/// Hexadecimal digits of a random number in the name of a socket.
const RANDOM_DIGITS: usize = 16;

/// End of the name of a socket.
const SUFFIX: &str = "sock";

/// A new name for a socket. Copies of a run directory have the same run and epoch, so a random
/// number makes it unique.
pub(super) fn socket_name(run: RunId, epoch: u32) -> String {
    let random: u64 = rand::random();
    format!("{}.{epoch}.{random:0RANDOM_DIGITS$x}.{SUFFIX}", &run.to_string()[..RUN_DIGITS])
}

/// Whether a name is one of [`socket_name`].
fn is_socket_name(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let [run, epoch, random, SUFFIX] = parts[..] else { return false };
    run.len() == RUN_DIGITS
        && run.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && epoch.parse::<u32>().is_ok()
        && random.len() == RANDOM_DIGITS
        && random.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A socket that this process bound. Removed when this is dropped, with its temporary directory.
#[derive(Debug)]
pub(super) struct BoundSocket {
    path: PathBuf,
    /// Its directory, if it has one of its own.
    _temporary: Option<TempDir>,
}

impl BoundSocket {
    /// Binds a socket of this name in a directory of the user: the first whose path is short enough
    /// of the user's runtime directory, the user's state, and a new temporary directory.
    pub(super) fn bind(
        name: &str,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> io::Result<(UnixListener, Self)> {
        let (path, temporary) = choose(name, variable)?;
        let listener = UnixListener::bind(&path)?;
        Ok((listener, Self { path, _temporary: temporary }))
    }

    /// The path of the socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

/// A path for a socket, and its temporary directory if it needs one.
fn choose(
    name: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> io::Result<(PathBuf, Option<TempDir>)> {
    for directory in user_directories(variable) {
        let path = directory.join(name);
        if path.as_os_str().as_bytes().len() <= MAX_PATH_BYTES && make_private(&directory).is_ok() {
            return Ok((path, None));
        }
    }
    let directory = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .permissions(Permissions::from_mode(DIRECTORY_MODE))
        .tempdir_in(TEMPORARY_PARENT)?;
    Ok((directory.path().join(name), Some(directory)))
}

/// The directories for sockets that the user's environment names.
fn user_directories(variable: impl Fn(&str) -> Option<OsString>) -> impl Iterator<Item = PathBuf> {
    let runtime = variable(env_vars::RUNTIME_DIR.name).map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute()).map(|path| path.join("rollout"));
    let state = StateDir::for_user(&variable).map(|state| state.root().join("control"));
    runtime.into_iter().chain(state)
}

/// Makes a directory that only this user enters.
///
/// # Errors
/// It is a link or belongs to another user, whatever this user may do there.
fn make_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    if rustix::fs::fstat(&opened)?.st_uid != geteuid().as_raw() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(rustix::fs::fchmod(&opened, Mode::RWXU)?)
}

/// Removes the socket of a former session, and its directory if that is a temporary one. The path is
/// from a file that others may have written: anything that no session of this user makes is left.
pub(super) fn remove_former(socket: &Path, variable: impl Fn(&str) -> Option<OsString>) {
    let Some(directory) = socket.parent() else { return };
    let name = socket.file_name().unwrap_or_default();
    if !name.to_str().is_some_and(is_socket_name) {
        return;
    }
    let is_temporary = is_temporary(directory);
    if !is_temporary && user_directories(variable).all(|known| known != directory) {
        return;
    }
    let is_own = |path: &Path, is_kind: fn(std::fs::FileType) -> bool| {
        let found = std::fs::symlink_metadata(path);
        found.is_ok_and(|found| is_kind(found.file_type()) && found.uid() == geteuid().as_raw())
    };
    if !is_own(directory, |kind| kind.is_dir()) {
        return;
    }
    if is_own(socket, |kind| kind.is_socket()) {
        drop(std::fs::remove_file(socket));
    }
    if is_temporary {
        drop(std::fs::remove_dir(directory));
    }
}

/// Whether a path is that of a temporary directory of a socket.
fn is_temporary(directory: &Path) -> bool {
    let name = directory.file_name().unwrap_or_default();
    directory.parent() == Some(Path::new(TEMPORARY_PARENT))
        && name.as_bytes().starts_with(TEMPORARY_PREFIX.as_bytes())
}
