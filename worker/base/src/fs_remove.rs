//! Removal of files and directories that may not exist.

use std::io;
use std::path::Path;

use crate::supervise;

/// Removes a file, or a directory with its content. Succeeds when nothing is there. A link is
/// removed, not followed.
///
/// # Errors
/// Errors of the system; part of a directory may be removed then.
pub fn remove_blocking(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The same for async callers, which must not block on a disk: a large directory takes long.
///
/// # Errors
/// As [`remove_blocking`].
pub async fn remove(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    supervise::blocking(move || remove_blocking(&path)).await
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn fs_remove_of_any_kind_or_missing_path_succeeds() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("kept/below")).expect("made");
        fs::create_dir_all(at("tree/below")).expect("made");
        fs::write(at("tree/below/file"), "x").expect("written");
        fs::write(at("file"), "x").expect("written");
        std::os::unix::fs::symlink(at("kept"), at("link")).expect("linked");
        std::os::unix::fs::symlink(at("kept"), at("tree/link")).expect("linked");
        for name in ["tree", "file", "link", "never/was"] {
            remove(&at(name)).await.expect("removed");
            assert!(fs::symlink_metadata(at(name)).is_err(), "{name}");
        }
        assert!(at("kept/below").is_dir());
        assert!(remove_blocking(&at("kept/below/\0")).is_err());
    }
}
