//! A sitting of a search: played, in this process, or with workers elsewhere.

use std::time::Duration;

use rollout_protocol::limits::LOCK_STALE;
use rollout_worker::supervise;
use tokio::sync::mpsc;

use super::run::RunArgs;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::cli::store_url;
use crate::config::TreeFile;
use crate::engine::Patience;
use crate::launch::search::{self, SearchRequest};
use crate::launch::signals;
use crate::workloads::search::backend::Progress;
use crate::workloads::search::driver::{Clock, Opening};
use crate::workloads::search::manifest::Manifest;

/// Time after which a silent owner of a search is taken over.
const STALE: Duration = Duration::from_secs(600);

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
        return Ok(search::simulate(opening, patience(args), stops).await?);
    }
    let (progress, _telling) = tell(*printer);
    let request = SearchRequest {
        opening,
        store: store_url::parse_optional(args.store.as_deref())?,
        patience: patience(args),
        fail_unable: args.fail_unable_evals,
        #[cfg(feature = "nats")]
        remote: args.elsewhere.remote()?,
        stops,
        progress,
    };
    Ok(Box::pin(search::run(request)).await?)
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

fn patience(args: &RunArgs) -> Patience {
    let stale = args.lock_stale_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let default = if args.is_remote() && !args.dry_run { LOCK_STALE } else { STALE };
    Patience {
        stale: stale.unwrap_or(default),
        force: args.force,
        wait: true,
        hung: args.lock_stale_seconds.is_some(),
    }
}
