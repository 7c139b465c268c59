//! The catalog as the second place of a journal that is being written.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use rollout_base::backoff::{OutageLog, error_chain};
use rollout_base::supervise::{self, Task};
use rollout_protocol::id::RunId;
use rollout_store::StoreError;
use tokio_util::bytes::Bytes;

use super::piece::Piece;
use super::segments::{MAX_PIECE_BYTES, opening_path, piece_path, read_range, successor_path};
use super::{Catalog, CatalogError, CatalogHeader};
use crate::Interruption;
use crate::journal::{
    JournalError, JournalMirror, MirrorError, RunLayout, SegmentEpochs, SegmentExtent,
    SegmentIndex, SegmentOffset,
};

/// Pieces that are joined into one: a session that commits for hours stays quick to read.
const PIECES_PER_JOIN: usize = 256;

/// Time between two looks for a later session of another process.
const SUCCESSOR_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the beginning of a session waits for the store.
const OPENING_RETRY_PERIOD: Duration = Duration::from_secs(60);

/// Properties of the sessions whose journal a mirror writes.
#[derive(Debug, Clone)]
pub struct MirrorOptions {
    /// Name of the job.
    pub job: String,
    /// Whether processes of other hosts are kept away by nothing but the catalog.
    pub is_only_lock: bool,
    /// Ends the wait for the store at the beginning of a session.
    pub interruption: Interruption,
}

/// Writes the journal of a run directory to a catalog.
#[derive(Debug)]
pub struct CatalogMirror {
    catalog: Catalog,
    layout: RunLayout,
    options: MirrorOptions,
    outage: OutageLog,
    progress: Mutex<MirrorProgress>,
}

#[derive(Debug, Default)]
struct MirrorProgress {
    /// Pieces of the segment that are not joined yet.
    single: Vec<Piece>,
    join: Option<Task<()>>,
    /// When it last looked for a later session.
    checked: Option<Instant>,
}

impl CatalogMirror {
    /// The mirror of the journal in a run directory.
    pub fn new(catalog: Catalog, layout: RunLayout, options: MirrorOptions) -> Self {
        let outage = OutageLog::new("writing to the catalog");
        Self { catalog, layout, options, outage, progress: Mutex::default() }
    }

    /// Repeats a call while the store does not answer.
    async fn wait_for<'a, T>(
        &self,
        call: impl Fn() -> BoxFuture<'a, Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.retry(StoreError::is_transient, call).await
    }

    /// Repeats a call for a while if the store does not answer, until a user stops the session that
    /// begins. A refusal is final.
    async fn wait_briefly<F>(&self, call: impl Fn() -> F + Send) -> Result<(), JournalError>
    where
        F: Future<Output = Result<(), JournalError>> + Send,
    {
        let until = Instant::now() + OPENING_RETRY_PERIOD;
        let may_pass = |error: &JournalError| error.is_unanswered() && Instant::now() < until;
        tokio::select! {
            // A store that answers is not waited for.
            biased;
            done = self.retry(may_pass, call) => done,
            () = self.options.interruption.requested() => {
                Err(JournalError::Mirror(MirrorError::Interrupted))
            }
        }
    }

    async fn retry<T, E: std::error::Error, F: Future<Output = Result<T, E>> + Send>(
        &self,
        may_pass: impl Fn(&E) -> bool + Send,
        call: impl Fn() -> F + Send,
    ) -> Result<T, E> {
        let mut backoff = self.outage.backoff();
        loop {
            match call().await {
                Err(error) if may_pass(&error) => backoff.wait_after_failure(&error).await,
                done => {
                    if done.is_ok() {
                        backoff.succeeded();
                    }
                    return done;
                }
            }
        }
    }

    /// Creates the documents of a segment; one that this process created before stays.
    async fn begin_segment(
        &self,
        run: RunId,
        epochs: SegmentEpochs,
        opening: &Bytes,
    ) -> Result<(), JournalError> {
        let (SegmentEpochs { epoch, former }, store) = (epochs, &self.catalog.store);
        let mirror = |error| JournalError::Mirror(MirrorError::Store(error));
        self.check_only_lock().await?;
        // Before the opening: if this process dies between the two, the next one names another
        // former segment.
        if let Some(former) = former {
            let next = Bytes::from(epoch.to_string());
            store.put_document(&successor_path(run, former), next).await.map_err(mirror)?;
        }
        let path = opening_path(run, epoch);
        store.put_document(&path, opening.clone()).await.map_err(mirror)?;
        // An answer may have been lost, and some services ignore that the document must be new.
        let found = store.get_document(&path).await.map_err(mirror)?;
        if found.as_ref() != Some(opening) {
            return Err(JournalError::Mirror(MirrorError::Exists(epoch)));
        }
        // Last: what has a header is a run.
        self.put_header(run).await
    }

    /// Refuses a store that cannot keep two processes apart, unless something else does.
    async fn check_only_lock(&self) -> Result<(), JournalError> {
        let store = &self.catalog.store;
        let is_safe = !self.options.is_only_lock
            || store.has_exclusive_documents().await.map_err(CatalogError::from)?;
        is_safe.then_some(()).ok_or(JournalError::Mirror(MirrorError::NoConditionalWrites))
    }

    /// Creates the header of a run if it does not exist.
    async fn put_header(&self, run: RunId) -> Result<(), JournalError> {
        let (path, header) = (CatalogHeader::path(run), CatalogHeader::new(run, &self.options.job));
        let put = self.catalog.store.put_document(&path, header.to_bytes()).await;
        put.map_err(CatalogError::from)?;
        Ok(())
    }

    /// Stores a piece. One that exists with this content is this session's: an answer was lost.
    async fn put_piece(
        &self,
        at: SegmentOffset,
        piece: Piece,
        bytes: Bytes,
    ) -> Result<(), MirrorError> {
        let path = piece_path(at.run, at.epoch, piece);
        let store = &self.catalog.store;
        if self.wait_for(|| store.put_document(&path, bytes.clone())).await? {
            return Ok(());
        }
        match self.wait_for(|| store.get_document(&path)).await? {
            Some(found) if found != bytes => Err(MirrorError::Exists(at.epoch)),
            _ => Ok(()),
        }
    }

    /// Fails if another process has begun a later session; looks at most once a second.
    async fn check_successor(&self, run: RunId, epoch: u32) -> Result<(), MirrorError> {
        let now = Instant::now();
        let is_due = {
            let mut progress = self.progress();
            let due = progress.checked.is_none_or(|at| now - at >= SUCCESSOR_CHECK_INTERVAL);
            if due {
                progress.checked = Some(now);
            }
            due
        };
        if !is_due {
            return Ok(());
        }
        let (path, store) = (successor_path(run, epoch), &self.catalog.store);
        match self.wait_for(|| store.get_document(&path)).await? {
            Some(next) => {
                let next = std::str::from_utf8(&next).ok().and_then(|text| text.parse().ok());
                Err(MirrorError::Superseded(next.unwrap_or_default()))
            }
            None => Ok(()),
        }
    }

    fn progress(&self) -> std::sync::MutexGuard<'_, MirrorProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a stored piece, and begins to join pieces when there are many.
    fn note_piece(&self, at: SegmentOffset, piece: Piece) {
        let mut progress = self.progress();
        progress.single.push(piece);
        let first = progress.single.first().map_or(piece.start, |first| first.start);
        let is_large = piece.end - first > MAX_PIECE_BYTES as u64 / 2;
        let is_joining = progress.join.as_ref().is_some_and(|task| !task.is_finished());
        if is_joining || progress.single.len() < PIECES_PER_JOIN && !is_large {
            return;
        }
        let single = std::mem::take(&mut progress.single);
        let (catalog, layout) = (self.catalog.clone(), self.layout.clone());
        progress.join = Some(supervise::spawn("catalog", async move {
            if let Err(error) = catalog.join_pieces(at, &single, &layout).await {
                // The pieces are as good as one.
                tracing::debug!("cannot join pieces of the catalog: {}", error_chain(&error));
            }
        }));
    }
}

