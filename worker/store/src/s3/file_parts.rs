//! Files to send: hashing of whole files and of their parts.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use rollout_base::supervise;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::{Digest, DigestHasher};

use super::super::StoreError;

/// Files up to this size are read into memory.
const SMALL_FILE_BYTES: u64 = 1024 * 1024;

/// Size of a part, unless the file would have too many.
const PART_BYTES: u64 = 8 * 1024 * 1024;

/// Most parts of an object.
const MAX_PARTS: u64 = 10_000;

/// Buffer for reading files.
const BUFFER_BYTES: usize = 256 * 1024;

/// A file that is sent from the disk.
#[derive(Clone)]
pub(super) struct LargeFile {
    pub(super) path: PathBuf,
    pub(super) digest: Digest,
    pub(super) size_bytes: u64,
}

/// Why a file was not stored.
pub(super) enum UploadError {
    Store(StoreError),
    /// Its content has another digest.
    Changed,
}

impl From<StoreError> for UploadError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The content of a file to store.
pub(super) enum FileContent {
    Small(Bytes),
    Large(LargeFile),
}

/// Reads a small file, or hashes a large one.
pub(super) fn read_file(path: PathBuf) -> Result<FileContent, StoreError> {
    let failed = |error| StoreError::io("read", &path, error);
    let mut file = File::open(&path).map_err(|error| StoreError::io("open", &path, error))?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let size_bytes = metadata.len();
    if size_bytes <= SMALL_FILE_BYTES {
        let mut bytes = Vec::with_capacity(usize::try_from(size_bytes).unwrap_or(0));
        file.take(SMALL_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > SMALL_FILE_BYTES {
            return Err(failed(io::Error::other("it grew while it was read")));
        }
        return Ok(FileContent::Small(Bytes::from(bytes)));
    }
    let mut hasher = DigestHasher::default();
    let read = read_pieces(&mut file, u64::MAX, |bytes| hasher.update(bytes)).map_err(failed)?;
    if read != size_bytes {
        return Err(changed(&path));
    }
    Ok(FileContent::Large(LargeFile { digest: hasher.finish(), path, size_bytes }))
}

/// The error of a file that changes while it is stored.
pub(super) fn changed(path: &Path) -> StoreError {
    StoreError::io("read", path, io::Error::other("its content changed while it was read"))
}

impl LargeFile {
    /// The reference to its content.
    pub(super) fn blob(&self, media_type: MediaType) -> BlobRef {
        let (digest, size_bytes) = (self.digest, self.size_bytes);
        BlobRef { digest, size_bytes, media_type: Some(media_type) }
    }

    /// Opens it to hash its parts.
    pub(super) async fn part_hasher(&self) -> Result<PartHasher, StoreError> {
        let file = self.clone();
        supervise::blocking(move || PartHasher::open(&file)).await
    }
}

/// A part of a file, with the digest of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FilePart {
    pub(super) index: u64,
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) digest: Digest,
}

/// Hashes a file part by part.
pub(super) struct PartHasher {
    file: File,
    path: PathBuf,
    expected: Digest,
    size_bytes: u64,
    part_bytes: u64,
    /// Parts and bytes so far, and the hash of these bytes.
    parts: u64,
    bytes: u64,
    whole: DigestHasher,
}

impl PartHasher {
    fn open(file: &LargeFile) -> Result<Self, StoreError> {
        Self::with_parts(file, PART_BYTES.max(file.size_bytes.div_ceil(MAX_PARTS)))
    }

    fn with_parts(file: &LargeFile, part_bytes: u64) -> Result<Self, StoreError> {
        let LargeFile { path, digest, size_bytes } = file;
        let opened = File::open(path).map_err(|error| StoreError::io("open", path, error))?;
        Ok(Self {
            file: opened,
            path: path.clone(),
            expected: *digest,
            size_bytes: *size_bytes,
            part_bytes,
            parts: 0,
            bytes: 0,
            whole: DigestHasher::default(),
        })
    }

