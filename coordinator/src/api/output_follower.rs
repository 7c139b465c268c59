//! The output of an item while it runs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use rollout_protocol::id::ExecId;
use rollout_protocol::record::ExecutionEnd;
use rollout_protocol::wire::output::{OutputCursor, OutputPiece};
use rollout_worker::executor::read_output;
use rollout_worker::supervise;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::daemon::{Daemon, DaemonError, HostedRun, ItemDetail};
use crate::results::view::{CapturedFile, CapturedSource, TrialState, read_captured};

/// Shortest time between two looks at a run.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How much longer than a look the pause after it is: a look reads the whole journal.
const PAUSE_PER_LOOK: u32 = 4;

/// Follows the output of one item.
struct OutputFollower {
    run: Arc<HostedRun>,
    /// Prefix of the outputs that are sent.
    name: Option<String>,
    pieces: mpsc::Sender<Bytes>,
    /// Position in the output of the execution that runs.
    position: Option<(ExecId, OutputCursor)>,
    /// Bytes of each file that were sent, by execution.
    sent: HashMap<(ExecId, String), u64>,
    /// The file that was sent last.
    shown: Option<(ExecId, String)>,
}

/// The client has gone.
struct ClientGone;

/// Sends the output of an item until it is settled or its run has no session.
pub(super) async fn follow(
    daemon: Arc<Daemon>,
    run: Arc<HostedRun>,
    item: String,
    name: Option<String>,
    pieces: mpsc::Sender<Bytes>,
) {
    let mut follower = OutputFollower {
        run: Arc::clone(&run),
        name: name.map(|name| name.trim_end_matches('/').to_owned()),
        pieces,
        position: None,
        sent: HashMap::new(),
        shown: None,
    };
    loop {
        let began = Instant::now();
        let was_over = run.is_over();
        let found = match daemon.item(&run, &item).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!("cannot follow the output of {item}: {error}");
                return;
            }
        };
        let is_settled = !matches!(
            found.detail.row.state,
            TrialState::Running | TrialState::Waiting | TrialState::Queued
        );
        if is_settled {
            if let Err(error) = follower.send_recorded(&daemon, &item).await {
                tracing::warn!("cannot send the output of {item}: {error}");
            }
            return;
        }
        if was_over || follower.send_live(&found).await.is_err() || follower.pieces.is_closed() {
            return;
        }
        tokio::time::sleep(LOOK_INTERVAL.max(began.elapsed() * PAUSE_PER_LOOK)).await;
    }
}

impl OutputFollower {
    /// Sends new output of the execution that runs, if it runs in this process.
    async fn send_live(&mut self, found: &ItemDetail) -> Result<(), ClientGone> {
        let mut open = found.executions.iter().rev().map(|execution| &execution.view.execution);
        let open = open.find(|execution| execution.end == ExecutionEnd::Open);
        let Some(exec) = open.map(|execution| execution.exec) else { return Ok(()) };
        let workers = self.run.workers();
        loop {
            let after = match &self.position {
                Some((known, position)) if *known == exec => position.clone(),
                _ => OutputCursor::default(),
            };
            let workers = workers.clone();
            let read = supervise::blocking(move || {
                scratch_of(&workers, exec).map(|scratch| read_output(&scratch, &after))
            });
            match read.await {
                Some(Ok(Some(piece))) => self.send_piece(exec, piece).await?,
                Some(Err(error)) => {
                    tracing::warn!("cannot read the output of an execution: {error}");
                    return Ok(());
                }
                Some(Ok(None)) | None => return Ok(()),
            }
        }
    }

    async fn send_piece(&mut self, exec: ExecId, piece: OutputPiece) -> Result<(), ClientGone> {
        let OutputPiece { path, text, next } = piece;
        let stream = usize::from(path.ends_with("stderr.txt"));
        self.sent.insert((exec, path.clone()), next.offsets[stream]);
        self.position = Some((exec, next));
        if !self.is_wanted(&path) {
            return Ok(());
        }
        self.send_header(exec, &path).await?;
        self.send(text.into()).await
    }

    async fn send_header(&mut self, exec: ExecId, path: &str) -> Result<(), ClientGone> {
        let shown = Some((exec, path.to_owned()));
        if self.shown == shown {
            return Ok(());
        }
        let gap = if self.shown.is_some() { "\n" } else { "" };
        self.shown = shown;
        self.send(format!("{gap}==> {path} (execution {exec}) <==\n").into()).await
    }

    async fn send(&self, piece: Bytes) -> Result<(), ClientGone> {
        self.pieces.send(piece).await.map_err(|_| ClientGone)
    }

    fn is_wanted(&self, path: &str) -> bool {
        let Some(name) = &self.name else { return true };
        path.strip_prefix(&**name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Sends the output of the execution that settled the item, except what was sent before.
    async fn send_recorded(&mut self, daemon: &Daemon, item: &str) -> Result<(), DaemonError> {
        let files = match daemon.item_files(&self.run, item, None).await {
            Err(DaemonError::NoFiles) => return Ok(()),
            found => found?,
        };
        let exec = files.record.exec;
        for file in daemon.captured_files(&files, None)? {
            let CapturedSource::Blob(output) = &file.source else { continue };
            let sent = self.sent.get(&(exec, file.path.clone())).copied().unwrap_or_default();
            // Documents and events of a harness are no output.
            let is_output =
                file.path.ends_with("/stdout.txt") || file.path.ends_with("/stderr.txt");
            if output.blob.size_bytes <= sent || !is_output || !self.is_wanted(&file.path) {
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
        store: &dyn rollout_worker::store::BlobStore,
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
            tracing::warn!("cannot send {}: {error}", file.path);
        }
    }
}

/// The scratch directory of an execution in this process.
fn scratch_of(workers: &Path, exec: ExecId) -> Option<PathBuf> {
    let workers = std::fs::read_dir(workers).ok()?;
    let scratches = workers.flatten().map(|worker| worker.path().join("scratch"));
    scratches.map(|scratch| scratch.join(exec.to_string())).find(|scratch| scratch.is_dir())
}
