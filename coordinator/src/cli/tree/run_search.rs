//! Run session of a search: simulated, in this process, or on remote workers.

use std::time::Duration;

use rollout_engine::LockWaitPolicy;
use rollout_protocol::limits::LOCK_STALE;

use super::run::TreeRunArgs;
use crate::cli::error::CliError;
use crate::cli::invocation::Invocation;
use crate::cli::output::Printer;
use crate::cli::{store_url, traces};
use crate::config::TreeFile;
use crate::events::sinks::terminal::Screen;
use crate::launch::host::OperatorOptions;
use crate::launch::search::{self, SearchRequest};
use crate::launch::signals;
use crate::traces::TraceExport;
use crate::workloads::search::driver::{ManifestClock, SearchOpenOptions};
use crate::workloads::search::manifest::SearchManifest;

/// Time without a heartbeat before a local search is taken over.
const LOCAL_LOCK_STALE: Duration = Duration::from_secs(600);

/// Starts or resumes a search and runs it until it ends; a signal stops it.
pub(super) async fn run_search(
    tree: TreeFile,
    args: &TreeRunArgs,
    screen: Screen,
    printer: &Printer,
) -> Result<SearchManifest, CliError> {
    // Before signals are caught: a file of credentials may be a pipe into which nothing is written.
    #[cfg(feature = "nats")]
    let remote = if args.dry_run { None } else { args.remote.remote()? };
    let listening = signals::listen();
    let (stops, _signals) =
        listening.map_err(|error| CliError::failure("cannot listen for signals", &error))?;
    let mut sinks = printer.sinks(screen, !args.dry_run, args.json);
    // A simulation runs no work.
    let traces = match args.dry_run {
        true => TraceExport::default(),
        false => traces::for_run(&mut sinks),
    };
    let _monitoring = args.listen.for_run(&mut sinks, &traces).await?;
    let invocation = invocation(args, &tree);
    let options = SearchOpenOptions {
        tree,
        dry_run: args.dry_run,
        resume: args.resume,
        rerun_evals: args.rerun_evals,
        force_regenerate_ideas: args.force_regenerate_ideas,
        clock: if args.dry_run { ManifestClock::Counted } else { ManifestClock::System },
        invocation,
    };
    let request = SearchRequest {
        options,
        store: match args.dry_run {
            true => None,
            false => store_url::parse_optional(args.store.as_deref())?,
        },
        wait_policy: lock_wait_policy(args),
        fail_unable: args.fail_unable_evals,
        #[cfg(feature = "nats")]
        remote,
        stops,
        sinks,
        operator: OperatorOptions {
            ca_bundle: args.ca_bundle.of_process(args.is_remote(), printer),
            ..OperatorOptions::default()
        },
        tracer: traces.tracer(),
        slots: None,
    };
    Ok(Box::pin(search::run(request)).await?)
}

/// The command line of the search, for `rollout resume` and `retry`, which do not replace it. It names
/// the search, whose name may come from the clock. Equal simulations leave equal files, and none.
fn invocation(args: &TreeRunArgs, tree: &TreeFile) -> Option<serde_json::Value> {
    if args.dry_run || args.again.is_some() {
        return None;
    }
    let mut invocation = Invocation::of_process(&["tree", "run"])?;
    if !args.keys.has_name() {
        invocation.add("--tree-run-id", &tree.name);
    }
    #[cfg(feature = "nats")]
    if let Some(url) = args.remote.url() {
        invocation.add_server(url);
    }
    invocation.repository = std::path::absolute(tree.resolve_path(&tree.repository)).ok();
    serde_json::to_value(invocation).ok()
}

fn lock_wait_policy(args: &TreeRunArgs) -> LockWaitPolicy {
    let stale = args.lock_stale_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let default = if args.is_remote() && !args.dry_run { LOCK_STALE } else { LOCAL_LOCK_STALE };
    LockWaitPolicy {
        stale: stale.unwrap_or(default),
        force: args.force,
        wait: true,
        hung: args.lock_stale_seconds.is_some(),
    }
}
