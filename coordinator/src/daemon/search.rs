//! A session of a search over the commits of a repository. It resumes what earlier sessions left, as
//! `rollout tree run` does. A search takes no commands while it runs: pausing it ends its session in
//! order, and cancelling it ends the session at once.

use std::path::Path;
use std::sync::Arc;

use rollout_base::supervise::{self, Task};
use rollout_base::traces::Tracer;
use rollout_engine::{LockWaitPolicy, RunError};
use rollout_protocol::exit::ExitCode;
use rollout_protocol::wire::control::StopLevel;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::driver::{PrepareFault, STOP_CAPACITY, SessionEnd, in_turn, prepared_unless_ended};
use super::failure::{RunFailure, RunFault, SessionFailure};
use super::hosted_run::{HostedRun, HostedSession};
use super::policy::DocumentPolicy;
use super::principal::AllowedVariables;
use super::record::WantedState;
use super::submit::{CheckFault, is_set};
use super::{Daemon, search_log};
use crate::config::{Diagnostics, HostAccess, TreeFile, TreeOptions, TreeOverrides, read_tree};
use crate::launch::LaunchError;
use crate::launch::search::{self, SearchRequest};
use crate::workloads::search::driver::{
    ManifestClock, SearchError, SearchOpenOptions, check_baseline,
};
use crate::workloads::search::manifest::SearchManifest;
use crate::workloads::search::report::OutcomeCounts;

/// Where a search is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchPlace<'a> {
    /// Its name, which is that of its directory.
    pub(super) name: &'a str,
    /// Parent of its directory.
    pub(super) runs_root: &'a Path,
}

/// Reads a search document and checks it against the operator's rules. Blocks.
pub(super) fn checked_tree(
    path: &Path,
    policy: &DocumentPolicy,
    variables: &AllowedVariables,
    is_remote: bool,
    place: Option<SearchPlace<'_>>,
) -> Result<TreeFile, CheckFault> {
    let is_set = |name: &str| is_set(variables, name, is_remote);
    let read = |overrides| {
        let host = HostAccess::Listed(policy);
        let options = TreeOptions { overrides, is_remote, host, ..TreeOptions::new(&is_set) };
        let mut problems = Diagnostics::default();
        let tree = read_tree(path, &options, &mut problems);
        (tree, problems)
    };
    let (tree, problems) = read(TreeOverrides::default());
    let mut details = problems.refusals();
    details.extend(tree.iter().flat_map(|tree| policy.tree_violations(tree, variables)));
    if !details.is_empty() {
        return Err(CheckFault::refused("search", details, problems.names_host_file()));
    }
    let (tree, problems) = match place {
        None => (tree, problems),
        Some(SearchPlace { name, runs_root }) => read(TreeOverrides {
            tree_run_id: Some(name.to_owned()),
            runs_root: Some(runs_root.to_owned()),
            ..TreeOverrides::default()
        }),
    };
    match problems.finish(tree) {
        Ok((Some(tree), _)) => Ok(tree),
        // A document without structure has recorded an error.
        Ok((None, _)) => Err(CheckFault::empty("search")),
        Err(errors) => Err(CheckFault::Config(RunFault::Config(errors))),
    }
}

/// Runs a session of a search to its end.
pub(super) async fn run(
    daemon: &Daemon,
    run: &Arc<HostedRun>,
    session: &HostedSession,
    mut stops: mpsc::Receiver<StopLevel>,
) -> SessionEnd {
    let had_begun = run.has_begun();
    let is_cancelled = *run.wanted().borrow() == WantedState::Cancelled;
    if is_cancelled && !had_begun {
        return SessionEnd::NeverStarted;
    }
    let preparing = prepare(daemon, run);
    let tree = match prepared_unless_ended(run, &mut stops, preparing).await {
        Ok(tree) => tree,
        Err(end) => return end,
    };
    let (send, forwarded) = mpsc::channel(STOP_CAPACITY);
    let _forwarding = forward(Arc::clone(run), stops, send);
    let request = match request(daemon, run, tree, session, forwarded) {
        Ok(request) => request,
        Err(failure) if had_begun => return SessionEnd::Failed(failure.into()),
        Err(failure) => return SessionEnd::Invalid(failure),
    };
    match launch(request).await {
        Ok(manifest) => ended(run, &manifest),
        Err(error) => {
            let is_invalid = !run.has_begun()
                && matches!(error, LaunchError::Search(SearchError::Baseline { .. }));
            let fault = RunFault::Launch(Box::new(error));
            let failed = SessionFailure::of(fault, daemon.options.explain);
            if failed.failure.code == ExitCode::Cancelled.code() {
                return stopped(run);
            }
            if is_invalid {
                SessionEnd::Invalid(failed.failure)
            } else {
                SessionEnd::Failed(failed)
            }
        }
    }
}

