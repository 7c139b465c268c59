//! Atomic replacement of small files: temporary file, sync, rename, sync of the directory.

use std::io::Write as _;
use std::path::Path;

use rollout_base::durable;
use serde::Serialize;

use super::RunError;

/// Name prefix of files that are not complete yet.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// Removes incomplete files that killed processes left in a directory that this process owns now.
/// A process that still ends its last write may complete or remove one meanwhile.
///
/// # Errors
/// If the directory cannot be read, or a file cannot be removed.
pub fn remove_unfinished(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()) {
            match remove_if_file(&entry) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}

fn remove_if_file(entry: &std::fs::DirEntry) -> std::io::Result<()> {
    if entry.file_type()?.is_file() { std::fs::remove_file(entry.path()) } else { Ok(()) }
}

/// Replaces `path` with the JSON text of `value`. A reader sees the old or the new text, never a
/// part.
///
/// # Errors
/// [`RunError::File`].
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), RunError> {
    write_encoded(path, serde_json::to_vec_pretty(value))
}

/// The same without blanks, for documents that only programs read.
///
/// # Errors
/// [`RunError::File`].
pub fn write_dense_json<T: Serialize>(path: &Path, value: &T) -> Result<(), RunError> {
    write_encoded(path, serde_json::to_vec(value))
}

fn write_encoded(path: &Path, encoded: serde_json::Result<Vec<u8>>) -> Result<(), RunError> {
    let mut bytes = encoded.map_err(|error| RunError::File {
        action: "encode",
        path: path.to_owned(),
        source: error.into(),
    })?;
    bytes.push(b'\n');
    replace(path, &bytes).map_err(|source| RunError::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

/// Replaces `path` with `bytes`, atomically and durably.
///
/// # Errors
/// If the file cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    replace_as(path, bytes, 0o644)
}

/// Replaces `path` with `bytes`, atomically and durably, readable for this user only.
///
/// # Errors
/// If the file cannot be written.
pub fn replace_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    replace_as(path, bytes, 0o600)
}

fn replace_as(path: &Path, bytes: &[u8], permissions: u32) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut temporary = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .permissions(mode(permissions))
        .tempfile_in(directory)?;
    temporary.write_all(bytes)?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|error| error.error)?;
    durable::sync_directory(directory)
}

fn mode(mode: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_document_is_one_line_with_the_same_content() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("plan.json");
        let value = serde_json::json!({ "tasks": [{ "name": "a b" }, { "name": "c" }] });
        write_dense_json(&path, &value).expect("written");
        let text = std::fs::read_to_string(&path).expect("readable");
        assert_eq!(text, "{\"tasks\":[{\"name\":\"a b\"},{\"name\":\"c\"}]}\n");
        write_json(&path, &value).expect("replaced");
        let former = std::fs::read_to_string(&path).expect("readable");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(read(&text), read(&former));
        assert!(text.len() < former.len());
    }

    #[test]
    fn sweep_removes_only_unfinished_temp_files() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("manifest.json");
        replace(&path, b"{}").expect("written");
        let unfinished = temp.path().join(format!("{TEMPORARY_PREFIX}left"));
        std::fs::write(&unfinished, b"{").expect("written");
        std::fs::create_dir(temp.path().join(".tmp-directory")).expect("made");
        remove_unfinished(temp.path()).expect("swept");
        let left = [&path, &temp.path().join(".tmp-directory"), &unfinished].map(|p| p.exists());
        assert_eq!(left, [true, true, false]);
    }

    #[test]
    fn sweep_beside_a_writer_succeeds() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("manifest.json");
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    // The sweep may remove the temporary file before its rename.
                    let _replaced = replace(&path, b"{}");
                }
                is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                remove_unfinished(temp.path()).expect("swept");
            }
        });
    }
}
