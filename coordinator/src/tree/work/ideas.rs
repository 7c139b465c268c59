//! Ideas for several nodes at once, by commands that run in this process.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use rollout_protocol::id::RunId;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::environment::{Owner, Provider};
use rollout_worker::owner::{HostOwners, WorkerDir};
use rollout_worker::secrets::TrialVariables;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;
use rollout_worker::trial::{TaskFiles, TrialServices};
use tokio::sync::watch;

use crate::config::TreeFile;
use crate::host::{self, HostPaths};
use crate::journal::Layout;
use crate::run::tickets::{Ticket, Tickets};
use crate::run::{RunError, host_name};
use crate::tree::generator::{Generator, Holder};
use crate::tree::ids::NodeId;
use crate::tree::run::{COST_FILE, IdeasOrder, TreeError, WorkError};

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
        let services = TrialServices { providers, files, variables, host: host_name() };
        let owner = Owner::current(dir.path().to_owned());
        let holder = Holder { run, worker: dir.id().clone(), owner };
        let generator = Generator::new(tree, Arc::new(services), holder);
        Ok((Ideas { generator, tickets, stop }, dir))
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
        let at_once = orders.len().max(1);
        let written = orders.into_iter().map(|order| self.write_one(order, ending.clone()));
        let mut written = std::pin::pin!(stream::iter(written).buffer_unordered(at_once));
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
        let _ticket = self.ticket(stop.clone()).await?;
        let cost = self.generator.generate(&order, stop).await.map_err(WorkError::from)?;
        if cost > 0.0 {
            let file = order.into.join(COST_FILE);
            let written = tokio::fs::write(&file, cost.to_string()).await;
            written.map_err(|source| TreeError::File { action: "write", path: file, source })?;
        }
        Ok(node)
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
