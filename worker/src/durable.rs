//! Files and directories that survive a power failure.
//!
//! Until they are synced, a file may be empty or missing after a power failure, and so may the entry
//! of a directory. Whatever is relied on later is synced first: the file, then its directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::{Path, PathBuf};

/// Above this many files, one sync of the whole file system is cheaper than one sync per file.
const SYNC_ONE_BY_ONE: usize = 64;

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
    if paths.len() > SYNC_ONE_BY_ONE && sync_file_system(root)? {
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