/// The end of a session that was stopped before the search had ended.
fn stopped(run: &HostedRun) -> SessionEnd {
    match *run.wanted().borrow() {
        WantedState::Cancelled => SessionEnd::Completed { code: ExitCode::Success.code() },
        WantedState::Running | WantedState::Paused => SessionEnd::Stopped,
    }
}

fn ended(run: &HostedRun, manifest: &SearchManifest) -> SessionEnd {
    if !manifest.state.stopped {
        return stopped(run);
    }
    let counts = OutcomeCounts::from_manifest(manifest);
    let code = match counts.failed_by_infrastructure {
        _ if !counts.has_only_failures() => ExitCode::Success,
        0 => ExitCode::NothingMeasured,
        _ => ExitCode::Infrastructure,
    };
    SessionEnd::Completed { code: code.code() }
}

/// Reads the document, and the baseline of a search that has not begun.
async fn prepare(daemon: &Daemon, run: &HostedRun) -> Result<TreeFile, PrepareFault> {
    let dir = Arc::clone(&daemon.dir);
    let (id, policy) = (run.id().clone(), daemon.policy_of(&run.limit_user()));
    let variables = run.view().record.variables;
    let (explain, is_remote) = (daemon.options.explain, daemon.is_remote());
    let work = move |_cancelled| {
        let (path, jobs) = (dir.document(&id), dir.jobs());
        let place = SearchPlace { name: id.as_str(), runs_root: &jobs };
        // The operator's rules may have changed since the submission.
        let tree = checked_tree(&path, &policy, &variables, is_remote, Some(place));
        let mut tree = tree.map_err(|fault| PrepareFault::of_check(fault, explain, &path))?;
        tree.commands.set_build_guard(policy.images.listed());
        match check_baseline(&tree) {
            Ok(warnings) => {
                for warning in warnings {
                    tracing::warn!("run {id}: {warning}");
                }
                Ok(tree)
            }
            Err(error) => {
                let fault = RunFault::Launch(Box::new(error.into()));
                Err(PrepareFault::from(SessionFailure::of(fault, explain)))
            }
        }
    };
    in_turn(daemon, &run.limit_user(), work).await
}

fn request(
    daemon: &Daemon,
    run: &HostedRun,
    tree: TreeFile,
    session: &HostedSession,
    stops: mpsc::Receiver<StopLevel>,
) -> Result<SearchRequest, RunFailure> {
    #[cfg(feature = "nats")]
    let remote = super::driver::remote(daemon, None)?;
    Ok(SearchRequest {
        options: SearchOpenOptions {
            tree,
            dry_run: false,
            resume: true,
            rerun_evals: false,
            force_regenerate_ideas: false,
            clock: ManifestClock::System,
            invocation: None,
        },
        store: daemon.options.store.clone(),
        // Only an earlier daemon can own a run of this directory, and this one has its lock.
        wait_policy: LockWaitPolicy::default(),
        fail_unable: false,
        #[cfg(feature = "nats")]
        remote,
        stops,
        sinks: vec![session.progress.sink(), search_log::sink(session.progress.feed())],
        operator: daemon.options.operator.clone(),
        tracer: Tracer::default(),
        slots: Some(daemon.slot_share(run.limit_user(), run.view().record.priority)),
    })
}

/// Forwards the stops of the daemon, and those that follow from what the user wants.
fn forward(
    run: Arc<HostedRun>,
    mut stops: mpsc::Receiver<StopLevel>,
    send: mpsc::Sender<StopLevel>,
) -> Task<()> {
    supervise::spawn("search stops", async move {
        let mut wanted = run.wanted();
        loop {
            let level = match *wanted.borrow_and_update() {
                WantedState::Running => None,
                WantedState::Paused => Some(StopLevel::Drain),
                WantedState::Cancelled => Some(StopLevel::Kill),
            };
            if let Some(level) = level
                && send.send(level).await.is_err()
            {
                return;
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                level = stops.recv() => match level {
                    Some(level) if send.send(level).await.is_ok() => {}
                    _ => return,
                },
            }
        }
    })
}

/// Runs a search on a thread of its own: it may not depend on other work of this process.
async fn launch(request: SearchRequest) -> Result<SearchManifest, LaunchError> {
    let (send, ended) = oneshot::channel();
    let runtime = Handle::current();
    let started = supervise::thread("search", move || {
        let result = runtime.block_on(Box::pin(search::run(request)));
        // A driver that has gone needs no result.
        let _gone = send.send(result);
    });
    match started {
        Ok(_detached) => ended.await.map_err(|_| RunError::PartEnded("the search"))?,
        Err(error) => Err(LaunchError::Outputs(error)),
    }
}
