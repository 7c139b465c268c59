//! The output of an item while it runs.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use rollout_protocol::id::ExecId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::daemon::{
    Daemon, DaemonError, HostedRun, ItemDetail, LiveOutput, LivePiece, Principal, ShownOutput,
    is_output,
};
use crate::results::view::{CapturedFile, CapturedSource, TrialState, read_captured};

/// Shortest time between two looks at a run.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How much longer than a look the pause after it is: a look reads the whole journal.
const PAUSE_PER_LOOK: u32 = 4;

/// Follows the output of one item.
struct OutputFollower {
    user: Principal,
    run: Arc<HostedRun>,
    pieces: mpsc::Sender<Bytes>,
    output: LiveOutput,
    shown: ShownOutput,
    /// Whether the last look could not read the output.
    is_failing: bool,
}

/// The client has gone.
struct ClientGone;

/// Sends a user the output of an item until it is settled or its run has no session.
pub(super) async fn follow(
    daemon: Arc<Daemon>,
    user: Principal,
    run: Arc<HostedRun>,
    item: String,
    name: Option<String>,
    pieces: mpsc::Sender<Bytes>,
) {
    let mut follower = OutputFollower {
        user,
        run: Arc::clone(&run),
        pieces,
        output: LiveOutput::default(),
        shown: ShownOutput::new(name.as_deref()),
        is_failing: false,
    };
    loop {
        let began = Instant::now();
        let was_over = run.is_over();
        let found = match daemon.item(&follower.user, &run, &item).await {
            Ok(found) => found,
            Err(error) => {
                warn_unless_deleted(&run, &format!("cannot follow the output of {item}: {error}"));
                return;
            }
        };
        // Without the wait for the answer of a worker.
        let pause = LOOK_INTERVAL.max(began.elapsed() * PAUSE_PER_LOOK);
        if is_settled(&found) {
            if let Err(error) = follower.send_recorded(&daemon, &item).await {
                warn_unless_deleted(&run, &format!("cannot send the output of {item}: {error}"));
            }
            return;
        }
        if was_over
            || follower.send_live(&daemon, &found).await.is_err()
            || follower.pieces.is_closed()
        {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Logs a failure, unless it is that a user has deleted the run.
fn warn_unless_deleted(run: &HostedRun, message: &str) {
    if !run.is_deleted() {
        tracing::warn!("{message}");
    }
}

/// Whether an item has its result.
pub(super) fn is_settled(found: &ItemDetail) -> bool {
    let state = found.detail.row.state;
    !matches!(state, TrialState::Running | TrialState::Waiting | TrialState::Queued)
}

impl OutputFollower {
    /// Sends new output of the execution that runs.
    async fn send_live(&mut self, daemon: &Daemon, found: &ItemDetail) -> Result<(), ClientGone> {
        let Some(trial) = found.running else { return Ok(()) };
        loop {
            match daemon.next_output(&self.run, trial, &mut self.output).await {
                Ok(Some(piece)) => self.send_piece(piece).await?,
                Ok(None) => {
                    self.is_failing = false;
                    return Ok(());
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        let item = trial.item;
                        let message = format!("cannot follow the output of {item}: {error}");
                        warn_unless_deleted(&self.run, &message);
                    }
                    return Ok(());
                }
            }
        }
    }

    async fn send_piece(&mut self, piece: LivePiece) -> Result<(), ClientGone> {
        let LivePiece { exec, path, text } = piece;
        if !self.shown.is_wanted(&path) {
            return Ok(());
        }
        self.send_header(exec, &path).await?;
        self.send(text.into()).await
    }

    async fn send_header(&mut self, exec: ExecId, path: &str) -> Result<(), ClientGone> {
        match self.shown.header(exec, path, path) {
            Some(header) => self.send(header.into()).await,
            None => Ok(()),
        }
    }

    async fn send(&self, piece: Bytes) -> Result<(), ClientGone> {
        self.pieces.send(piece).await.map_err(|_| ClientGone)
    }

    /// Sends the output of the execution that settled the item, except what was sent before.
    async fn send_recorded(&mut self, daemon: &Daemon, item: &str) -> Result<(), DaemonError> {
        let files = match daemon.item_files(&self.user, &self.run, item, None).await {
            Err(DaemonError::NoFiles) => return Ok(()),
            found => found?,
        };
        let exec = files.record.exec;
        for file in daemon.captured_files(&files, None)? {
            let CapturedSource::Blob(output) = &file.source else { continue };
            let sent = self.output.bytes_read(exec, &file.path);
            let is_wanted = is_output(&file.path) && self.shown.is_wanted(&file.path);
            if output.blob.size_bytes <= sent || !is_wanted {
                continue;
            }
            if self.send_header(exec, &file.path).await.is_err() {
                return Ok(());
            }
            self.send_rest(&*files.store, &file, sent).await;
        }
        Ok(())
    }

    /// Sends a file after its first `skip` bytes.
    async fn send_rest(
        &self,
        store: &dyn rollout_store::BlobStore,
        file: &CapturedFile,
        mut skip: u64,
    ) {
        let (pieces, mut received) = mpsc::channel::<Bytes>(1);
        let sending = async {
            while let Some(mut piece) = received.recv().await {
                let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(piece.len());
                skip -= skipped as u64;
                let rest = piece.split_off(skipped);
                if !rest.is_empty() && self.send(rest).await.is_err() {
                    return;
                }
            }
        };
        let ((), read) = tokio::join!(sending, read_captured(store, file, pieces));
        if let Err(error) = read {
            warn_unless_deleted(&self.run, &format!("cannot send {}: {error}", file.path));
        }
    }
}
