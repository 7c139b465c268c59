//! Blobs as files.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::{Digest, DigestHasher};

use super::super::age::needs_renewal;
use super::super::copy::PartialFile;
use super::super::verify;
use super::scratch::ScratchFile;
use super::{BlobContent, FsStoreInner, StoreError, StoredBlob, make_directory, sync_directory};

/// Files up to this size are read into memory, so that those already stored are not written again.
const SMALL_FILE_BYTES: u64 = 1024 * 1024;

/// Buffer for larger files.
const BUFFER_BYTES: usize = 256 * 1024;

/// A blob, and its file if it has not been moved to its final path yet.
type WrittenBlob = (BlobRef, Option<ScratchFile>);

impl FsStoreInner {
    /// Stores content durably.
    pub(super) fn put(&self, content: BlobContent) -> Result<BlobRef, StoreError> {
        let (blob, temp) = match content {
            BlobContent::Bytes(bytes, media_type) => self.write_bytes(&bytes, media_type)?,
            BlobContent::File(path, media_type) => self.write_file(&path, media_type)?,
            BlobContent::HashedFile(path, media_type, digest) => {
                match self.present(&path, media_type, digest)? {
                    Some(blob) => (blob, None),
                    None => self.write_file(&path, media_type)?,
                }
            }
        };
        let fan_out = self.fan_out(&blob.digest);
        if let Some(temp) = temp {
            let is_durable = &self.durable_fan_outs[usize::from(blob.digest.as_bytes()[0])];
            let fresh = !(is_durable.load(Ordering::Relaxed) && fan_out.is_dir());
            if fresh {
                make_directory(&fan_out)?;
            }
            temp.sync()?;
            if fresh {
                // After syncing the content: that commit then covers the new directory.
                sync_directory(&self.root.join("blobs"))?;
                is_durable.store(true, Ordering::Relaxed);
            }
            temp.rename_to(&self.blob_path(&blob.digest))?;
        }
        // Also if the blob was present: the process that renamed it may not have synced the
        // directory yet.
        sync_directory(&fan_out)?;
        Ok(blob)
    }

    /// The size of a blob, if present.
    pub(super) fn size_of(&self, digest: &Digest) -> Result<Option<u64>, StoreError> {
        Ok(self.metadata(digest)?.map(|found| found.len()))
    }

    /// Size and modification time of a blob, if present.
    pub(super) fn stat(&self, digest: &Digest) -> Result<Option<StoredBlob>, StoreError> {
        let Some(found) = self.metadata(digest)? else { return Ok(None) };
        let modified = found.modified();
        let modified =
            modified.map_err(|error| StoreError::io("look up", &self.blob_path(digest), error))?;
        Ok(Some(StoredBlob { digest: *digest, size_bytes: found.len(), modified }))
    }

