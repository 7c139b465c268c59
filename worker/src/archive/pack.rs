//! Packing of a directory into an archive that depends only on its content.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::path::{ArchivePath, InvalidArchivePath, link_stays_inside};
use super::write::ArchiveWriter;
use super::{ArchiveError, ArchiveLimits, ArchiveTruncation, PackedArchive};

/// Bytes copied at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// Decision of a filter about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterDecision {
    /// It is packed.
    Include,
    /// It is left out; a directory with everything below it.
    Exclude,
    /// A directory that is packed only if something below it is.
    IncludeIfNotEmpty,
}

/// Packs the content of `dir` into a new archive at `to`, which must not exist and must not be
/// inside `dir`. Members are sorted by the bytes of their paths; owners and times are zero; of the
/// modes only the executable bit is kept. Equal trees give equal bytes. `filter` receives every
/// path below `dir` and whether it is a directory.
///
/// This blocks: call it from a blocking thread.
///
/// # Errors
/// [`ArchiveError`]: for links that lead outside, for special files, for paths that
/// [`extract_trusted`](super::extract_trusted) would refuse, beyond `limits`, and if the disk
/// fails. No archive is left then.
pub fn pack(
    dir: &Path,
    to: &Path,
    limits: ArchiveLimits,
    filter: &dyn Fn(&Path, bool) -> FilterDecision,
) -> Result<PackedArchive, ArchiveError> {
    let mut walk = PackWalk { dir, limits, filter, found: Vec::new(), bytes: 0 };
    walk.directory(None)?;
    let mut found = walk.found;
    found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let packed = write(dir, to, &found);
    if packed.is_err() {
        // Best effort: the original error is more important.
        let _removed = std::fs::remove_file(to);
    }
    packed
}

struct PackWalk<'a> {
    dir: &'a Path,
    limits: ArchiveLimits,
    filter: &'a dyn Fn(&Path, bool) -> FilterDecision,
    found: Vec<PackEntry>,
    bytes: u64,
}

/// A member to pack.
struct PackEntry {
    path: ArchivePath,
    kind: PackEntryKind,
}

enum PackEntryKind {
    Directory,
    File { executable: bool, size: u64 },
    Symlink { target: Vec<u8> },
}

impl PackWalk<'_> {
    /// Walks a directory; `None` is the packed directory itself.
    fn directory(&mut self, path: Option<&ArchivePath>) -> Result<(), ArchiveError> {
        let full = path.map_or(self.dir.to_owned(), |path| self.dir.join(path.as_path()));
        let failed = |error| ArchiveError::io("list", &full, error);
        for entry in std::fs::read_dir(&full).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = match path {
                Some(path) => [path.as_bytes(), b"/", name.as_bytes()].concat(),
                None => name.as_bytes().to_vec(),
            };
            self.entry(&name)?;
        }
        Ok(())
    }

    fn entry(&mut self, name: &[u8]) -> Result<(), ArchiveError> {
        let relative = Path::new(OsStr::from_bytes(name));
        let full = self.dir.join(relative);
        let metadata = std::fs::symlink_metadata(&full)
            .map_err(|error| ArchiveError::io("read", &full, error))?;
        let kind = metadata.file_type();
        let keep = (self.filter)(relative, kind.is_dir());
        if keep == FilterDecision::Exclude {
            return Ok(());
        }
        let path = clean(name)?;
        if kind.is_dir() {
            let before = self.found.len();
            self.directory(Some(&path))?;
            if keep == FilterDecision::Include || self.found.len() > before {
                self.add(path, PackEntryKind::Directory, 0)?;
            }
            Ok(())
        } else if kind.is_file() {
            let (size, executable) = (metadata.len(), metadata.permissions().mode() & 0o111 != 0);
            self.add(path, PackEntryKind::File { executable, size }, size)
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&full)
                .map_err(|error| ArchiveError::io("read the link", &full, error))?;
            let target = target.as_os_str().as_bytes().to_vec();
            if !link_stays_inside(&path, &target) {
                return Err(not_packable(name, "it is a link that leads or may lead outside"));
            }
            self.add(path, PackEntryKind::Symlink { target }, 0)
        } else {
            Err(not_packable(name, special(kind)))
        }
    }

    fn add(
        &mut self,
        path: ArchivePath,
        kind: PackEntryKind,
        bytes: u64,
    ) -> Result<(), ArchiveError> {
        self.found.push(PackEntry { path, kind });
        self.bytes = self.bytes.saturating_add(bytes);
        let cut = if self.found.len() as u64 > self.limits.entries {
            ArchiveTruncation::Entries(self.limits.entries)
        } else if self.bytes > self.limits.bytes {
            ArchiveTruncation::Bytes(self.limits.bytes)
        } else {
            return Ok(());
        };
        Err(ArchiveError::TooLarge { path: self.dir.to_owned(), cut })
    }
}

