//! The writable tree of a sandbox, seen from the host.
//!
//! Processes inside may change this tree at any moment, so nothing here resolves a path by name.
//! Every step opens one component relative to the descriptor of the directory before it and never
//! follows a link. New content is prepared in a directory that the sandbox cannot see and then
//! renamed into place; old content is renamed away first. So nothing outside the tree is read or
//! written, whatever happens inside at the same time, and a fresh directory is really empty.
//!
//! Working on the host directly, rather than through a helper inside, needs no process that the
//! sandbox could kill, and also works after the sandbox has ended.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// World-writable with the sticky bit, like `/tmp`.
const WORLD_WRITABLE_MODE: u32 = 0o1777;

/// Mode of parent directories.
const DIRECTORY_MODE: u32 = 0o755;

/// Attempts to clear a path that processes inside keep filling.
const MAX_CLEAR_ATTEMPTS: u32 = 100;

/// A directory of the tree, opened without following links.
const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A handle that only allows to inspect its file.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The tree and its two sibling directories.
#[derive(Debug)]
pub(super) struct SandboxTree {
    root: OwnedFd,
    staging: OwnedFd,
    trash: OwnedFd,
    staging_path: PathBuf,
    next_number: AtomicU64,
}

/// Name of the tree in the directory of an environment.
pub(super) const ROOT: &str = "root";
const STAGING: &str = "staging";
const TRASH: &str = "trash";

impl SandboxTree {
    /// Makes the directories of a new tree in `environment`.
    pub(super) fn create(environment: &Path) -> io::Result<Self> {
        for (name, mode) in [(ROOT, 0o755), (STAGING, 0o700), (TRASH, 0o700)] {
            let path = environment.join(name);
            std::fs::create_dir(&path)?;
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        }
        let open = |name| rustix::fs::open(environment.join(name), DIRECTORY, Mode::empty());
        Ok(Self {
            root: open(ROOT)?,
            staging: open(STAGING)?,
            trash: open(TRASH)?,
            staging_path: environment.join(STAGING),
            next_number: AtomicU64::new(0),
        })
    }

