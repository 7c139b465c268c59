//! Creation of files below a directory through handles: no path is ever resolved through a symbolic
//! link, so nothing can be created outside.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::path::ArchivePath;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory being filled.
pub(super) struct DirectoryWriter {
    root: OwnedFd,
    /// Handles and names of the directories that lead to the last created entry: archives usually
    /// list neighbours one after the other.
    open: Vec<(Vec<u8>, OwnedFd)>,
}

/// Why an entry could not be created.
#[derive(Debug)]
pub(super) enum DirectoryWriteError {
    /// An entry of another kind has the same name.
    Conflict,
    /// The file system does not accept the name.
    InvalidName,
    /// Any other error, not caused by the archive.
    Io(io::Error),
}

impl From<Errno> for DirectoryWriteError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::EXIST => Self::Conflict,
            Errno::NAMETOOLONG | Errno::ILSEQ | Errno::INVAL => Self::InvalidName,
            other => Self::Io(other.into()),
        }
    }
}

impl DirectoryWriter {
    /// The directory at `path`, created if it does not exist. Its parent is trusted.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let root = fs::open(path, DIRECTORY, Mode::empty())?;
        Ok(Self { root, open: Vec::new() })
    }

    /// Creates a directory and its missing parents.
    pub(super) fn directory(&mut self, path: &ArchivePath) -> Result<(), DirectoryWriteError> {
        self.enter(path.as_bytes()).map(|_| ())
    }

    /// Creates an empty file, replacing an earlier one.
    pub(super) fn file(
        &mut self,
        path: &ArchivePath,
        executable: bool,
    ) -> Result<File, DirectoryWriteError> {
        let (parent, name) = path.split_last();
        let parent = self.enter(parent)?;
        let name = OsStr::from_bytes(name);
        let mode = Mode::from(if executable { 0o755 } else { 0o644 });
        let file = match fs::openat(parent, name, NEW_FILE, mode) {
            Err(Errno::EXIST) => {
                remove_file(parent, name)?;
                fs::openat(parent, name, NEW_FILE, mode)?
            }
            opened => opened?,
        };
        fs::fchmod(&file, mode)?;
        Ok(File::from(file))
    }

    /// Creates a symbolic link, replacing an earlier file.
    pub(super) fn symlink(
        &mut self,
        path: &ArchivePath,
        target: &[u8],
    ) -> Result<(), DirectoryWriteError> {
        let (parent, name) = path.split_last();
        let parent = self.enter(parent)?;
        let (name, target) = (OsStr::from_bytes(name), OsStr::from_bytes(target));
        match fs::symlinkat(target, parent, name) {
            Err(Errno::EXIST) => {
                remove_file(parent, name)?;
                Ok(fs::symlinkat(target, parent, name)?)
            }
            made => Ok(made?),
        }
    }

    /// The handle of a directory, created with its missing parents if it does not exist.
    fn enter(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>, DirectoryWriteError> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut depth = 0;
        while let Some((open, _)) = self.open.get(depth)
            && names.peek().is_some_and(|name| name == open)
        {
            names.next();
            depth += 1;
        }
        self.open.truncate(depth);
        for name in names {
            let handle = enter_one(self.current(), OsStr::from_bytes(name))?;
            self.open.push((name.to_vec(), handle));
        }
        Ok(self.current())
    }

    fn current(&self) -> BorrowedFd<'_> {
        self.open.last().map_or(self.root.as_fd(), |(_, handle)| handle.as_fd())
    }
}

fn enter_one(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, DirectoryWriteError> {
    match fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => {
            let mode = Mode::from(0o755);
            fs::mkdirat(parent, name, mode)?;
            let handle = fs::openat(parent, name, DIRECTORY, Mode::empty())?;
            fs::fchmod(&handle, mode)?;
            Ok(handle)
        }
        opened => Ok(opened?),
    }
}

/// Removes a file or link; a directory is a conflict.
fn remove_file(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), DirectoryWriteError> {
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        // macOS returns this for directories.
        Err(Errno::PERM) => Err(DirectoryWriteError::Conflict),
        removed => Ok(removed?),
    }
}