impl Catalog {
    /// Replaces pieces that follow each other by joined ones.
    async fn join_pieces(
        &self,
        at: SegmentOffset,
        single: &[Piece],
        layout: &RunLayout,
    ) -> Result<(), CatalogError> {
        let mut rest = single;
        while let Some(first) = rest.first() {
            let fits = |piece: &&Piece| piece.end - first.start <= MAX_PIECE_BYTES as u64;
            let count = rest.iter().take_while(fits).count().max(1);
            let (joined, others) = rest.split_at(count);
            rest = others;
            if let [first, .., last] = joined {
                let whole = Piece { start: first.start, end: last.end };
                let bytes = read_range(layout, at.epoch, whole.start, whole.end).await?;
                self.store.put_document(&piece_path(at.run, at.epoch, whole), bytes).await?;
                for piece in joined {
                    let path = piece_path(at.run, at.epoch, *piece);
                    self.store.remove_document(&path).await?;
                }
            }
        }
        Ok(())
    }

    /// Fetches what a run directory lacks of the journal of its run.
    async fn fetch_journal(&self, layout: &RunLayout) -> Result<(), JournalError> {
        let of = layout.clone();
        let index = supervise::blocking(move || SegmentIndex::read(&of)).await?;
        match index.openings().next().map(|opened| opened.run) {
            Some(run) => Ok(self.download_journal(run, layout).await?),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl JournalMirror for CatalogMirror {
    async fn create_segment(
        &self,
        run: RunId,
        epochs: SegmentEpochs,
        opening: Bytes,
    ) -> Result<(), JournalError> {
        self.wait_briefly(|| self.begin_segment(run, epochs, &opening)).await?;
        *self.progress() = MirrorProgress::default();
        Ok(())
    }

    async fn append(&self, at: SegmentOffset, bytes: Bytes) -> Result<(), MirrorError> {
        self.check_successor(at.run, at.epoch).await?;
        let mut start = at.bytes;
        let mut rest = bytes;
        while !rest.is_empty() {
            let content = rest.split_to(rest.len().min(MAX_PIECE_BYTES));
            let piece = Piece { start, end: start + content.len() as u64 };
            self.put_piece(at, piece, content).await?;
            self.note_piece(at, piece);
            start = piece.end;
        }
        Ok(())
    }

    async fn fetch(&self, layout: &RunLayout) -> Result<(), JournalError> {
        self.wait_briefly(|| self.catalog.fetch_journal(layout)).await
    }

    async fn synchronize(&self, layout: &RunLayout) -> Result<(), JournalError> {
        self.wait_briefly(|| async {
            self.catalog.fetch_journal(layout).await?;
            let Some((run, extents)) = read_extents(layout).await? else { return Ok(()) };
            self.check_only_lock().await?;
            self.catalog.upload_journal(run, layout, extents).await?;
            self.put_header(run).await
        })
        .await
    }
}

/// The run of a directory and the extents of its segments; `None` if it has no segment.
async fn read_extents(
    layout: &RunLayout,
) -> Result<Option<(RunId, Vec<SegmentExtent>)>, JournalError> {
    let of = layout.clone();
    supervise::blocking(move || {
        let index = SegmentIndex::read(&of)?;
        let run = index.openings().next().map(|opened| opened.run);
        run.map(|run| Ok((run, index.extents()?))).transpose()
    })
    .await
}