    /// Whether the root directory is still in the directory of its environment. An open one outlives its
    /// removal, and another one may have its name. Blocks.
    pub(super) fn is_in(&self, environment: &Path) -> bool {
        let found = rustix::fs::lstat(environment.join(ROOT));
        let (Ok(found), Ok(own)) = (found, rustix::fs::fstat(&self.root)) else { return false };
        (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
    }

    /// The root directory.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Makes an empty directory, open to every user. Existing content is replaced.
    pub(super) fn fresh_dir(&self, path: &Path) -> io::Result<()> {
        let (name, staged) = self.stage();
        rustix::fs::mkdirat(&self.staging, &name, Mode::from_raw_mode(WORLD_WRITABLE_MODE))?;
        std::fs::set_permissions(
            staged,
            std::os::unix::fs::PermissionsExt::from_mode(WORLD_WRITABLE_MODE),
        )?;
        self.put(&name, path)
    }

    /// Opens an existing directory to every user, or makes it.
    pub(super) fn dir(&self, path: &Path) -> io::Result<()> {
        let inside = rustix::fs::ResolveFlags::IN_ROOT | rustix::fs::ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), inside) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::AGAIN) => {
                self.make_dirs(path)?
            }
            // Its mode keeps its owner out.
            Err(Errno::ACCESS) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), inside) {
                    Ok(handle) => open_handle(&handle, DIRECTORY)?,
                    Err(_) => self.make_dirs(path)?,
                }
            }
            Err(error) => return Err(error.into()),
        };
        Ok(rustix::fs::fchmod(&dir, Mode::from_raw_mode(WORLD_WRITABLE_MODE))?)
    }

    /// Makes a directory and its parents if absent.
    pub(super) fn make_dirs(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut dir = rustix::fs::openat(&self.root, ".", DIRECTORY, Mode::empty())?;
        for name in path {
            dir = self.enter(&dir, name)?;
        }
        Ok(dir)
    }

    /// Writes a file, with its parent directories.
    pub(super) fn file(
        &self,
        path: &Path,
        content: &mut dyn io::Read,
        mode: u32,
    ) -> io::Result<()> {
        let (name, _) = self.stage();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.staging, &name, flags, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(file);
        io::copy(content, &mut file)?;
        file.flush()?;
        // The umask cuts the mode at creation.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        self.put(&name, path)
    }

    /// Makes a symbolic link, with its parent directories.
    pub(super) fn link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let (name, _) = self.stage();
        rustix::fs::symlinkat(target, &self.staging, &name)?;
        self.put(&name, path)
    }

    /// A directory that `fill` makes where the sandbox cannot see it, on the tree's file system.
    pub(super) fn staged_dir(
        &self,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let (name, staged) = self.stage();
        rustix::fs::mkdirat(&self.staging, &name, Mode::from_raw_mode(DIRECTORY_MODE))?;
        fill(&staged)?;
        Ok(staged)
    }

    /// Moves a staged file or link to its path; for a directory, makes one if absent.
    pub(super) fn merge(&self, staged: &Path, path: &Path) -> io::Result<()> {
        if std::fs::symlink_metadata(staged)?.is_dir() {
            self.make_dirs(path)?;
            return Ok(());
        }
        let name = staged.strip_prefix(&self.staging_path).map_err(io::Error::other)?;
        self.put(name, path)
    }

    /// Puts a directory that `fill` makes where the sandbox cannot see it. Existing content is
    /// replaced.
    pub(super) fn filled_dir(
        &self,
        path: &Path,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let (name, staged) = self.stage();
        rustix::fs::mkdirat(&self.staging, &name, Mode::from_raw_mode(DIRECTORY_MODE))?;
        std::fs::set_permissions(
            &staged,
            std::os::unix::fs::PermissionsExt::from_mode(DIRECTORY_MODE),
        )?;
        fill(&staged)?;
        self.put(&name, path)
    }

    /// Whether a directory is at `path`, links not followed.
    pub(super) fn is_dir(&self, path: &Path) -> bool {
        let flags = rustix::fs::ResolveFlags::IN_ROOT | rustix::fs::ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(&self.root, path, DIRECTORY, Mode::empty(), flags).is_ok()
    }

    /// The entry at `path`: links on the way are followed inside the tree, the last one is not.
    pub(super) fn find(&self, path: &Path) -> io::Result<Option<SandboxTreeEntry>> {
        let Some(name) = path.file_name() else { return Ok(None) };
        let above = path.parent().filter(|above| *above != Path::new(""));
        let above = above.unwrap_or(Path::new("."));
        let inside = rustix::fs::ResolveFlags::IN_ROOT | rustix::fs::ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let found = retry(|| rustix::fs::openat2(&self.root, above, flags, Mode::empty(), inside))
            .and_then(|above| rustix::fs::openat(above, name, HANDLE, Mode::empty()));
        match found {
            Ok(handle) => Ok(Some(SandboxTreeEntry { name: name.to_owned(), handle })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A name in the staging directory, and its path.
    fn stage(&self) -> (String, PathBuf) {
        let name = self.next_number.fetch_add(1, Ordering::Relaxed).to_string();
        let path = self.staging_path.join(&name);
        (name, path)
    }

    /// Renames a staged entry to `path`. A directory never merges with an existing one.
    fn put(&self, staged: impl AsRef<Path>, path: &Path) -> io::Result<()> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let above = self.make_dirs(path.parent().unwrap_or(Path::new("")))?;
        for _ in 0..MAX_CLEAR_ATTEMPTS {
            let keep = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&self.staging, staged.as_ref(), &above, name, keep) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => self.clear(&above, name)?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Opens a directory; makes it if there is none.
    fn enter(&self, above: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
        for _ in 0..MAX_CLEAR_ATTEMPTS {
            match rustix::fs::openat(above, name, DIRECTORY, Mode::empty()) {
                Ok(dir) => return Ok(dir),
                Err(Errno::NOENT) => {}
                Err(Errno::NOTDIR | Errno::LOOP) => self.clear(above, name)?,
                Err(Errno::ACCESS) => {
                    let handle = rustix::fs::openat(above, name, HANDLE, Mode::empty())?;
                    return Ok(open_handle(&handle, DIRECTORY)?);
                }
                Err(error) => return Err(error.into()),
            }
            match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::NotADirectory.into())
    }

    /// Moves an entry out of the tree.
    fn clear(&self, above: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let (trashed, _) = self.stage();
        match rustix::fs::renameat(above, name, &self.trash, &trashed) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ACCESS) => {
                // Moving a directory rewrites its `..`, which its mode may forbid.
                let handle = rustix::fs::openat(above, name, HANDLE, Mode::empty())?;
                allow_owner(&handle)?;
                Ok(rustix::fs::renameat(above, name, &self.trash, &trashed)?)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// An entry of a tree.
#[derive(Debug)]
pub(super) struct SandboxTreeEntry {
    /// Its name.
    pub(super) name: OsString,
    /// A handle of it that is not opened for reading yet.
    pub(super) handle: OwnedFd,
}

/// Repeats a lookup that lost a race against renames.
fn retry<T>(mut lookup: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    for _ in 0..MAX_CLEAR_ATTEMPTS {
        match lookup() {
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    lookup()
}

/// A handle of a directory's entry: never follows links, never blocks, calls no device driver.
pub(super) fn handle_at(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, name, HANDLE, Mode::empty())
}

/// Opens exactly the file of a handle, which must be a regular file or a directory. If the owner
/// lacks the permission, it is added first.
pub(super) fn open_handle(handle: impl AsFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = (flags | OFlags::CLOEXEC | OFlags::NONBLOCK) - OFlags::NOFOLLOW;
    let handle = handle.as_fd();
    match rustix::fs::open(proc_fd_path(handle), flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            allow_owner(handle)?;
            rustix::fs::open(proc_fd_path(handle), flags, Mode::empty())
        }
        other => other,
    }
}

/// Gives the owner all permissions on the file of `handle`.
pub(super) fn allow_owner(handle: impl AsFd) -> rustix::io::Result<()> {
    let handle = handle.as_fd();
    let mode = rustix::fs::fstat(handle)?.st_mode;
    let mode = Mode::from_raw_mode(mode & 0o7777 | 0o700);
    rustix::fs::chmod(proc_fd_path(handle), mode)
}

/// The path under which the kernel shows an open file to its process.
fn proc_fd_path(handle: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle))
}

/// At most `most` names of a directory, starting where the last call ended.
pub(super) fn read_names(dir: &mut Dir, most: usize) -> rustix::io::Result<Vec<OsString>> {
    let mut found = Vec::new();
    while found.len() < most {
        let Some(entry) = dir.read() else { break };
        let name = CString::from(entry?.file_name()).into_bytes();
        if name != b"." && name != b".." {
            found.push(OsString::from_vec(name));
        }
    }
    Ok(found)
}

/// The path relative to the root of an absolute path without `..`.
pub(super) fn relative(path: &str) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for component in Path::new(path.strip_prefix('/')?).components() {
        match component {
            Component::Normal(name) if !name.as_bytes().contains(&0) => clean.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(clean)
}

/// Removes an entry that is not a directory.
pub(super) fn unlink(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<()> {
    rustix::fs::unlinkat(dir, name, AtFlags::empty())
}
