//! Recovery after dead processes of this host: executions to report, environments to remove.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use rollout_base::backoff::error_chain;
use rollout_base::common_times::next_time;
use rollout_base::dependency::Dependency;
use rollout_base::supervise;
use rollout_base::warning_limiter::WarningLimiter;
use rollout_environment::Provider;
use rollout_protocol::record::LostReason;
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_queue::traits::WorkSource;
use rollout_store::BlobStore;
use rollout_store::host::{HostOwners, WorkerDir};
use rollout_worker::service::AdoptedExecutions;
use rollout_worker::spool::Recovery;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Time between two recoveries.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(30);

/// Leftovers that cannot be removed. Each recovery tries it again, also on a disk that is read-only for days.
static UNREMOVED: WarningLimiter = WarningLimiter::new();

/// Longest time for the removal of leftovers of one provider at the end of a process.
const LEFTOVERS_LIMIT: Duration = Duration::from_secs(60);

/// The same after a kill, and how long a removal is waited for without a word.
const SHORT_LEFTOVERS_LIMIT: Duration = Duration::from_secs(2);

/// Directories that are recovered at the same time.
const CONCURRENT_RECOVERIES: usize = 4;

/// Recovery of dead workers of one deployment, whose directories are below one base, and removal of
/// environments of any dead process of this host.
#[derive(Debug)]
pub struct HostRecovery {
    /// Base of the worker directories.
    pub base: PathBuf,
    /// Liveness of owners.
    pub owners: Arc<HostOwners>,
    /// Destination of records.
    pub store: Arc<dyn BlobStore>,
    /// Destination of reports.
    pub source: Arc<dyn WorkSource>,
    /// Recovered executions that the worker's heartbeats show until they are reported.
    pub adopted: Arc<AdoptedExecutions>,
}

impl HostRecovery {
    /// Recovers at once and then periodically until `stop`, which ends no recovery that has begun.
    /// `providers` returns those that work at present.
    pub async fn run(
        self,
        providers: impl Fn() -> Vec<Arc<dyn Provider>>,
        stop: CancellationToken,
    ) {
        // Unrecovered directories stay locked, so that each is logged once.
        let mut unreadable = Vec::new();
        loop {
            unreadable.extend(self.recover_dead(&providers()).await);
            let next = tokio::time::sleep_until(next_time(RECOVERY_INTERVAL));
            if stop.run_until_cancelled(next).await.is_none() {
                return;
            }
        }
    }

    /// Recovers once: reports lost executions, publishes finished ones, removes environments, then
    /// the directories. Returns the directories that could not be recovered completely.
    pub async fn recover_dead(&self, providers: &[Arc<dyn Provider>]) -> Vec<WorkerDir> {
        let dirs = self.recoverable_dirs().await;
        for dir in &dirs {
            self.owners.adopt(dir);
            tracing::info!("recovering dead worker {}", dir.id());
        }
        let recovering: Vec<_> = dirs.iter().map(|dir| self.recover(dir.path())).collect();
        let recovering =
            stream::iter(recovering).buffered(CONCURRENT_RECOVERIES).collect::<Vec<bool>>();
        let (clean, ()) = tokio::join!(recovering, reap_apart(providers, &self.owners));
        let mut left = Vec::new();
        for (dir, clean) in dirs.into_iter().zip(clean) {
            if clean {
                self.send_final_heartbeat(&dir).await;
                supervise::blocking(move || remove(dir)).await;
            } else {
                left.push(dir);
            }
        }
        left
    }

    /// Announces the end of a dead worker: everything is reported, so no process needs to wait for
    /// its heartbeat.
    async fn send_final_heartbeat(&self, dir: &WorkerDir) {
        let heartbeat = Heartbeat::departed(dir.id().clone(), String::new(), String::new());
        if let Err(error) = self.source.heartbeat(heartbeat).await {
            tracing::debug!("cannot send the final heartbeat of worker {}: {error}", dir.id());
        }
    }

    async fn recoverable_dirs(&self) -> Vec<WorkerDir> {
        let base = self.base.clone();
        let find = move || {
            let found = WorkerDir::adoptable(&base);
            sweep(&base);
            found
        };
        supervise::blocking(find).await.unwrap_or_else(|error| {
            tracing::warn!("cannot look for dead workers: {}", error_chain(&error));
            Vec::new()
        })
    }

    /// Recovers a directory. Returns whether nothing that is needed is left in it.
    async fn recover(&self, dir: &Path) -> bool {
        let recovery = match Recovery::read(dir, None).await {
            Ok(recovery) => recovery,
            Err(error) => {
                tracing::error!("cannot recover a dead worker: {}", error_chain(&error));
                return false;
            }
        };
        self.adopted.insert(recovery.finished());
        let on_reported = |exec| self.adopted.remove(exec);
        let reason = LostReason::WorkerDied;
        let recovered = recovery.publish(reason, &*self.store, &*self.source, on_reported).await;
        if recovered.published + recovered.lost > 0 {
            tracing::info!(
                "recovered {}: {} finished executions reported, {} reported lost",
                dir.display(),
                recovered.published,
                recovered.lost
            );
        }
        recovered.skipped == 0
    }
}

/// Recovers once after dead workers of a deployment on this host.
pub async fn recover_dead_workers(
    base: PathBuf,
    owners: Arc<HostOwners>,
    providers: &[Arc<dyn Provider>],
    store: Arc<dyn BlobStore>,
    source: Arc<dyn WorkSource>,
) {
    let recovery = HostRecovery { base, owners, store, source, adopted: Arc::default() };
    let _unreadable = recovery.recover_dead(providers).await;
}

