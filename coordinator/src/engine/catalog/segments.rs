//! The journal of a run in a catalog, and its copy in a run directory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_worker::supervise;
use tokio_util::bytes::Bytes;

use super::piece::{Piece, chain_from};
use super::{CONCURRENT_READS, Catalog, CatalogError, run_prefix};
use crate::engine::journal::{RunLayout, SegmentExtent};

/// Name of the first piece of a segment.
const OPENING: &str = "opening";

/// The largest piece.
pub(super) const MAX_PIECE_BYTES: usize = limits::DOCUMENT_BYTES as usize;

/// The pieces of a segment in a catalog.
#[derive(Debug, Default)]
struct CatalogSegment {
    has_opening: bool,
    pieces: Vec<Piece>,
}

/// Path prefix of the segments of a run.
fn segments_prefix(run: RunId) -> String {
    format!("{}journal/", run_prefix(run))
}

/// Path of the first piece of a segment.
pub(super) fn opening_path(run: RunId, epoch: u32) -> String {
    format!("{}{epoch:06}/{OPENING}", segments_prefix(run))
}

/// Path of a piece of a segment.
pub(super) fn piece_path(run: RunId, epoch: u32, piece: Piece) -> String {
    format!("{}{epoch:06}/{}", segments_prefix(run), piece.name())
}

impl Catalog {
    /// The segments of a run, by epoch.
    async fn segments(&self, run: RunId) -> Result<BTreeMap<u32, CatalogSegment>, CatalogError> {
        let prefix = segments_prefix(run);
        let mut segments: BTreeMap<u32, CatalogSegment> = BTreeMap::new();
        for path in self.store.list_documents(&prefix).await? {
            let parts = path.strip_prefix(&prefix).and_then(|rest| rest.split_once('/'));
            let Some((epoch, name)) = parts else { continue };
            let Ok(epoch) = epoch.parse() else { continue };
            let segment = segments.entry(epoch).or_default();
            segment.has_opening |= name == OPENING;
            segment.pieces.extend(Piece::parse(name));
        }
        Ok(segments)
    }

    /// Appends the bytes that the segments of a run directory lack. The directory must belong to
    /// the caller.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub async fn download_journal(
        &self,
        run: RunId,
        layout: &RunLayout,
    ) -> Result<(), CatalogError> {
        for (epoch, segment) in self.segments(run).await? {
            // Its writer died before it created the segment.
            if segment.has_opening {
                self.download_segment(run, epoch, &segment, layout).await?;
            }
        }
        Ok(())
    }

    async fn download_segment(
        &self,
        run: RunId,
        epoch: u32,
        segment: &CatalogSegment,
        layout: &RunLayout,
    ) -> Result<(), CatalogError> {
        let path = layout.segment(epoch);
        let of = path.clone();
        let mut length =
            supervise::blocking(move || std::fs::metadata(of).map_or(0, |found| found.len())).await;
        if length == 0 {
            let opening = self.read(opening_path(run, epoch)).await?;
            let bytes = opening.ok_or(CatalogError::Gap { run, epoch, offset: 0 })?;
            length = append(layout, epoch, 0, bytes).await?;
        }
        let pieces = chain_from(length, &segment.pieces);
        let reads = pieces.into_iter().map(|piece| self.read_piece(run, epoch, piece));
        let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
        while let Some((piece, bytes)) = reads.try_next().await? {
            let gap = CatalogError::Gap { run, epoch, offset: length };
            let Some(mut bytes) = bytes else {
                // Joined with others while this process was reading.
                return Box::pin(self.reread_segment(run, epoch, length, layout, gap)).await;
            };
            if bytes.len() as u64 != piece.end - piece.start || piece.start > length {
                return Err(gap);
            }
            let skipped = usize::try_from(length - piece.start).unwrap_or(usize::MAX);
            length = append(layout, epoch, length, bytes.split_off(skipped)).await?;
        }
        Ok(())
    }

    /// Reads a segment again from `length` on after one of its pieces was removed. Fails if no
    /// other piece has these bytes.
    async fn reread_segment(
        &self,
        run: RunId,
        epoch: u32,
        length: u64,
        layout: &RunLayout,
        gap: CatalogError,
    ) -> Result<(), CatalogError> {
        match self.segments(run).await?.remove(&epoch) {
            Some(segment) if !chain_from(length, &segment.pieces).is_empty() => {
                self.download_segment(run, epoch, &segment, layout).await
            }
            _ => Err(gap),
        }
    }

    /// Stores the bytes that the catalog lacks of the segments that count in a run directory, up to
    /// their ends.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub(super) async fn upload_journal(
        &self,
        run: RunId,
        layout: &RunLayout,
        extents: Vec<SegmentExtent>,
    ) -> Result<(), CatalogError> {
        let stored = self.segments(run).await?;
        for SegmentExtent { epoch, opening_bytes, bytes } in extents {
            let segment = stored.get(&epoch);
            if segment.is_none_or(|segment| !segment.has_opening) {
                let opening = read_range(layout, epoch, 0, opening_bytes).await?;
                self.store.put_document(&opening_path(run, epoch), opening).await?;
            }
            let pieces = segment.map_or(&[][..], |segment| &segment.pieces);
            let reached = chain_from(opening_bytes, pieces).last().map(|piece| piece.end);
            let mut start = reached.unwrap_or(opening_bytes);
            while start < bytes {
                let end = bytes.min(start + MAX_PIECE_BYTES as u64);
                let content = read_range(layout, epoch, start, end).await?;
                let path = piece_path(run, epoch, Piece { start, end });
                self.store.put_document(&path, content).await?;
                start = end;
            }
        }
        Ok(())
    }

    async fn read_piece(
        &self,
        run: RunId,
        epoch: u32,
        piece: Piece,
    ) -> Result<(Piece, Option<Bytes>), CatalogError> {
        Ok((piece, self.read(piece_path(run, epoch, piece)).await?))
    }

    async fn read(&self, path: String) -> Result<Option<Bytes>, CatalogError> {
        Ok(self.store.get_document(&path).await?)
    }
}

/// Appends bytes to a segment of this length durably; returns its length then.
async fn append(
    layout: &RunLayout,
    epoch: u32,
    length: u64,
    bytes: Bytes,
) -> Result<u64, CatalogError> {
    let (path, directory) = (layout.segment(epoch), layout.journal());
    supervise::blocking(move || {
        std::fs::create_dir_all(&directory).map_err(CatalogError::file("create", &directory))?;
        let write = || {
            let mut file =
                OpenOptions::new().create(true).write(true).truncate(false).open(&path)?;
            file.seek(SeekFrom::Start(length))?;
            file.write_all(&bytes)?;
            file.sync_data()
        };
        write().map_err(CatalogError::file("write", &path))?;
        Ok(length + bytes.len() as u64)
    })
    .await
}

/// The bytes of a segment from `start` to `end`.
pub(super) async fn read_range(
    layout: &RunLayout,
    epoch: u32,
    start: u64,
    end: u64,
) -> Result<Bytes, CatalogError> {
    let path = layout.segment(epoch);
    supervise::blocking(move || {
        let read = || {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
            file.read_exact(&mut bytes)?;
            Ok(Bytes::from(bytes))
        };
        read().map_err(CatalogError::file("read", &path))
    })
    .await
}
