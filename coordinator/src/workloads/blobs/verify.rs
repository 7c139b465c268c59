//! Verification of blobs: each is read and compared with its digest.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rollout_base::supervise;
use rollout_protocol::digest::Digest;
use rollout_store::{BlobStore, StoreError};
use tokio::io::AsyncReadExt as _;

use super::BlobsError;

/// Blobs that are read concurrently, each with one buffer: enough for all processors and to hide
/// the latency of a service.
const PARALLEL_READS: usize = 16;

/// Buffer of a read.
const BUFFER_BYTES: usize = 256 * 1024;

/// Defect of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobProblem {
    /// Its content has another digest: it was changed or truncated.
    Damaged {
        /// The blob.
        digest: Digest,
        /// Digest of the content.
        found: Digest,
        /// Number of bytes of the content, unless it was moved aside before.
        size_bytes: Option<u64>,
    },
    /// It is named by a run and not in the store.
    Missing {
        /// The blob.
        digest: Digest,
    },
}

impl BlobProblem {
    /// The blob.
    pub const fn digest(&self) -> &Digest {
        match self {
            Self::Damaged { digest, .. } | Self::Missing { digest } => digest,
        }
    }
}

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerificationReport {
    /// Number of blobs that were read.
    pub blobs: u64,
    /// Number of bytes that were read.
    pub bytes: u64,
    /// Damaged and missing blobs, by digest.
    pub problems: Vec<BlobProblem>,
}

/// Result of reading a blob.
struct Reading {
    bytes: u64,
    problem: Option<BlobProblem>,
}

/// Reads every blob of a store. Blobs that were moved aside as damaged and not stored again count
/// as damaged.
///
/// # Errors
/// [`BlobsError`] if the store fails.
pub async fn verify_all(store: &Arc<dyn BlobStore>) -> Result<VerificationReport, BlobsError> {
    let mut report = VerificationReport::default();
    // A blob that is removed meanwhile is no problem of the store.
    for first_byte in 0..=u8::MAX {
        let listed = store.list_blobs(first_byte).await?;
        let digests = listed.into_iter().map(|blob| (blob.digest, false)).collect();
        report.read(store, digests).await?;
    }
    let known: HashSet<Digest> = report.problems.iter().map(|each| *each.digest()).collect();
    let aside = store.list_damaged().await?.into_iter().filter(|each| !known.contains(each));
    let mut absent = Vec::new();
    for digest in aside {
        if !store.contains(&digest).await? {
            absent.push((digest, false));
        }
    }
    report.read(store, absent).await?;
    report.problems.sort_unstable_by_key(|problem| *problem.digest());
    Ok(report)
}

/// Reads blobs by their digests; each with whether its absence is a problem.
///
/// # Errors
/// [`BlobsError`] if the store fails.
pub async fn verify_digests(
    store: &Arc<dyn BlobStore>,
    digests: Vec<(Digest, bool)>,
) -> Result<VerificationReport, BlobsError> {
    let mut report = VerificationReport::default();
    report.read(store, digests).await?;
    report.problems.sort_unstable_by_key(|problem| *problem.digest());
    Ok(report)
}

impl VerificationReport {
    async fn read(
        &mut self,
        store: &Arc<dyn BlobStore>,
        digests: Vec<(Digest, bool)>,
    ) -> Result<(), BlobsError> {
        let reads = stream::iter(digests).map(|(digest, is_needed)| {
            let store = Arc::clone(store);
            async move {
                let read = supervise::spawn("verification", async move {
                    read(&*store, digest, is_needed).await
                });
                read.await?
            }
        });
        let mut reads = reads.buffer_unordered(PARALLEL_READS);
        while let Some(reading) = reads.try_next().await? {
            let Some(Reading { bytes, problem }) = reading else { continue };
            self.blobs += u64::from(!matches!(problem, Some(BlobProblem::Missing { .. })));
            self.bytes += bytes;
            self.problems.extend(problem);
        }
        Ok(())
    }
}

/// Reads a blob; `None` if it is absent and need not be there.
async fn read(
    store: &dyn BlobStore,
    digest: Digest,
    is_needed: bool,
) -> Result<Option<Reading>, BlobsError> {
    let mut reader = match store.get(&digest).await {
        Ok(reader) => reader,
        Err(StoreError::Missing { .. }) => {
            let problem = Some(BlobProblem::Missing { digest });
            return Ok(is_needed.then_some(Reading { bytes: 0, problem }));
        }
        Err(StoreError::Corrupt { found, .. }) => {
            let problem = BlobProblem::Damaged { digest, found, size_bytes: None };
            return Ok(Some(Reading { bytes: 0, problem: Some(problem) }));
        }
        Err(error) => return Err(error.into()),
    };
    let (mut buffer, mut bytes) = (vec![0; BUFFER_BYTES], 0);
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) => return Ok(Some(Reading { bytes, problem: None })),
            Ok(read) => bytes += read as u64,
            Err(error) => {
                let Some(found) = digest_found(&error) else {
                    let path = format!("blob {digest}");
                    let action = "read";
                    return Err(StoreError::Io { action, path, source: error }.into());
                };
                let problem = BlobProblem::Damaged { digest, found, size_bytes: Some(bytes) };
                return Ok(Some(Reading { bytes, problem: Some(problem) }));
            }
        }
    }
}

/// The digest of the content, if an error at the end of a blob says that it is damaged.
pub fn digest_found(error: &io::Error) -> Option<Digest> {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<StoreError>()) {
        Some(StoreError::Corrupt { found, .. }) => Some(*found),
        _ => None,
    }
}
