//! Reading below a directory whose content others made. Links are resolved inside the directory; a
//! link that leads out of it is an error, whether its target exists or not. Every step is taken through
//! handles, so an entry that is replaced meanwhile leads nowhere else.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::regular_file;

/// Links on the way to one entry, as many as the system follows.
const MAX_LINKS: usize = 40;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory that reading does not leave.
#[derive(Debug)]
pub struct ConfinedDir {
    handle: OwnedFd,
    /// Its path without links, which absolute links inside it begin with.
    path: PathBuf,
}

/// Kind of an entry, after links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfinedKind {
    /// A directory.
    Directory,
    /// A regular file of this size in bytes.
    File(u64),
    /// A pipe, device or socket.
    Special,
}

/// A path that leads out of its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it leads out of the directory through a link or `..`")]
struct LeadsOutside;

/// Whether an error of this module says that a path leads out of its directory.
pub fn leads_outside(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<LeadsOutside>())
}

/// Whether an error says that there is no such entry.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl ConfinedDir {
    /// The directory at a path, which is trusted: its own links are followed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::fs::canonicalize(path)?;
        let handle = rustix::fs::open(&path, DIRECTORY, Mode::empty())?;
        Ok(Self { handle, path })
    }

    /// Its path without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it. Links in that one may not leave it.
    ///
    /// # Errors
    /// Those of the system; see also [`leads_outside`].
    pub fn directory(&self, path: &Path) -> io::Result<Self> {
        let Place { directories, name: None } = self.find(path)? else {
            return Err(Errno::NOTDIR.into());
        };
        let path = self.path_of(&directories, None);
        let handle = match directories.into_iter().next_back() {
            Some((_, handle)) => handle,
            None => self.handle.try_clone()?,
        };
        Ok(Self { handle, path })
    }

    /// Opens a regular file in it. Never waits.
    ///
    /// # Errors
    /// Those of the system; see also [`leads_outside`]. Of kind [`io::ErrorKind::InvalidInput`] for a
    /// pipe, a device, a socket and a file of the kernel.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        let place = self.find(path)?;
        let Some((name, stat)) = &place.name else { return Err(Errno::ISDIR.into()) };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(regular_file::no_regular_file());
        }
        regular_file::open_entry(self.innermost(&place.directories), Path::new(name))
    }

    /// Reads a regular file of at most `limit` bytes. No more are read.
    ///
    /// # Errors
    /// As [`ConfinedDir::file`]; of kind [`io::ErrorKind::FileTooLarge`] if it is larger.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        regular_file::read_at_most(self.file(path)?, limit)
    }

    /// Reads a regular file of at most `limit` bytes as a text.
    ///
    /// # Errors
    /// As [`ConfinedDir::read`]; of kind [`io::ErrorKind::InvalidData`] if it is not UTF-8.
    pub fn read_text(&self, path: &Path, limit: u64) -> io::Result<String> {
        regular_file::text(self.read(path, limit)?)
    }

    /// The kind of an entry; `None` if there is none.
    ///
    /// # Errors
    /// Those of the system; see also [`leads_outside`].
    pub fn kind(&self, path: &Path) -> io::Result<Option<ConfinedKind>> {
        let place = match self.find(path) {
            Err(error) if is_absent(&error) => return Ok(None),
            found => found?,
        };
        Ok(Some(match place.name {
            None => ConfinedKind::Directory,
            Some((_, stat)) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    ConfinedKind::File(u64::try_from(stat.st_size).unwrap_or(0))
                }
                _ => ConfinedKind::Special,
            },
        }))
    }

    /// Whether there is a regular file that does not lie outside.
    pub fn has_file(&self, path: &Path) -> bool {
        matches!(self.kind(path), Ok(Some(ConfinedKind::File(_))))
    }

    /// Whether there is a directory that does not lie outside.
    pub fn has_directory(&self, path: &Path) -> bool {
        matches!(self.kind(path), Ok(Some(ConfinedKind::Directory)))
    }

    /// The path of an entry without links.
    ///
    /// # Errors
    /// As [`ConfinedDir::kind`]; those of absent entries too.
    pub fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let place = self.find(path)?;
        Ok(self.path_of(&place.directories, place.name.as_ref().map(|(name, _)| name.as_os_str())))
    }

    /// Names and types of its entries. Links are not followed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn entries(&self) -> io::Result<Vec<(OsString, FileType)>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            let entry = entry?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => FileType::from_raw_mode(self.entry(&name)?.st_mode),
                kind => kind,
            };
            entries.push((name, kind));
        }
        Ok(entries)
    }

    /// Metadata of its own entry. A link is not followed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn entry(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The target of its own entry, a link.
    ///
    /// # Errors
    /// Those of the system.
    pub fn link(&self, name: &OsStr) -> io::Result<OsString> {
        Ok(OsString::from_vec(rustix::fs::readlinkat(&self.handle, name, Vec::new())?.into_bytes()))
    }

    fn innermost<'a>(&'a self, directories: &'a [(OsString, OwnedFd)]) -> BorrowedFd<'a> {
        directories.last().map_or(self.handle.as_fd(), |(_, handle)| handle.as_fd())
    }

    fn path_of(&self, directories: &[(OsString, OwnedFd)], name: Option<&OsStr>) -> PathBuf {
        let mut path = self.path.clone();
        path.extend(directories.iter().map(|(name, _)| name.as_os_str()).chain(name));
        path
    }

    /// Walks to an entry, name by name.
    fn find(&self, path: &Path) -> io::Result<Place> {
        let mut directories: Vec<(OsString, OwnedFd)> = Vec::new();
        // The next name is the last.
        let mut left = Vec::new();
        let mut links = 0;
        self.add(path, &mut left, &mut directories)?;
        while let Some(name) = left.pop() {
            if name == ".." {
                directories.pop().ok_or_else(outside)?;
                continue;
            }
            let directory = self.innermost(&directories);
            let stat = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = rustix::fs::readlinkat(directory, &name, Vec::new())?;
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    self.add(&target, &mut left, &mut directories)?;
                }
                FileType::Directory => {
                    let handle = rustix::fs::openat(directory, &name, DIRECTORY, Mode::empty())?;
                    directories.push((name, handle));
                }
                _ if left.is_empty() => return Ok(Place { directories, name: Some((name, stat)) }),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Ok(Place { directories, name: None })
    }

    /// Puts the names of a path before those that are left. An absolute path begins at this directory.
    fn add(
        &self,
        path: &Path,
        left: &mut Vec<OsString>,
        directories: &mut Vec<(OsString, OwnedFd)>,
    ) -> io::Result<()> {
        let below = if path.is_absolute() {
            directories.clear();
            path.strip_prefix(&self.path).map_err(|_| outside())?
        } else {
            path
        };
        left.extend(below.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        }));
        Ok(())
    }
}

