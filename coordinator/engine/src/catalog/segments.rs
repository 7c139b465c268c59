//! The journal of a run in a catalog, and its copy in a run directory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rollout_base::{durable, supervise};
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use tokio_util::bytes::Bytes;

use super::piece::{Piece, chain_from};
use super::{CONCURRENT_READS, Catalog, CatalogError, run_prefix};
use crate::journal::{JournalError, MirrorError, RunLayout, SegmentExtent};

/// Name of the first piece of a segment.
pub(super) const OPENING: &str = "opening";

/// Name of the document that says that another segment follows.
pub(super) const SUCCESSOR: &str = "successor";

/// Lists of a segment that are read when a piece is missing: pieces are joined meanwhile.
const MAX_LISTS: u32 = 5;

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

/// Path of the document that names the epoch of the segment that follows.
pub(super) fn successor_path(run: RunId, epoch: u32) -> String {
    format!("{}{epoch:06}/{SUCCESSOR}", segments_prefix(run))
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
        let opening = self.read(opening_path(run, epoch)).await?;
        let opening = opening.ok_or(CatalogError::Gap { run, epoch, offset: 0 })?;
        let mut length = length_after(layout, epoch, &opening).await?;
        if length == 0 {
            let stated = layout.durable_length(epoch);
            // It is about other bytes, and only a lower bound.
            drop(supervise::blocking(move || std::fs::remove_file(stated)).await);
            length = write_at(layout, epoch, 0, opening).await?;
        }
        let mut pieces = segment.pieces.clone();
        for _ in 0..MAX_LISTS {
            let chain = chain_from(length, &pieces);
            let end = chain.last().map_or(length, |last| last.end);
            let is_whole = pieces.iter().all(|piece| piece.start <= end);
            length = self.download_pieces(run, epoch, length, chain, layout).await?;
            if is_whole && length == end {
                return Ok(());
            }
            // Pieces were joined while this process was reading.
            let listed = self.segments(run).await?.remove(&epoch);
            pieces = listed.map_or_else(Vec::new, |segment| segment.pieces);
        }
        Err(CatalogError::Gap { run, epoch, offset: length })
    }

    /// Appends pieces up to the first one that is gone; returns the length then.
    async fn download_pieces(
        &self,
        run: RunId,
        epoch: u32,
        mut length: u64,
        pieces: Vec<Piece>,
        layout: &RunLayout,
    ) -> Result<u64, CatalogError> {
        let reads = pieces.into_iter().map(|piece| self.read_piece(run, epoch, piece));
        let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
        while let Some((piece, bytes)) = reads.try_next().await? {
            let Some(mut bytes) = bytes else { break };
            if bytes.len() as u64 != piece.end - piece.start || piece.start > length {
                return Err(CatalogError::Gap { run, epoch, offset: length });
            }
            let skipped = usize::try_from(length - piece.start).unwrap_or(usize::MAX);
            length = write_at(layout, epoch, length, bytes.split_off(skipped)).await?;
        }
        Ok(length)
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
    ) -> Result<(), JournalError> {
        let stored = self.segments(run).await?;
        for SegmentExtent { epoch, opening_bytes, bytes } in extents {
            let segment = stored.get(&epoch);
            if segment.is_none_or(|segment| !segment.has_opening) {
                let opening = read_range(layout, epoch, 0, opening_bytes).await?;
                self.put_own(epoch, &opening_path(run, epoch), opening).await?;
            }
            let pieces = segment.map_or(&[][..], |segment| &segment.pieces);
            let reached = chain_from(opening_bytes, pieces).last().map(|piece| piece.end);
            let mut start = reached.unwrap_or(opening_bytes);
            while start < bytes {
                let end = bytes.min(start + MAX_PIECE_BYTES as u64);
                let content = read_range(layout, epoch, start, end).await?;
                let path = piece_path(run, epoch, Piece { start, end });
                self.put_own(epoch, &path, content).await?;
                start = end;
            }
        }
        Ok(())
    }

    /// Stores a part of a segment. One that exists must be the same.
    async fn put_own(&self, epoch: u32, path: &str, bytes: Bytes) -> Result<(), JournalError> {
        let put = self.store.put_document(path, bytes.clone()).await;
        if put.map_err(CatalogError::from)? {
            return Ok(());
        }
        match self.read(path.to_owned()).await? {
            Some(found) if found != bytes => Err(JournalError::Mirror(MirrorError::Exists(epoch))),
            _ => Ok(()),
        }
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

/// The length of the segment in a run directory if it begins with `opening`; 0 otherwise. A segment
/// that begins otherwise was begun by a process that died before the catalog had it, so nothing in
/// it took effect.
async fn length_after(
    layout: &RunLayout,
    epoch: u32,
    opening: &Bytes,
) -> Result<u64, CatalogError> {
    let (path, opening) = (layout.segment(epoch), opening.clone());
    supervise::blocking(move || {
        let read = || {
            let mut file = match File::open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
                file => file?,
            };
            let length = file.metadata()?.len();
            let mut start = vec![0; opening.len()];
            match file.read_exact(&mut start) {
                Ok(()) if start == opening => Ok(length),
                Ok(()) => Ok(0),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
                Err(error) => Err(error),
            }
        };
        read().map_err(CatalogError::file("read", &path))
    })
    .await
}

/// Writes bytes at a position of a segment durably, and cuts what follows; returns its length then.
async fn write_at(
    layout: &RunLayout,
    epoch: u32,
    position: u64,
    bytes: Bytes,
) -> Result<u64, CatalogError> {
    let (path, directory) = (layout.segment(epoch), layout.journal());
    supervise::blocking(move || {
        durable::create_directory(&directory).map_err(CatalogError::file("create", &directory))?;
        let write = || {
            let mut file =
                OpenOptions::new().create(true).write(true).truncate(false).open(&path)?;
            file.set_len(position)?;
            file.seek(SeekFrom::Start(position))?;
            file.write_all(&bytes)?;
            file.sync_data()
        };
        write().map_err(CatalogError::file("write", &path))?;
        Ok(position + bytes.len() as u64)
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
