//! Removal of trees made by hostile code: of any depth and size, with any modes.
//!
//! Directories are moved up to one flat directory as they are met. So neither memory nor open files
//! grow with depth, and every name is relative to an open directory.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::tree::{allow_owner, handle_at, open_handle, read_names, unlink};

/// Names read at a time.
const BATCH: usize = 1024;

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes the directory at `path` with all its contents. No process may be using it. A directory
/// that no longer exists is a success.
///
/// # Errors
/// The first entry that could not be removed. Everything else has been removed.
pub(super) fn remove_dir(path: &Path) -> io::Result<()> {
    let flat = match rustix::fs::open(path, DIRECTORY, Mode::empty()) {
        Ok(flat) => flat,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    empty(&flat)?;
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Empties `flat`, into which deeper directories are moved.
fn empty(flat: &OwnedFd) -> io::Result<()> {
    let mut moved = 0u64;
    loop {
        let mut listing = Dir::read_from(flat)?;
        let (mut seen, mut removed, mut problem) = (0u64, 0u64, None);
        loop {
            let batch = read_names(&mut listing, BATCH)?;
            if batch.is_empty() {
                break;
            }
            for name in batch {
                seen += 1;
                match remove_entry(flat, &name, &mut moved) {
                    Ok(()) => removed += 1,
                    Err(error) => problem = problem.or(Some(error)),
                }
            }
        }
        match problem {
            _ if seen == 0 => return Ok(()),
            Some(problem) if removed == 0 => return Err(problem.into()),
            _ => {}
        }
    }
}

/// Removes one entry of `flat`: a file at once, a directory after its contents. Directories in it
/// become entries of `flat`.
fn remove_entry(flat: &OwnedFd, name: &OsStr, moved: &mut u64) -> rustix::io::Result<()> {
    match unlink(flat, name) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let handle = handle_at(flat, name)?;
    let dir = open_handle(&handle, DIRECTORY)?;
    if rustix::fs::fstat(&dir)?.st_mode & 0o300 != 0o300 {
        allow_owner(&handle)?;
    }
    loop {
        // From the start each time: the entries listed before no longer exist.
        let batch = read_names(&mut Dir::read_from(&dir)?, BATCH)?;
        if batch.is_empty() {
            break;
        }
        for inner in batch {
            match unlink(&dir, &inner) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => move_up(&dir, &inner, flat, moved)?,
                Err(error) => return Err(error),
            }
        }
    }
    rustix::fs::unlinkat(flat, name, AtFlags::REMOVEDIR)
}

/// Moves the directory `name` of `dir` into `flat` under a free name.
fn move_up(dir: &OwnedFd, name: &OsStr, flat: &OwnedFd, moved: &mut u64) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(_) => {}
    }
    let handle = handle_at(dir, name)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode) != FileType::Directory {
        return Err(Errno::PERM);
    }
    if rustix::fs::fstat(&handle)?.st_mode & 0o300 != 0o300 {
        allow_owner(&handle)?;
    }
    loop {
        *moved += 1;
        let free = format!("moved-{moved}");
        let keep = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(dir.as_fd(), name, flat, &free, keep) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn remove_dir_of_hostile_tree_keeps_symlink_targets() {
        let dir = tempfile::tempdir().expect("directory");
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).expect("made");
        std::fs::write(outside.join("kept"), "x").expect("written");
        let victim = dir.path().join("victim");
        std::fs::create_dir(&victim).expect("made");
        // Deeper than any path the kernel accepts in one call, and than the limit of open files.
        let mut at = rustix::fs::open(&victim, DIRECTORY, Mode::empty()).expect("opened");
        for _ in 0..1500 {
            rustix::fs::mkdirat(&at, "deep", Mode::from_raw_mode(0o700)).expect("made");
            std::os::unix::fs::symlink(&outside, victim.join("link")).ok();
            rustix::fs::symlinkat(&outside, &at, "out").expect("linked");
            at = rustix::fs::openat(&at, "deep", DIRECTORY, Mode::empty()).expect("opened");
        }
        std::fs::create_dir_all(victim.join("locked/inner/more")).expect("made");
        std::fs::write(victim.join("moved-1"), "taken").expect("written");
        for path in ["locked/inner", "locked"] {
            let nothing = std::fs::Permissions::from_mode(0o000);
            std::fs::set_permissions(victim.join(path), nothing).expect("set");
        }

        remove_dir(&victim).expect("removed");
        assert!(!victim.exists());
        assert!(outside.join("kept").exists());
        remove_dir(&victim).expect("gone already");
    }
}
