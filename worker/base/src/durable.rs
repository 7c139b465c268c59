//! Files and directories that survive a power failure.
//!
//! Until they are synced, a file may be empty or missing after a power failure, and so may the entry
//! of a directory. Whatever is relied on later is synced first: the file, then its directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::{Path, PathBuf};

/// Up to this many files are always synced one by one.
const SYNC_ONE_BY_ONE: usize = 64;

/// Bytes that a disk writes in about the time that the sync of one file takes.
const BYTES_PER_SYNC: u64 = 256 * 1024;

/// Makes the entries of a directory durable. Blocks.
///
/// # Errors
/// Errors of the system.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// Makes the content of a file, and its entry, durable. Blocks.
///
/// # Errors
/// Errors of the system.
pub fn sync_file(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_directory(path.parent().unwrap_or(path))
}

/// Creates a directory with its missing parents, durably. Blocks.
///
/// # Errors
/// Errors of the system.
pub fn create_directory(path: &Path) -> io::Result<()> {
    create_directory_with(DirBuilder::new().recursive(true), path)
}

/// The same with the settings of a recursive builder.
///
/// # Errors
/// Errors of the system.
pub fn create_directory_with(builder: &DirBuilder, path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.is_dir()).collect();
    builder.create(path)?;
    for parent in missing.iter().filter_map(|path| path.parent()) {
        match sync_directory(parent) {
            // A directory that may be written and not read cannot be opened for a sync.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

/// Makes a directory and everything below it durable. The entry of the directory itself is that of
/// its parent. Blocks.
///
/// # Errors
/// Errors of the system.
pub fn sync_tree(root: &Path) -> io::Result<()> {
    let mut paths = Vec::new();
    list(root, &mut paths)?;
    if is_whole_cheaper(paths.len(), unwritten_bytes()) && sync_file_system(root)? {
        return Ok(());
    }
    for path in paths.iter().rev() {
        File::open(path)?.sync_all()?;
    }
    Ok(())
}

/// Lists `root` and all regular files and directories below it, each directory before its content.
fn list(root: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    paths.push(root.to_owned());
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), paths)?;
        } else if kind.is_file() {
            paths.push(entry.path());
        }
    }
    Ok(())
}

/// Whether a sync of the whole file system is cheaper than one per file. It also writes all that other
/// processes have written, such as containers that are built. An unknown amount may be a large one.
fn is_whole_cheaper(files: usize, unwritten: Option<u64>) -> bool {
    let limit = (files as u64).saturating_mul(BYTES_PER_SYNC);
    files > SYNC_ONE_BY_ONE && unwritten.is_some_and(|bytes| bytes <= limit)
}

/// Bytes in the memory of the host that are not yet on a disk; `None` if that is unknown.
fn unwritten_bytes() -> Option<u64> {
    parse_unwritten(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_unwritten(text: &str) -> Option<u64> {
    let kibibytes = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key))?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let sum = kibibytes("Dirty:")?.checked_add(kibibytes("Writeback:")?)?;
    sum.checked_mul(1024)
}

/// Syncs the file system of a directory; false where the system cannot.
#[cfg(target_os = "linux")]
fn sync_file_system(root: &Path) -> io::Result<bool> {
    rustix::fs::syncfs(File::open(root)?)?;
    Ok(true)
}

#[cfg(not(target_os = "linux"))]
fn sync_file_system(_: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn directory_is_created_with_missing_parents_and_mode() {
        let temp = tempfile::tempdir().expect("a directory");
        let deep = temp.path().join("a/b/c");
        for _ in 0..2 {
            create_directory(&deep).expect("made, or there");
        }
        assert!(deep.is_dir());
        let private = temp.path().join("p/q");
        create_directory_with(DirBuilder::new().recursive(true).mode(0o700), &private)
            .expect("made");
        let mode = fs::metadata(&private).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::write(temp.path().join("file"), "x").expect("written");
        assert!(create_directory(&temp.path().join("file")).is_err());
        assert!(create_directory(&temp.path().join("file/below")).is_err());
    }

    #[test]
    fn whole_file_system_is_synced_only_if_that_is_cheaper_than_each_file() {
        let text = "Cached: 9 kB\nDirty:    12 kB\nWriteback:   4 kB\nWritebackTmp: 8 kB\n";
        assert_eq!(parse_unwritten(text), Some(16 * 1024));
        assert_eq!(parse_unwritten("Dirty: 12 kB\n"), None);
        assert_eq!(unwritten_bytes().is_some(), cfg!(target_os = "linux"));
        const MIB: u64 = 1 << 20;
        for (files, unwritten, is_whole) in [
            (64, Some(0), false),
            (65, Some(0), true),
            (65, Some(16 * MIB), true),
            (65, Some(17 * MIB), false),
            (10_000, Some(2_000 * MIB), true),
            (10_000, Some(3_000 * MIB), false),
            (10_000, None, false),
        ] {
            assert_eq!(is_whole_cheaper(files, unwritten), is_whole, "{files} {unwritten:?}");
        }
    }

    #[test]
    fn tree_of_any_size_with_links_is_synced() {
        let temp = tempfile::tempdir().expect("a directory");
        fs::create_dir(temp.path().join("sub")).expect("made");
        std::os::unix::fs::symlink("nowhere", temp.path().join("sub/link")).expect("linked");
        sync_tree(temp.path()).expect("few files");
        for number in 0..=SYNC_ONE_BY_ONE {
            fs::write(temp.path().join(format!("sub/{number}")), "x").expect("written");
        }
        sync_tree(temp.path()).expect("many files");
        sync_file(&temp.path().join("sub/1")).expect("a file");
        sync_directory(Path::new("")).expect("the current directory");
        assert!(sync_tree(&temp.path().join("missing")).is_err());
    }
}