    /// The parts of the file, each hashed when it is taken. Fails instead of the last part if the content
    /// does not have the digest, so that another content is never completed.
    pub(super) fn parts(self) -> impl Stream<Item = Result<FilePart, UploadError>> + Send {
        stream::try_unfold(self, |mut hasher| {
            supervise::blocking(move || Ok(hasher.next()?.map(|part| (part, hasher))))
        })
    }

    /// The next part; `None` after the last one.
    fn next(&mut self) -> Result<Option<FilePart>, UploadError> {
        let (start, mut hasher) = (self.bytes, DigestHasher::default());
        if start == self.size_bytes {
            return Ok(None);
        }
        let length = self.part_bytes.min(self.size_bytes - start);
        let read = read_pieces(&mut self.file, length, |bytes| {
            hasher.update(bytes);
            self.whole.update(bytes);
        });
        if read.map_err(|error| StoreError::io("read", &self.path, error))? != length {
            return Err(UploadError::Changed);
        }
        let part = FilePart { index: self.parts, start, length, digest: hasher.finish() };
        (self.parts, self.bytes) = (part.index + 1, start + length);
        let is_last = self.bytes == self.size_bytes;
        if is_last && std::mem::take(&mut self.whole).finish() != self.expected {
            return Err(UploadError::Changed);
        }
        Ok(Some(part))
    }
}

/// Reads at most `most` bytes of a file in pieces; returns their number.
fn read_pieces(file: &mut File, most: u64, mut each: impl FnMut(&[u8])) -> io::Result<u64> {
    let (mut buffer, mut size) = (vec![0; BUFFER_BYTES], 0);
    loop {
        let limit = buffer.len().min(usize::try_from(most - size).unwrap_or(usize::MAX));
        match file.read(&mut buffer[..limit]) {
            Ok(0) => return Ok(size),
            Ok(read) => {
                each(&buffer[..read]);
                size += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths and digests of the parts, and whether the end was reached.
    fn parts(file: &LargeFile, part_bytes: u64) -> (Vec<(u64, u64, Digest)>, bool) {
        let mut hasher = PartHasher::with_parts(file, part_bytes).expect("opened");
        let mut parts = Vec::new();
        loop {
            match hasher.next() {
                Ok(Some(part)) => parts.push((part.start, part.length, part.digest)),
                Ok(None) => return (parts, true),
                Err(UploadError::Changed) => return (parts, false),
                Err(UploadError::Store(error)) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn parts_of_file_cover_it_without_empty_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let content: Vec<u8> = (0..1_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &content).expect("written");
        let file = LargeFile { path, digest: Digest::sha256(&content), size_bytes: 4_000 };
        for part_bytes in [7, 1_000, 2_000, 3_999, 4_000, 5_000] {
            let chunks = content.chunks(usize::try_from(part_bytes).expect("small"));
            let starts = (0..).step_by(usize::try_from(part_bytes).expect("small"));
            let expected = chunks
                .zip(starts)
                .map(|(chunk, start)| (start, chunk.len() as u64, Digest::sha256(chunk)));
            assert_eq!(parts(&file, part_bytes), (expected.collect(), true), "{part_bytes}");
        }
    }

    #[test]
    fn file_with_other_content_has_no_last_part() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let file =
            LargeFile { path: path.clone(), digest: Digest::sha256(&[1; 30]), size_bytes: 30 };
        let mut flipped = [1; 30];
        flipped[3] = 0;
        for (content, sent) in
            [(&flipped[..], 2), (&[1; 25][..], 2), (&[1; 15][..], 1), (&[][..], 0)]
        {
            std::fs::write(&path, content).expect("written");
            let (parts, complete) = parts(&file, 10);
            assert_eq!((parts.len(), complete), (sent, false), "{content:?}");
        }
    }
}
