//! The local file of a blob that is received.

use std::path::Path;

use bytes::Bytes;
use rollout_base::supervise::{self, BlockingDrop};

use super::super::StoreError;
use super::super::copy::PartialFile;

/// Bytes that are written at once: chunks have the speed of the page cache, and a blocking thread for each
/// would cost more than the write.
const WRITE_BYTES: usize = 1024 * 1024;

/// A file that blocking threads write. It appears when it is whole; dropped before, it leaves nothing.
#[derive(Debug)]
pub(super) struct DownloadedFile {
    file: BlockingDrop<PartialFile>,
    /// Chunks that are not yet written.
    chunks: Vec<Bytes>,
}

impl DownloadedFile {
    /// Creates the file beside `to`.
    pub(super) async fn create(to: &Path) -> Result<Self, StoreError> {
        let to = to.to_owned();
        let file = supervise::blocking(move || PartialFile::create(&to)).await?;
        Ok(Self { file: BlockingDrop::new(file), chunks: Vec::new() })
    }

    /// Adds bytes.
    pub(super) async fn write(mut self, chunk: Bytes) -> Result<Self, StoreError> {
        self.chunks.push(chunk);
        if self.chunks.iter().map(Bytes::len).sum::<usize>() < WRITE_BYTES {
            return Ok(self);
        }
        let write = move || {
            self.write_chunks()?;
            Ok(self)
        };
        supervise::blocking(write).await
    }

    /// Gives the file its name, which must not exist.
    pub(super) async fn persist(mut self) -> Result<(), StoreError> {
        let persist = move || {
            self.write_chunks()?;
            self.file.into_inner().persist()
        };
        supervise::blocking(persist).await
    }

    fn write_chunks(&mut self) -> Result<(), StoreError> {
        let chunks = std::mem::take(&mut self.chunks);
        chunks.iter().try_for_each(|chunk| self.file.write(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn file_of_many_chunks_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().expect("a directory");
        let to = directory.path().join("blob");
        let chunk = Bytes::from(vec![7; WRITE_BYTES / 3]);
        let receive = async || {
            let mut file = DownloadedFile::create(&to).await.expect("created");
            for _ in 0..5 {
                file = file.write(chunk.clone()).await.expect("written");
            }
            file
        };
        let part = receive().await;
        assert!(!to.exists(), "it is not whole");
        drop(part);
        receive().await.persist().await.expect("persisted");
        assert_eq!(std::fs::read(&to).expect("readable"), vec![7; WRITE_BYTES / 3 * 5]);
        let error = receive().await.persist().await.expect_err("it exists");
        assert!(error.to_string().contains("blob"), "{error}");
    }
}
