//! Listing and removal of blobs and documents, and removal of the store.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rollout_base::backoff::error_chain;
use rollout_base::shown_path::shown;
use rollout_protocol::digest::Digest;

use super::super::identity::IDENTITY_FILE;
use super::super::{check_document_path, digest_of_hex};
use super::{FsStoreInner, StoreError, StoredBlob};

/// Start of the name of a blob that is being removed from a full disk.
const REMOVING: &str = ".removing-";

/// Age of such a name from which its process is dead: a removal takes some system calls.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

impl FsStoreInner {
    pub(super) fn list_blobs(&self, first_byte: u8) -> Result<Vec<StoredBlob>, StoreError> {
        let start = format!("{first_byte:02x}");
        let directory = self.root.join("blobs").join(&start);
        let mut found = Vec::new();
        self.each_entry(&directory, |name, entry| {
            if let Some(rest) = name.strip_prefix(REMOVING) {
                restore_abandoned(entry, &directory.join(rest));
            }
            let Some(digest) = digest_of_hex(&format!("{start}{name}")) else { return Ok(()) };
            // One that another process has just removed is no error.
            let Ok(metadata) = entry.metadata() else { return Ok(()) };
            if metadata.is_file() {
                let modified = metadata.modified()?;
                found.push(StoredBlob { digest, size_bytes: metadata.len(), modified });
            }
            Ok(())
        })?;
        Ok(found)
    }

    pub(super) fn list_damaged(&self) -> Result<Vec<Digest>, StoreError> {
        let mut found = Vec::new();
        self.each_entry(&self.root.join("damaged"), |name, _| {
            found.extend(digest_of_hex(name));
            Ok(())
        })?;
        found.sort_unstable();
        Ok(found)
    }