/// A place below a directory.
struct Place {
    /// The directories that lead to it, with handles.
    directories: Vec<(OsString, OwnedFd)>,
    /// Its name in the last of them, unless that is the place.
    name: Option<(OsString, Stat)>,
}

fn outside() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, LeadsOutside)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory `task` with links, beside a file and a directory that are not in it.
    fn with_links() -> (tempfile::TempDir, ConfinedDir) {
        let place = tempfile::tempdir().expect("a directory");
        let task = place.path().join("task");
        fs::create_dir_all(task.join("sub/deep")).expect("made");
        fs::create_dir(place.path().join("other")).expect("made");
        fs::write(place.path().join("secret"), "secret").expect("written");
        fs::write(place.path().join("other/file"), "secret").expect("written");
        fs::write(task.join("file"), "text").expect("written");
        let absolute = task.canonicalize().expect("a path").join("file");
        for (target, link) in [
            ("../file", "sub/link"),
            ("sub", "directory"),
            ("directory/deep/../link", "chain"),
            (absolute.to_str().expect("UTF-8"), "absolute"),
            ("missing", "dangling"),
            ("loop", "loop"),
            ("../secret", "out"),
            ("../other", "out-directory"),
            ("../missing", "out-missing"),
            ("../task/file", "out-and-in"),
            ("sub/../../secret", "out-deep"),
            ("/etc/passwd", "out-absolute"),
            ("/dev/zero", "out-device"),
        ] {
            symlink(target, task.join(link)).expect("a link");
        }
        let dir = ConfinedDir::open(&task).expect("a directory");
        (place, dir)
    }

    fn read(dir: &ConfinedDir, path: &str) -> io::Result<String> {
        dir.read_text(Path::new(path), 100)
    }

    #[test]
    fn link_inside_is_followed_and_link_out_is_refused() {
        let (_place, dir) = with_links();
        for path in ["file", "sub/link", "chain", "absolute", "directory/link", "./sub/../file"] {
            assert_eq!(read(&dir, path).expect(path), "text", "{path}");
            assert_eq!(
                dir.resolve(Path::new(path)).expect(path),
                dir.path().join("file"),
                "{path}"
            );
        }
        for path in [
            "out",
            "out-directory/file",
            "out-missing",
            "out-and-in",
            "out-deep",
            "out-absolute",
            "out-device",
            "../secret",
            "/etc/passwd",
        ] {
            let error = read(&dir, path).expect_err(path);
            assert!(leads_outside(&error), "{path}: {error}");
            assert!(dir.kind(Path::new(path)).is_err(), "{path}");
            assert!(!dir.has_file(Path::new(path)), "{path}");
        }
        assert!(dir.directory(Path::new("out-directory")).is_err());
        assert!(leads_outside(&read(&dir, "/").expect_err("outside")));
    }

    #[test]
    fn kind_of_absent_dangling_and_special_entries_is_told() {
        let (_place, dir) = with_links();
        let pipe = dir.path().join("pipe");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).expect("a pipe");
        let kind = |path: &str| dir.kind(Path::new(path)).expect("readable");
        assert_eq!(kind("file"), Some(ConfinedKind::File(4)));
        assert_eq!(kind("directory"), Some(ConfinedKind::Directory));
        assert_eq!(kind(""), Some(ConfinedKind::Directory));
        assert_eq!(kind("pipe"), Some(ConfinedKind::Special));
        for absent in ["absent", "dangling", "file/below"] {
            assert_eq!(kind(absent), None, "{absent}");
        }
        assert!(dir.kind(Path::new("loop")).is_err());
        assert_eq!(read(&dir, "pipe").expect_err("a pipe").kind(), io::ErrorKind::InvalidInput);
        let large = dir.read(Path::new("file"), 3).expect_err("too large");
        assert_eq!(large.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn directory_in_directory_confines_further() {
        let (_place, dir) = with_links();
        let below = dir.directory(Path::new("directory")).expect("a directory");
        assert_eq!(below.path(), dir.path().join("sub"));
        assert!(leads_outside(&read(&below, "link").expect_err("outside of it")));
        let mut names: Vec<_> = below.entries().expect("listed");
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let expected = [("deep", FileType::Directory), ("link", FileType::Symlink)];
        assert_eq!(names, expected.map(|(name, kind)| (OsString::from(name), kind)));
        assert_eq!(below.link(OsStr::new("link")).expect("a link"), "../file");
    }
}
