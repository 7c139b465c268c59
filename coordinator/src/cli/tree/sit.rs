//! A sitting of a search: played, in this process, or with workers elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rollout_protocol::wire::control::StopLevel;
use rollout_worker::store::BlobStore;
use rollout_worker::store::fs::FsStore;
use rollout_worker::supervise;
use tokio::sync::mpsc;

use super::run::RunArgs;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::cli::place;
use crate::cli::run::{environment, host_paths};
use crate::config::TreeFile;
use crate::engine::{Patience, Taking};
use crate::launch::signals;
use crate::workloads::search::backend::{Local, Progress};
use crate::workloads::search::driver::simulated::Player;
use crate::workloads::search::driver::{Clock, Opening, TreeError, begin};
use crate::workloads::search::manifest::Manifest;

/// Seconds after which a silent owner of a search is taken over.
const STALE: u32 = 600;

/// Goes on with a search until it has ended; a signal stops it.
pub(super) async fn sit(
    tree: TreeFile,
    args: &RunArgs,
    printer: &Printer,
) -> Result<Manifest, CliError> {
    let listening = signals::listen();
    let (stops, _signals) =
        listening.map_err(|error| CliError::failure("cannot listen to signals", &error))?;
    let opening = Opening {
        tree,
        dry_run: args.dry_run,
        resume: args.resume,
        rerun_evals: args.rerun_evals,
        force_regenerate_ideas: args.force_regenerate_ideas,
        clock: if args.dry_run { Clock::Counted } else { Clock::System },
    };
    if args.dry_run {
        return play(opening, args, stops).await;
    }
    let own = opening.tree.runs_root.join(".rollout");
    let blobs = match &args.store {
        Some(store) => place::directory(store)?,
        None => own.join("blobs"),
    };
    let store: Arc<dyn BlobStore> = Arc::new(FsStore::open(blobs).await?);
    let (progress, _telling) = tell(*printer);
    let (host, environment) = (host_paths(&own)?, environment());
    #[cfg(feature = "nats")]
    if args.elsewhere.is_given() {
        let searching =
            args.elsewhere.search(args, opening, store, host, environment, stops, progress);
        return Box::pin(searching).await;
    }
    let taking = Taking { patience: patience(args), shared: None };
    let fail_unable = args.fail_unable_evals;
    let local = Local { opening, taking, store, host, environment, fail_unable, stops, progress };
    Ok(Box::pin(local.run()).await?)
}

/// Prints what happens.
fn tell(printer: Printer) -> (mpsc::UnboundedSender<Progress>, supervise::Task<()>) {
    let (progress, mut told) = mpsc::unbounded_channel::<Progress>();
    let task = supervise::spawn("progress", async move {
        while let Some(progress) = told.recv().await {
            if !printer.is_quiet() {
                tracing::info!("{progress}");
            }
        }
    });
    (progress, task)
}

pub(super) fn patience(args: &RunArgs) -> Patience {
    Patience {
        stale: Duration::from_secs(args.lock_stale_seconds.unwrap_or(STALE).into()),
        force: args.force,
        wait: true,
        hung: args.lock_stale_seconds.is_some(),
    }
}

/// Plays commands and repository. Equal searches leave equal files.
async fn play(
    opening: Opening,
    args: &RunArgs,
    mut stops: mpsc::Receiver<StopLevel>,
) -> Result<Manifest, CliError> {
    let player = Player::new(opening.tree.run_dir(), &opening.tree);
    let stop = Arc::new(AtomicBool::new(false));
    let taking = Taking { patience: patience(args), shared: None };
    let opened = begin(opening, &taking, player, Arc::clone(&stop), &mut stops).await;
    let (mut sitting, lock) = opened?;
    let listening = supervise::spawn("stop", async move {
        if stops.recv().await.is_some() {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let ran = supervise::blocking(move || -> Result<Manifest, TreeError> {
        sitting.run()?;
        Ok(sitting.manifest().clone())
    })
    .await;
    drop(listening);
    // Nothing is on a board, so there is nothing that could be lost by now.
    drop(lock.release(None).await);
    Ok(ran?)
}
