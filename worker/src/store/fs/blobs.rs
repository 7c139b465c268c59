//! Blobs as files.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::{Digest, Hasher};

use super::super::verify;
use super::scratch::Temp;
use super::{Content, Inner, StoreError, ensure_directory, sync_directory};

/// Files up to this size are read whole, so that those already stored are not written again.
const SMALL_FILE_BYTES: u64 = 1024 * 1024;

/// Buffer for larger files.
const BUFFER_BYTES: usize = 256 * 1024;

/// Contents written before they are synchronised together: bounds the open files of a batch.
const BATCH: usize = 128;

/// A content that is stored, or about to be.
struct Pending {
    blob: BlobRef,
    /// The file that has to get its name; absent when the blob is there already.
    temp: Option<Temp>,
}

impl Inner {
    pub(super) fn put(&self, content: Content) -> Result<BlobRef, StoreError> {
        let pending = self.write(content)?;
        if let Some(temp) = &pending.temp {
            temp.sync()?;
        }
        let blob = self.name(pending)?;
        // Also when the blob was there: whoever named it may not have come this far.
        self.sync_fan_out(&blob.digest)?;
        Ok(blob)
    }

    /// Writing everything before synchronising anything lets one commit of the file system cover
    /// many files.
    pub(super) fn put_many(&self, contents: Vec<Content>) -> Result<Vec<BlobRef>, StoreError> {
        let mut blobs = Vec::with_capacity(contents.len());
        let mut contents = contents.into_iter().peekable();
        while contents.peek().is_some() {
            let batch = contents.by_ref().take(BATCH);
            let batch = batch.map(|content| self.write(content)).collect::<Result<Vec<_>, _>>()?;
            for temp in batch.iter().filter_map(|pending| pending.temp.as_ref()) {
                temp.sync()?;
            }
            let start = blobs.len();
            for pending in batch {
                blobs.push(self.name(pending)?);
            }
            let fan_outs: BTreeSet<PathBuf> =
                blobs[start..].iter().map(|blob| self.fan_out(&blob.digest)).collect();
            fan_outs.iter().try_for_each(|path| sync_directory(path))?;
        }
        Ok(blobs)
    }

    /// The size of a blob that is present.
    pub(super) fn size_of(&self, digest: &Digest) -> Result<Option<u64>, StoreError> {
        let path = self.blob_path(digest);
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => Ok(Some(found.len())),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("looking for", &path, error)),
        }
    }

    pub(super) fn open_blob(&self, digest: &Digest) -> Result<File, StoreError> {
        let path = self.blob_path(digest);
        File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                StoreError::Missing { digest: *digest, store: self.identity.clone() }
            }
            _ => StoreError::io("opening", &path, error),
        })
    }

    pub(super) fn get_bytes(&self, digest: &Digest, max_bytes: u64) -> Result<Bytes, StoreError> {
        let file = self.open_blob(digest)?;
        let path = self.blob_path(digest);
        let failed = |error| StoreError::io("reading", &path, error);
        let size_bytes = file.metadata().map_err(failed)?.len();
        if size_bytes > max_bytes {
            return Err(StoreError::TooLarge { digest: *digest, size_bytes, max_bytes });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size_bytes).unwrap_or(0));
        (&file).take(max_bytes).read_to_end(&mut bytes).map_err(failed)?;
        self.check(digest, Digest::of(&bytes), &file)?;
        Ok(Bytes::from(bytes))
    }

    pub(super) fn get_file(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let mut blob = self.open_blob(digest)?;
        let failed = |error| StoreError::io("writing", to, error);
        let directory = match to.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let mut temp = tempfile::Builder::new()
            .prefix(".partial-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(directory)
            .map_err(failed)?;
        let found = copy(&mut blob, &self.blob_path(digest), |bytes| {
            temp.write_all(bytes).map_err(failed)
        })?;
        self.check(digest, found.0, &blob)?;
        temp.persist_noclobber(to).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Writes a content under a temporary name, unless it is present.
    fn write(&self, content: Content) -> Result<Pending, StoreError> {
        match content {
            Content::Bytes(bytes, media_type) => self.write_bytes(&bytes, media_type),
            Content::File(path, media_type) => self.write_file(&path, media_type),
        }
    }

    fn write_bytes(&self, bytes: &[u8], media_type: MediaType) -> Result<Pending, StoreError> {
        let blob = BlobRef::of(bytes, media_type);
        if self.holds(&blob)? {
            return Ok(Pending { blob, temp: None });
        }
        let mut temp = self.scratch.create()?;
        temp.write(bytes)?;
        Ok(Pending { blob, temp: Some(temp) })
    }

    fn write_file(&self, path: &Path, media_type: MediaType) -> Result<Pending, StoreError> {
        let failed = |error| StoreError::io("reading", path, error);
        let mut file = File::open(path).map_err(|error| StoreError::io("opening", path, error))?;
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
        Ok(Pending { blob, temp })
    }

    /// Whether the blob is present with its right length. One with a wrong length is damaged and
    /// gets replaced.
    fn holds(&self, blob: &BlobRef) -> Result<bool, StoreError> {
        Ok(self.size_of(&blob.digest)? == Some(blob.size_bytes))
    }

    /// Gives a written and synchronised content its name.
    fn name(&self, pending: Pending) -> Result<BlobRef, StoreError> {
        let Pending { blob, temp } = pending;
        if let Some(temp) = temp {
            let fan_out = self.fan_out(&blob.digest);
            if !fan_out.is_dir() {
                ensure_directory(&fan_out)?;
            }
            temp.rename_to(&self.blob_path(&blob.digest))?;
        }
        Ok(blob)
    }

    /// Compares what was read from `file` with its name. A damaged blob is put aside, so that the
    /// next one who has the content can store it again.
    fn check(&self, digest: &Digest, found: Digest, file: &File) -> Result<(), StoreError> {
        let checked = verify::check(digest, found, &self.identity);
        if checked.is_err() {
            tracing::error!(%digest, %found, store = %self.root.display(), "damaged blob");
            if let Err(error) = self.put_aside(digest, file) {
                tracing::warn!(%digest, %error, "cannot put the damaged blob aside");
            }
        }
        checked
    }

    fn put_aside(&self, digest: &Digest, file: &File) -> io::Result<()> {
        let path = self.blob_path(digest);
        let read = file.metadata()?.ino();
        if std::fs::symlink_metadata(&path)?.ino() != read {
            return Ok(());
        }
        let aside = self.root.join("damaged");
        std::fs::create_dir_all(&aside)?;
        let aside = aside.join(digest.hex());
        std::fs::rename(&path, &aside)?;
        if std::fs::symlink_metadata(&aside)?.ino() != read {
            // Somebody replaced the damaged blob at this very moment: theirs goes back.
            std::fs::hard_link(&aside, &path)?;
            std::fs::remove_file(&aside)?;
        }
        Ok(())
    }

    fn sync_fan_out(&self, digest: &Digest) -> Result<(), StoreError> {
        sync_directory(&self.fan_out(digest))
    }

    fn fan_out(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(&digest.hex()[..2])
    }

    pub(super) fn blob_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.hex();
        self.root.join("blobs").join(&hex[..2]).join(&hex[2..])
    }
}

/// Passes a file on in pieces; its digest and size.
fn copy(
    file: &mut File,
    path: &Path,
    mut write: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(Digest, u64), StoreError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut hasher, mut size) = (Hasher::default(), 0);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finish(), size)),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                write(&buffer[..read])?;
                size += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StoreError::io("reading", path, error)),
        }
    }
}
