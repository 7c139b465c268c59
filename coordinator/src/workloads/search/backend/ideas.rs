//! Ideas for several nodes at once, by commands that run in this process.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use rollout_protocol::id::RunId;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::environment::{Owner, Provider};
use rollout_worker::executor::{TaskFiles, TrialServices};
use rollout_worker::host::{HostOwners, WorkerDir};
use rollout_worker::secrets::TrialVariables;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;
use tokio::sync::watch;

use crate::config::TreeFile;
use crate::engine::concurrency::{Ticket, Tickets};
use crate::engine::journal::Layout;
use crate::engine::{RunError, host_name};
use crate::launch::host::{self, HostPaths};
use crate::workloads::search::driver::{COST_FILE, IdeasOrder, TreeError, WorkError};
use crate::workloads::search::generator::{Generator, Holder, IdeasError};
use crate::workloads::search::ids::NodeId;

/// What the command for ideas needs of this host.
pub(super) struct Desk {
    pub(super) host: HostPaths,
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) variables: TrialVariables,
    /// Without which no command may run, if there are limits.
    pub(super) tickets: Option<Arc<Tickets>>,
    /// Whether what dead processes left is removed first.
    pub(super) clears_up: bool,
    pub(super) stop: watch::Receiver<Option<StopLevel>>,
}

/// Has ideas written.
pub(super) struct Ideas {
    generator: Generator,
    /// Commands at once: as many as evals, whose host this may be, too.
    at_once: usize,
    tickets: Option<Arc<Tickets>>,
    stop: watch::Receiver<Option<StopLevel>>,
}

impl Desk {
    /// Makes a directory by which others can tell that this process is dead, and what has ideas
    /// written with it. The directory is to be removed when nobody needs them any more.
    ///
    /// # Errors
    /// [`RunError`].
    pub(super) async fn open(
        self,
        tree: &TreeFile,
        layout: &Layout,
        run: RunId,
    ) -> Result<(Ideas, WorkerDir), RunError> {
        let Self { host, store, variables, tickets, clears_up, stop } = self;
        let kind = tree.commands.ideas.place.provider.kind();
        let provider = host::provider(kind, &host, layout.sandboxes())?;
        let base = layout.workers();
        if clears_up {
            clear_up(&base, Arc::clone(&provider)).await;
        }
        let (dir, files) = supervise::blocking(move || {
            let failed = |source| RunError::File { action: "create", path: base.clone(), source };
            fs::create_dir_all(&base).map_err(failed)?;
            let dir = WorkerDir::create(&base).map_err(|e| failed(std::io::Error::other(e)))?;
            let files = TaskFiles::open(&dir.path().join("cache"), store).map_err(failed)?;
            Ok::<_, RunError>((dir, files))
        })
        .await?;
        let providers = BTreeMap::from([(kind, provider)]);
        let disks = Arc::default();
        let services = TrialServices { providers, files, variables, disks, host: host_name() };
        let owner = Owner::current(dir.path().to_owned());
        let holder = Holder { run, worker: dir.id().clone(), owner };
        let generator = Generator::new(tree, Arc::new(services), holder);
        let at_once = tree.search.max_parallel_evals.max(1) as usize;
        Ok((Ideas { generator, at_once, tickets, stop }, dir))
    }
}

/// Removes environments of dead processes and their directories, but for those that a worker left.
async fn clear_up(base: &Path, provider: Arc<dyn Provider>) {
    let from = base.to_owned();
    let former = supervise::blocking(move || WorkerDir::adoptable(&from)).await;
    let former = former.unwrap_or_else(|error| {
        tracing::warn!("cannot look for what dead processes left: {error}");
        Vec::new()
    });
    let owners = HostOwners::new(Owner::current(base.to_owned()));
    former.iter().for_each(|dir| owners.adopt(dir));
    host::reap(&[provider], &owners).await;
    supervise::blocking(move || {
        for dir in former.into_iter().filter(|dir| !dir.holds_work()) {
            let path = dir.path().display().to_string();
            if let Err(error) = dir.remove() {
                tracing::warn!("cannot remove {path}: {error}");
            }
        }
    })
    .await;
}

impl Ideas {
    /// Has ideas written for all nodes; `done` hears of each that has them. When one fails, the
    /// others are ended: what is there by then stays.
    ///
    /// # Errors
    /// The first.
    pub(super) async fn write(
        &self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let (end, ending) = watch::channel(*self.stop.borrow());
        let written = orders.into_iter().map(|order| self.write_one(order, ending.clone()));
        let mut written = std::pin::pin!(stream::iter(written).buffer_unordered(self.at_once));
        let (mut first, mut stop) = (Ok(()), self.stop.clone());
        loop {
            let next = tokio::select! {
                next = written.next() => next,
                Ok(()) = stop.changed() => {
                    end.send_replace(*stop.borrow_and_update());
                    continue;
                }
            };
            let Some(next) = next else { return first };
            let ended = next.and_then(&mut *done);
            if first.is_ok() && ended.is_err() {
                first = ended;
                // A generator must come to its end: its environment has to go.
                end.send_replace(Some(StopLevel::Kill));
            }
        }
    }

