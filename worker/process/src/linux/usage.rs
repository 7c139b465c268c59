//! Disk usage of a sandbox's tree, measured while hostile code may change it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, OFlags};
use rustix::io::Errno;

use super::tree::{handle_at, open_handle, read_names};

/// Names read at a time.
const BATCH: usize = 1024;

/// Limit of open directories. Deeper ones are measured afterwards, each with a new walk from the
/// root.
const DEPTH: usize = 64;

/// Limit of directories deferred that way. Only trees made to cause trouble have more.
const MAX_DEFERRED: usize = 1000;

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskUsage {
    /// Bytes of disk, or the first sum above the limit.
    Bytes(u64),
    /// Too many directories are nested too deeply to be measured.
    TooDeep,
}

/// Measures the tree below `root` and stops as soon as it exceeds `limit`. A file with several
/// names counts once, provided that all of them are in the tree.
pub(super) fn measure(root: BorrowedFd<'_>, limit: u64) -> io::Result<DiskUsage> {
    let mut total = 0u64;
    let mut deferred = vec![Vec::new()];
    while let Some(path) = deferred.pop() {
        // Removed or replaced since it was seen.
        let Some(dir) = walk(root, &path)? else { continue };
        let mut open = vec![UsageLevel::new(OsString::new(), dir)?];
        while let Some(level) = open.last_mut() {
            let Some(name) = level.next()? else {
                open.pop();
                continue;
            };
            let Some((blocks, is_dir)) = level.measure_entry(&name)? else { continue };
            total += blocks;
            if total > limit {
                return Ok(DiskUsage::Bytes(total));
            }
            if !is_dir {
                continue;
            }
            if open.len() < DEPTH {
                let below = enter(open[open.len() - 1].listing.fd()?, &name)?;
                open.extend(below.map(|below| UsageLevel::new(name, below)).transpose()?);
                continue;
            }
            if deferred.len() == MAX_DEFERRED {
                return Ok(DiskUsage::TooDeep);
            }
            let names = open.iter().skip(1).map(|level| level.name.clone());
            deferred.push(path.iter().cloned().chain(names).chain([name]).collect());
        }
    }
    Ok(DiskUsage::Bytes(total))
}

/// Opens a directory, unless it was removed or replaced.
fn enter(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Option<OwnedFd>> {
    let opened = handle_at(dir, name)
        .and_then(|handle| open_handle(&handle, OFlags::RDONLY | OFlags::DIRECTORY));
    match opened {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

fn walk(root: BorrowedFd<'_>, path: &[OsString]) -> rustix::io::Result<Option<OwnedFd>> {
    let mut dir = open_handle(root, OFlags::RDONLY | OFlags::DIRECTORY)?;
    for name in path {
        match enter(dir.as_fd(), name)? {
            Some(below) => dir = below,
            None => return Ok(None),
        }
    }
    Ok(Some(dir))
}

struct UsageLevel {
    name: OsString,
    listing: Dir,
    ready: Vec<OsString>,
}

impl UsageLevel {
    fn new(name: OsString, dir: OwnedFd) -> io::Result<Self> {
        Ok(Self { name, listing: Dir::new(dir)?, ready: Vec::new() })
    }

    /// Disk usage of one entry in bytes, and whether it is a directory.
    fn measure_entry(&self, name: &OsStr) -> io::Result<Option<(u64, bool)>> {
        let stat = match rustix::fs::statat(self.listing.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let names = if is_dir { 1 } else { (stat.st_nlink as u64).max(1) };
        Ok(Some((blocks / names, is_dir)))
    }

    fn next(&mut self) -> io::Result<Option<OsString>> {
        if self.ready.is_empty() {
            self.ready = read_names(&mut self.listing, BATCH)?;
        }
        Ok(self.ready.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_usage_counts_hard_links_once_and_no_holes() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::create_dir(dir.path().join("sub")).expect("made");
        std::fs::write(dir.path().join("sub/data"), vec![1; 1 << 20]).expect("written");
        std::fs::hard_link(dir.path().join("sub/data"), dir.path().join("twin")).expect("linked");
        let hole = std::fs::File::create(dir.path().join("hole")).expect("made");
        hole.set_len(1 << 40).expect("set");
        std::os::unix::fs::symlink("/", dir.path().join("out")).expect("linked");
        let root = std::fs::File::open(dir.path()).expect("opened");

        let DiskUsage::Bytes(bytes) = measure(root.as_fd(), u64::MAX).expect("measured") else {
            panic!("not deep");
        };
        assert!((1 << 20..3 << 19).contains(&bytes), "{bytes}");
        let above = measure(root.as_fd(), 1 << 19).expect("measured");
        assert!(matches!(above, DiskUsage::Bytes(bytes) if bytes > 1 << 19), "{above:?}");

        let deep = (0..300).fold(dir.path().to_path_buf(), |path, _| path.join("d"));
        std::fs::create_dir_all(&deep).expect("made");
        std::fs::write(deep.join("hidden"), vec![1; 1 << 20]).expect("written");
        let DiskUsage::Bytes(bytes) = measure(root.as_fd(), u64::MAX).expect("measured") else {
            panic!("not that deep");
        };
        assert!(bytes >= 2 << 20, "{bytes}");
        let broad = (0..DEPTH - 2).fold(dir.path().join("broad"), |path, _| path.join("d"));
        for number in 0..=MAX_DEFERRED {
            std::fs::create_dir_all(broad.join(number.to_string())).expect("made");
        }
        assert_eq!(measure(root.as_fd(), u64::MAX).expect("measured"), DiskUsage::TooDeep);
    }
}