    fn metadata(&self, digest: &Digest) -> Result<Option<Metadata>, StoreError> {
        let path = self.blob_path(digest);
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => Ok(Some(found)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.check_present()?;
                Ok(None)
            }
            Err(error) => Err(StoreError::io("look up", &path, error)),
        }
    }

    /// The size of a blob, if the caller can rely on it as if it had just written it; its
    /// modification time is renewed if needed.
    ///
    /// The path is looked up again afterwards: a removal that saw the old time has taken the file
    /// away by then, and one that has not will see the new time.
    pub(super) fn renew(&self, digest: &Digest) -> Result<Option<u64>, StoreError> {
        let Some(found) = self.metadata(digest)? else { return Ok(None) };
        let path = self.blob_path(digest);
        let modified = found.modified();
        if !needs_renewal(modified.map_err(|error| StoreError::io("look up", &path, error))?) {
            return Ok(Some(found.len()));
        }
        match File::open(&path).and_then(|file| file.set_modified(SystemTime::now())) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // The file of another user: a new file replaces it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
            Err(error) => return Err(StoreError::io("renew", &path, error)),
        }
        Ok(self.metadata(digest)?.filter(|now| now.ino() == found.ino()).map(|now| now.len()))
    }

    pub(super) fn open_blob(&self, digest: &Digest) -> Result<File, StoreError> {
        let path = self.blob_path(digest);
        File::open(&path).map_err(|error| match (error.kind(), self.check_present()) {
            (io::ErrorKind::NotFound, Ok(())) => self.missing_error(digest),
            (_, Err(away)) => away,
            (_, Ok(())) => StoreError::io("open", &path, error),
        })
    }

    /// The error for an absent blob: damaged if it was quarantined, missing otherwise.
    fn missing_error(&self, digest: &Digest) -> StoreError {
        let (digest, store) = (*digest, self.identity.clone());
        let quarantined = self.root.join("damaged").join(digest.hex());
        let found = File::open(&quarantined).ok().and_then(|mut file| {
            copy(&mut file, &quarantined, |_| Ok(())).ok().map(|(found, _)| found)
        });
        match found {
            Some(found) => StoreError::Corrupt { digest, found, store },
            None => StoreError::Missing { digest, store },
        }
    }

    pub(super) fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError> {
        let file = self.open_blob(digest)?;
        let path = self.blob_path(digest);
        let failed = |error| StoreError::io("read", &path, error);
        let size_bytes = file.metadata().map_err(failed)?.len();
        if size_bytes > max_bytes {
            return Err(StoreError::TooLarge { digest: *digest, size_bytes, max_bytes });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size_bytes).unwrap_or(0));
        (&file).take(max_bytes).read_to_end(&mut bytes).map_err(failed)?;
        self.check(digest, Digest::sha256(&bytes), &file)?;
        Ok(Bytes::from(bytes))
    }

    pub(super) fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let mut blob = self.open_blob(digest)?;
        let mut temp = PartialFile::create(to)?;
        let (found, _) = copy(&mut blob, &self.blob_path(digest), |bytes| temp.write(bytes))?;
        self.check(digest, found, &blob)?;
        temp.persist()
    }

    pub(super) fn verify(&self, digest: &Digest) -> Result<(), StoreError> {
        let mut blob = self.open_blob(digest)?;
        let (found, _) = copy(&mut blob, &self.blob_path(digest), |_| Ok(()))?;
        self.check(digest, found, &blob)
    }

    /// Writes content under a temporary name; no file if it is already present.
    fn write_bytes(&self, bytes: &[u8], media_type: MediaType) -> Result<WrittenBlob, StoreError> {
        let blob = BlobRef::for_bytes(bytes, media_type);
        if self.holds(&blob)? {
            return Ok((blob, None));
        }
        let mut temp = self.scratch.create()?;
        temp.write(bytes)?;
        Ok((blob, Some(temp)))
    }

    fn write_file(&self, path: &Path, media_type: MediaType) -> Result<WrittenBlob, StoreError> {
        let failed = |error| StoreError::io("read", path, error);
        let mut file = File::open(path).map_err(|error| StoreError::io("open", path, error))?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("not a regular file")));
        }
        if metadata.len() <= SMALL_FILE_BYTES {
            let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
            (&file).take(SMALL_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
            if bytes.len() as u64 <= SMALL_FILE_BYTES {
                return self.write_bytes(&bytes, media_type);
            }
            return Err(failed(io::Error::other("it grew while it was read")));
        }
        let mut temp = self.scratch.create()?;
        let (digest, size_bytes) = copy(&mut file, path, |bytes| temp.write(bytes))?;
        let blob = BlobRef { digest, size_bytes, media_type: Some(media_type) };
        let temp = if self.holds(&blob)? { None } else { Some(temp) };
        Ok((blob, temp))
    }

    /// The blob with the digest of a file that was hashed before, if it is present with the length
    /// of the file.
    fn present(
        &self,
        path: &Path,
        media_type: MediaType,
        digest: Digest,
    ) -> Result<Option<BlobRef>, StoreError> {
        let found = std::fs::metadata(path);
        let size_bytes = found.map_err(|error| StoreError::io("open", path, error))?.len();
        let blob = BlobRef { digest, size_bytes, media_type: Some(media_type) };
        Ok(self.holds(&blob)?.then_some(blob))
    }

    /// Whether the blob is present with its right length, and renewed. One with a wrong length is
    /// damaged and gets replaced.
    fn holds(&self, blob: &BlobRef) -> Result<bool, StoreError> {
        Ok(self.renew(&blob.digest)? == Some(blob.size_bytes))
    }

    /// Compares the digest of the bytes read from `file` with its name.
    fn check(&self, digest: &Digest, found: Digest, file: &File) -> Result<(), StoreError> {
        let checked = verify::check(digest, found, &self.identity);
        if checked.is_err()
            && let Ok(metadata) = file.metadata()
        {
            self.quarantine(digest, metadata.ino());
        }
        checked
    }

    /// Quarantines a damaged blob that was read from the file with this inode, so that the content
    /// can be stored again.
    pub(super) fn quarantine(&self, digest: &Digest, inode: u64) {
        tracing::error!(%digest, store = %self.root.display(), "damaged blob");
        if let Err(error) = self.try_quarantine(digest, inode) {
            tracing::warn!(%digest, %error, "cannot quarantine the damaged blob");
        }
    }

    fn try_quarantine(&self, digest: &Digest, inode: u64) -> io::Result<()> {
        let path = self.blob_path(digest);
        if std::fs::symlink_metadata(&path)?.ino() != inode {
            return Ok(());
        }
        let aside = self.root.join("damaged");
        std::fs::create_dir_all(&aside)?;
        let aside = aside.join(digest.hex());
        std::fs::rename(&path, &aside)?;
        if std::fs::symlink_metadata(&aside)?.ino() != inode {
            // Another process replaced the damaged blob at this very moment: restore its file.
            std::fs::hard_link(&aside, &path)?;
            std::fs::remove_file(&aside)?;
        }
        Ok(())
    }

    fn fan_out(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(&digest.hex()[..2])
    }

    pub(super) fn blob_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.hex();
        self.root.join("blobs").join(&hex[..2]).join(&hex[2..])
    }
}

/// Copies a file in pieces; returns its digest and size.
fn copy(
    file: &mut File,
    path: &Path,
    mut write: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(Digest, u64), StoreError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut hasher, mut size) = (DigestHasher::default(), 0);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finish(), size)),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                write(&buffer[..read])?;
                size += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StoreError::io("read", path, error)),
        }
    }
}