    async fn write_one(
        &self,
        order: IdeasOrder,
        stop: watch::Receiver<Option<StopLevel>>,
    ) -> Result<NodeId, TreeError> {
        let node = order.node.node_id;
        let cost = self.generate(&order, stop).await?;
        if cost > 0.0 {
            let file = order.into.join(COST_FILE);
            let written = tokio::fs::write(&file, cost.to_string()).await;
            written.map_err(|source| TreeError::File { action: "write", path: file, source })?;
        }
        Ok(node)
    }

    /// Runs the command; again when its environment failed, as evals are tried again.
    async fn generate(
        &self,
        order: &IdeasOrder,
        mut stop: watch::Receiver<Option<StopLevel>>,
    ) -> Result<f64, WorkError> {
        let (policy, mut failed) = (RetryPolicy::default(), 0);
        loop {
            let ticket = self.ticket(stop.clone()).await?;
            let error = match self.generator.generate(order, stop.clone()).await {
                Ok(cost) => return Ok(cost),
                Err(error) => error,
            };
            drop(ticket);
            failed += 1;
            let Some(wait) = wait(&policy, failed, &error) else { return Err(error.into()) };
            tracing::warn!("{}; it is tried again", error.chain());
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stop.wait_for(Option::is_some) => return Err(WorkError::Stopped),
            }
        }
    }

    /// Waits until the command may run.
    async fn ticket(
        &self,
        mut stop: watch::Receiver<Option<StopLevel>>,
    ) -> Result<Option<Ticket>, WorkError> {
        if stop.borrow().is_some() {
            return Err(WorkError::Stopped);
        }
        let Some(tickets) = &self.tickets else { return Ok(None) };
        tokio::select! {
            ticket = tickets.llm() => Ok(Some(ticket)),
            _ = stop.wait_for(Option::is_some) => Err(WorkError::Stopped),
        }
    }
}

/// How long is waited before a command is run again that failed so often; nothing when it is not.
fn wait(policy: &RetryPolicy, failed: u32, error: &IdeasError) -> Option<Duration> {
    let wait = policy.delay(failed, rand::random());
    wait.filter(|_| error.fault.is_transient())
}

#[cfg(test)]
mod tests {
    use rollout_worker::environment::FailureKind;
    use rollout_worker::environment::fake::{At, Call, Effect};

    use super::*;
    use crate::workloads::search::generator::testing::Bench;

    fn ideas(bench: &Bench, script: &str, at_once: usize) -> Ideas {
        let generator = bench.generator(&bench.tree(script));
        Ideas { generator, at_once, tickets: None, stop: bench.stop.subscribe() }
    }

    async fn written(bench: &Bench, script: &str) -> Result<(), TreeError> {
        ideas(bench, script, 1).write(vec![bench.order()], &mut |_| Ok(())).await
    }

    fn creations(bench: &Bench) -> usize {
        bench.provider.calls().iter().filter(|call| **call == Call::Create).count()
    }

    #[tokio::test]
    async fn a_failed_environment_is_tried_again_and_a_failed_command_is_not() {
        let (bench, down) = (Bench::new(), Effect::Fail(FailureKind::Unreachable));
        bench.provider.fault(At::Nth(Call::Create, 0), down);
        written(&bench, "echo x > /ideas/a.md").await.expect("written by the second try");
        assert_eq!((creations(&bench), bench.ideas().len()), (2, 1));
        let bench = Bench::new();
        written(&bench, "echo x > /ideas/a.md; exit 3").await.expect_err("it failed");
        assert_eq!(creations(&bench), 1);
        bench.provider.fault(At::Every(Call::Create), down);
        let error = written(&bench, "echo").await.expect_err("down for good");
        assert!(matches!(error, TreeError::Work(WorkError::Failed { .. })), "{error:?}");
        assert_eq!(creations(&bench), 4, "no more tries than evals have");
    }

    #[tokio::test]
    async fn a_stop_ends_the_waiting_for_another_try() {
        let bench = Bench::new();
        bench.provider.fault(At::Every(Call::Create), Effect::Fail(FailureKind::Service));
        let stopping = async {
            while creations(&bench) == 0 {
                tokio::task::yield_now().await;
            }
            bench.stop.send_replace(Some(StopLevel::Drain));
        };
        let (ended, ()) = tokio::join!(written(&bench, "echo"), stopping);
        assert!(matches!(ended, Err(TreeError::Work(WorkError::Stopped))), "{ended:?}");
        assert!(creations(&bench) < 3);
    }

    #[tokio::test]
    async fn no_more_commands_run_at_once_than_evals_may() {
        let bench = Bench::new();
        let orders = (0..5).map(|n| {
            let mut order = bench.order();
            order.node.node_id = NodeId(n);
            order.into.set_file_name(format!(".new-{n}"));
            fs::create_dir_all(&order.into).expect("made");
            order
        });
        let (orders, mut most, mut done) = (orders.collect(), 0, Vec::new());
        let ideas = ideas(&bench, "echo x > /ideas/a.md; sleep 0.05", 2);
        let mut note = |node| {
            done.push(node);
            Ok(())
        };
        {
            let mut writing = std::pin::pin!(ideas.write(orders, &mut note));
            let written = loop {
                let there = bench.provider.existing().len();
                most = most.max(there);
                tokio::select! {
                    written = &mut writing => break written,
                    () = tokio::task::yield_now() => {}
                }
            };
            written.expect("written");
        }
        assert_eq!((most, done.len()), (2, 5));
    }
}
