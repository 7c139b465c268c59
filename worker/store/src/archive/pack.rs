//! Packing of a directory into an archive that depends only on its content.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rollout_base::confined::ConfinedDir;
use rustix::fs::{FileType, Mode};

use super::path::{ArchivePath, InvalidArchivePath, link_stays_inside};
use super::write::ArchiveWriter;
use super::{ArchiveError, ArchiveLimits, ArchiveTruncation, PackedArchive};

/// Bytes copied at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// Modes of which one makes a file executable.
const EXECUTABLE: Mode = Mode::XUSR.union(Mode::XGRP).union(Mode::XOTH);

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
    let root = ConfinedDir::open(dir).map_err(|error| ArchiveError::io("list", dir, error))?;
    pack_directory(&root, to, limits, filter)
}

/// Packs the content of an open directory as [`pack`] does.
///
/// # Errors
/// As [`pack`].
pub fn pack_directory(
    root: &ConfinedDir,
    to: &Path,
    limits: ArchiveLimits,
    filter: &dyn Fn(&Path, bool) -> FilterDecision,
) -> Result<PackedArchive, ArchiveError> {
    let dir = root.path();
    let mut walk = PackWalk { dir, limits, filter, found: Vec::new(), bytes: 0 };
    walk.directory(root, None)?;
    let mut found = walk.found;
    found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let packed = write(root, to, &found);
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
    /// Walks a directory; without a path, the packed directory itself.
    fn directory(
        &mut self,
        directory: &ConfinedDir,
        path: Option<&ArchivePath>,
    ) -> Result<(), ArchiveError> {
        let failed = |error| ArchiveError::io("list", &self.full(path), error);
        for (name, _) in directory.entries().map_err(failed)? {
            let full = match path {
                Some(path) => [path.as_bytes(), b"/", name.as_bytes()].concat(),
                None => name.as_bytes().to_vec(),
            };
            self.entry(directory, &name, &full)?;
        }
        Ok(())
    }

    /// The path of an entry for messages.
    fn full(&self, path: Option<&ArchivePath>) -> PathBuf {
        path.map_or(self.dir.to_owned(), |path| self.dir.join(path.as_path()))
    }

    fn entry(
        &mut self,
        directory: &ConfinedDir,
        own_name: &OsStr,
        name: &[u8],
    ) -> Result<(), ArchiveError> {
        let relative = Path::new(OsStr::from_bytes(name));
        let failed = |action, error| ArchiveError::io(action, &self.dir.join(relative), error);
        let stat = directory.entry(own_name).map_err(|error| failed("read", error))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let keep = (self.filter)(relative, kind == FileType::Directory);
        if keep == FilterDecision::Exclude {
            return Ok(());
        }
        let path = clean(name)?;
        match kind {
            FileType::Directory => {
                let before = self.found.len();
                let below = directory.directory(Path::new(own_name));
                let below = below.map_err(|error| failed("list", error))?;
                self.directory(&below, Some(&path))?;
                if keep == FilterDecision::Include || self.found.len() > before {
                    self.add(path, PackEntryKind::Directory, 0)?;
                }
                Ok(())
            }
            FileType::RegularFile => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let executable = Mode::from_raw_mode(stat.st_mode).intersects(EXECUTABLE);
                self.add(path, PackEntryKind::File { executable, size }, size)
            }
            FileType::Symlink => {
                let target = directory.link(own_name);
                let target = target.map_err(|error| failed("read the link", error))?;
                let target = target.into_vec();
                if !link_stays_inside(&path, &target) {
                    return Err(not_packable(name, "it is a link that leads or may lead outside"));
                }
                self.add(path, PackEntryKind::Symlink { target }, 0)
            }
            kind => Err(not_packable(name, special(kind))),
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

fn special(kind: FileType) -> &'static str {
    match kind {
        FileType::Socket => "it is a socket",
        FileType::Fifo => "it is a named pipe",
        _ => "it is a device",
    }
}

fn not_packable(name: &[u8], reason: &'static str) -> ArchiveError {
    ArchiveError::NotPackable { path: PathBuf::from(OsStr::from_bytes(name)), reason }
}

fn write(
    root: &ConfinedDir,
    to: &Path,
    found: &[PackEntry],
) -> Result<PackedArchive, ArchiveError> {
    let full = |path: &ArchivePath| root.path().join(path.as_path());
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
                let content = |bytes: &[u8]| writer.content(bytes).map_err(failed);
                // A file replaced by a link since it was listed is not followed out of the
                // directory, one replaced by a pipe is not waited for.
                let file = root.file(path.as_path());
                let file = file.map_err(|error| ArchiveError::io("open", &full(path), error))?;
                read(file, (root.path(), path), *size, &mut buffer, content)?;
                writer.end_file(*size).map_err(failed)?;
            }
        }
    }
    let (_, packed) = writer.finish().map_err(failed)?;
    Ok(packed)
}

/// Copies the content of a file, which must have exactly the size it had when it was listed.
fn read(
    file: File,
    (dir, path): (&Path, &ArchivePath),
    size: u64,
    buffer: &mut [u8],
    mut write: impl FnMut(&[u8]) -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    let mut file = file.take(size + 1);
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
            Err(error) => {
                return Err(ArchiveError::io("read", &dir.join(path.as_path()), error));
            }
        }
    }
}