    /// Removes a blob unless it was modified after `limit`.
    ///
    /// The file is first moved away and then looked at again: a process that stores the content
    /// sets the time and looks the path up afterwards, so that at least one of both notices.
    pub(super) fn remove_blob(
        &self,
        digest: &Digest,
        limit: SystemTime,
    ) -> Result<bool, StoreError> {
        if self.stat(digest)?.is_none_or(|found| found.modified > limit) {
            return Ok(false);
        }
        let path = self.blob_path(digest);
        let failed = |error| StoreError::io("remove", &path, error);
        let temp = match self.scratch.create() {
            // A full disk has no room for a temporary file, and removal is to make some.
            Err(StoreError::DiskFull { .. }) => return self.remove_in_place(digest, limit),
            temp => temp?,
        };
        let moved = match temp.take(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            moved => moved.map_err(failed)?,
        };
        if moved.modified().map_err(failed)? > limit {
            temp.link_new(&path)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Does the same without a temporary file: the blob gets another name in its own directory, whose
    /// entry needs no more room than the one that it replaces.
    pub(super) fn remove_in_place(
        &self,
        digest: &Digest,
        limit: SystemTime,
    ) -> Result<bool, StoreError> {
        let path = self.blob_path(digest);
        let failed = |error| StoreError::io("remove", &path, error);
        let aside = path.with_file_name(format!("{REMOVING}{}", &digest.hex()[2..]));
        match fs::rename(&path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            moved => moved.map_err(failed)?,
        }
        let modified = fs::symlink_metadata(&aside).and_then(|found| found.modified());
        if modified.map_err(failed)? > limit {
            restore(&aside, &path)?;
            return Ok(false);
        }
        removed(fs::remove_file(&aside), &aside)
    }

    /// Removes a document, and directories below the first level that are empty then. Creation of
    /// another document there fails at worst and is repeated by its caller.
    pub(super) fn remove_document(&self, path: &str) -> Result<bool, StoreError> {
        check_document_path(path)?;
        self.check_present()?;
        let docs = self.root.join("docs");
        let file = docs.join(path);
        let was_there = removed(fs::remove_file(&file), &file)?;
        let parents = path.match_indices('/').skip(1).map(|(end, _)| docs.join(&path[..end]));
        for parent in parents.collect::<Vec<_>>().into_iter().rev() {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
        Ok(was_there)
    }

    pub(super) fn remove_store(&self) -> Result<(), StoreError> {
        self.scratch.sweep();
        let store = shown(&self.root).to_string();
        if self.scratch.has_others() {
            return Err(StoreError::InUse { store, reason: "a process is writing to it" });
        }
        let content = [self.root.join("blobs"), self.root.join("docs")];
        if content.iter().any(|directory| has_files(directory)) {
            return Err(StoreError::InUse { store, reason: "it has blobs or documents" });
        }
        // The identity first: without it the rest is no store.
        let identity = self.root.join(IDENTITY_FILE);
        removed(fs::remove_file(&identity), &identity)?;
        for name in ["blobs", "docs", "damaged", "tmp"] {
            let directory = self.root.join(name);
            removed(fs::remove_dir_all(&directory), &directory)?;
        }
        // It may contain other files.
        let _kept = fs::remove_dir(&self.root);
        Ok(())
    }

    /// Calls a function for each entry with a name of ASCII; none in a directory that is missing.
    fn each_entry(
        &self,
        directory: &Path,
        mut each: impl FnMut(&str, &fs::DirEntry) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let failed = |error| StoreError::io("list", directory, error);
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.check_present();
            }
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if let Some(name) = entry.file_name().to_str() {
                each(name, &entry).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Gives a blob its name back, unless the content was stored again.
fn restore(aside: &Path, path: &Path) -> Result<(), StoreError> {
    match fs::hard_link(aside, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(StoreError::io("link a file to", path, error));
        }
        _ => {}
    }
    removed(fs::remove_file(aside), aside).map(drop)
}

/// Gives a blob its name back whose removal a process did not finish.
fn restore_abandoned(entry: &fs::DirEntry, path: &Path) {
    let moved = entry.metadata().map(|found| u64::try_from(found.ctime()).unwrap_or(0));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let is_abandoned = moved.is_ok_and(|moved| moved + ABANDONED.as_secs() < now.as_secs());
    if is_abandoned && let Err(error) = restore(&entry.path(), path) {
        tracing::warn!("cannot finish a removal: {}", error_chain(&error));
    }
}

/// Whether anything but directories is below a directory.
fn has_files(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        !is_directory || has_files(&entry.path())
    })
}

/// Whether something was removed; its absence is no error.
fn removed(result: io::Result<()>, path: &Path) -> Result<bool, StoreError> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::io("remove", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::blob::MediaType;

    use super::super::{BlobContent, FsStore};
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[tokio::test]
    async fn blob_renewed_stays_when_removed_in_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = FsStore::open(directory.path()).await.expect("a store");
        let put = || store.inner.put(BlobContent::Bytes("text".into(), MediaType::Text));
        let digest = put().expect("stored").digest;
        let (past, future) = (SystemTime::now() - DAY, SystemTime::now() + DAY);
        // The renewal came after the first look at its age.
        assert!(!store.inner.remove_in_place(&digest, past).expect("restored"));
        assert_eq!(store.inner.get_bytes(&digest, 10).expect("present"), "text");
        assert!(store.inner.remove_in_place(&digest, future).expect("removed"));
        assert!(!store.inner.remove_in_place(&digest, future).expect("nothing is there"));
        let fan_out = directory.path().join("blobs").join(&digest.hex()[..2]);
        assert_eq!(fs::read_dir(fan_out).expect("listed").count(), 0);
    }

    #[tokio::test]
    async fn blob_of_interrupted_removal_is_restored() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("name");
        let aside = directory.path().join(".removing-name");
        fs::write(&aside, "old").expect("written");
        let entry = || fs::read_dir(directory.path()).expect("listed").next();
        restore_abandoned(&entry().expect("an entry").expect("listed"), &path);
        assert!(aside.exists(), "its process may be alive");
        restore(&aside, &path).expect("restored");
        assert_eq!(fs::read(&path).expect("readable"), b"old");
        fs::write(&aside, "older").expect("written");
        restore(&aside, &path).expect("removed");
        assert!(!aside.exists());
        assert_eq!(fs::read(&path).expect("readable"), b"old", "stored again meanwhile");
    }
}