/// Removes environments of dead owners on a blocking thread: the proof of a death opens the lock of the
/// owner, whose disk may give no answer.
async fn reap_apart(providers: &[Arc<dyn Provider>], owners: &Arc<HostOwners>) {
    let (providers, owners, runtime) = (providers.to_vec(), Arc::clone(owners), Handle::current());
    let abandoned = CancellationToken::new();
    let _abandon_when_dropped = abandoned.clone().drop_guard();
    let work = move || {
        runtime.block_on(async {
            tokio::select! {
                // First: the timers of a runtime that ends may not be asked any more.
                biased;
                () = abandoned.cancelled() => {}
                () = reap(&providers, &owners) => {}
            }
        });
    };
    supervise::blocking(work).await;
}

/// Removes environments of dead owners.
pub async fn reap(providers: &[Arc<dyn Provider>], owners: &HostOwners) {
    let mut unremoved = Vec::new();
    for provider in providers {
        match provider.reap(owners).await {
            Ok(reaped) => {
                for name in &reaped.removed {
                    tracing::info!("removed the leftover {name}");
                }
                unremoved.extend(unremoved_message(&reaped.failed));
            }
            Err(failure) => tracing::warn!("cannot look for leftovers: {}", failure.chain()),
        }
    }
    if !unremoved.is_empty() {
        UNREMOVED.warn(&unremoved.join("; "));
    }
}

/// One line for all leftovers of a provider that cannot be removed. They are those of dead processes, or of
/// executions of this process that have ended.
fn unremoved_message(failed: &[(String, String)]) -> Option<String> {
    let ((name, reason), others) = failed.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        1 => " and another".to_owned(),
        count => format!(" and {count} others"),
    };
    Some(format!("cannot remove the leftover {name}{others}: {reason}"))
}

/// Removes what removals of this process have left, before it ends. Without this, only a later process
/// would remove it. After a kill the process ends soon all the same.
pub async fn remove_leftovers(providers: &[Arc<dyn Provider>], is_killed: bool) {
    let limit = if is_killed { SHORT_LEFTOVERS_LIMIT } else { LEFTOVERS_LIMIT };
    let removals = providers.iter().cloned().map(|provider| remove_left(provider, limit));
    futures_util::future::join_all(removals).await;
}

async fn remove_left(provider: Arc<dyn Provider>, limit: Duration) {
    if provider.dependency().is_some_and(Dependency::is_down) {
        return;
    }
    let kind = provider.kind();
    let mut removing = provider.remove_deferred();
    if tokio::time::timeout(SHORT_LEFTOVERS_LIMIT, &mut removing).await.is_ok() {
        return;
    }
    let rest = limit.saturating_sub(SHORT_LEFTOVERS_LIMIT);
    if !rest.is_zero() {
        tracing::info!("waiting at most {rest:?} for the removal of environments of `{kind}`");
        if tokio::time::timeout(rest, removing).await.is_ok() {
            return;
        }
    }
    tracing::warn!("not everything of `{kind}` was removed in time");
}

/// Removes unneeded directories of dead workers of any deployment.
pub(super) fn sweep(workers: &Path) {
    let Some(all) = workers.parent() else { return };
    for deployment in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let path = deployment.path();
        WorkerDir::sweep(&path);
        if path != workers {
            // Others may be using it.
            let _in_use = std::fs::remove_dir(&path);
        }
    }
}

fn remove(dir: WorkerDir) {
    if let Err(error) = dir.remove() {
        tracing::warn!("{}", error_chain(&error));
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use rollout_environment::null::NullProvider;
    use rollout_environment::{
        CreateRequest, DeadOwners, Environment, Failure, Image, ImageRequest, ReapReport,
    };
    use rollout_protocol::spec::environment::ProviderKind;
    use tokio::time::Instant;

    use super::*;

    /// A provider whose removals never end.
    #[derive(Debug)]
    struct StuckProvider(NullProvider);

    #[async_trait]
    impl Provider for StuckProvider {
        fn kind(&self) -> ProviderKind {
            self.0.kind()
        }

        async fn remove_deferred(&self) {
            std::future::pending::<()>().await;
        }

        async fn prepare(&self, request: ImageRequest) -> Result<Image, Failure> {
            self.0.prepare(request).await
        }

        async fn create(&self, request: CreateRequest) -> Result<Box<dyn Environment>, Failure> {
            self.0.create(request).await
        }

        async fn reap(&self, dead: &dyn DeadOwners) -> Result<ReapReport, Failure> {
            self.0.reap(dead).await
        }
    }

    #[test]
    fn leftovers_that_stay_have_one_line_that_accuses_no_process() {
        let failed =
            ["sandbox-1", "sandbox-2"].map(|name| (name.to_owned(), "Read-only".to_owned()));
        let one = unremoved_message(&failed[..1]);
        assert_eq!(one.as_deref(), Some("cannot remove the leftover sandbox-1: Read-only"));
        let all = unremoved_message(&failed).expect("two are left");
        assert_eq!(all, "cannot remove the leftover sandbox-1 and another: Read-only");
        assert_eq!(unremoved_message(&[]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn removals_that_hang_delay_the_end_once_and_a_kill_hardly() {
        let stuck = |kind| Arc::new(StuckProvider(NullProvider(kind))) as Arc<dyn Provider>;
        let providers = [stuck(ProviderKind::Docker), stuck(ProviderKind::Kubernetes)];
        for (is_killed, limit) in [(true, SHORT_LEFTOVERS_LIMIT), (false, LEFTOVERS_LIMIT)] {
            let begun = Instant::now();
            remove_leftovers(&providers, is_killed).await;
            assert_eq!(begun.elapsed().as_secs(), limit.as_secs(), "killed: {is_killed}");
        }
    }
}