fn clean(name: &[u8]) -> Result<ArchivePath, ArchiveError> {
    let reason = match ArchivePath::clean(name) {
        Ok(Some(path)) => return Ok(path),
        Err(InvalidArchivePath::Deep) => "it is too deep",
        Err(InvalidArchivePath::Long) => "its path is too long",
        Ok(None) | Err(InvalidArchivePath::Nul | InvalidArchivePath::Parent) => {
            "its name is invalid"
        }
    };
    Err(not_packable(name, reason))
}

fn special(kind: std::fs::FileType) -> &'static str {
    if kind.is_socket() {
        "it is a socket"
    } else if kind.is_fifo() {
        "it is a named pipe"
    } else {
        "it is a device"
    }
}

fn not_packable(name: &[u8], reason: &'static str) -> ArchiveError {
    ArchiveError::NotPackable { path: PathBuf::from(OsStr::from_bytes(name)), reason }
}

fn write(dir: &Path, to: &Path, found: &[PackEntry]) -> Result<PackedArchive, ArchiveError> {
    let failed = |error| ArchiveError::io("write", to, error);
    let file = File::create_new(to).map_err(|error| ArchiveError::io("create", to, error))?;
    let mut writer = ArchiveWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file));
    let mut buffer = vec![0; BUFFER_BYTES];
    for PackEntry { path, kind } in found {
        let name = path.as_bytes();
        match kind {
            PackEntryKind::Directory => writer.directory(name).map_err(failed)?,
            PackEntryKind::Symlink { target } => writer.symlink(name, target).map_err(failed)?,
            PackEntryKind::File { executable, size } => {
                writer.begin_file(name, *executable, *size).map_err(failed)?;
                read(dir, path, *size, &mut buffer, |bytes| writer.content(bytes).map_err(failed))?;
                writer.end_file(*size).map_err(failed)?;
            }
        }
    }
    let (_, packed) = writer.finish().map_err(failed)?;
    Ok(packed)
}

/// Copies the content of a file, which must have exactly the size it had when it was listed.
fn read(
    dir: &Path,
    path: &ArchivePath,
    size: u64,
    buffer: &mut [u8],
    mut write: impl FnMut(&[u8]) -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    let full = dir.join(path.as_path());
    // A file replaced by a link or pipe since it was listed must neither be followed nor waited
    // for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(&full, flags, Mode::empty())
        .map_err(|error| ArchiveError::io("open", &full, error))?;
    let mut file = File::from(file).take(size + 1);
    let mut left = size;
    loop {
        match file.read(buffer) {
            Ok(0) if left == 0 => return Ok(()),
            Ok(read) if read > 0 && read as u64 <= left => {
                write(&buffer[..read])?;
                left -= read as u64;
            }
            Ok(_) => return Err(ArchiveError::Changed { path: path.as_path().to_owned() }),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ArchiveError::io("read", &full, error)),
        }
    }
}
