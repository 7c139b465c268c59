//! The live backend of a search: git, and evals as items of the search's run.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::error::Error;
use std::sync::Arc;

use rollout_base::backoff::{OutageLog, error_chain};
use rollout_engine::Fence;
use rollout_engine::core::ItemSettlement;
use rollout_protocol::blob::MediaType;
use rollout_protocol::digest::Digest;
use rollout_protocol::event::RunEvent;
use rollout_protocol::id::ItemId;
use rollout_protocol::item_name::{EvalName, ItemName};
use rollout_protocol::record::EvalRecord;
use rollout_store::{BlobStore, StoreError, get_json, put_json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::inactive_repository::{reconcile_repository, remove_from_repository};
use super::outcome::AttemptTotals;
use super::requests::{RunNotification, WorkKind, WorkRequest, WorkRequests};
use super::{SearchPlan, events, outcome, results};
use crate::config::TreeFile;
use crate::workloads::search::driver::{
    BackendError, DesiredRepositoryState, EvalOrder, EvalResult, FailedRemoval, IdeasOrder,
    RepositoryMaintenance, SearchBackend, SearchError,
};
use crate::workloads::search::manifest::{DeferredCleanup, SearchManifest};
use crate::workloads::search::repository::{RepositoryError, SearchRepository, SourceRepository};
use rollout_protocol::search::{NodeId, SearchEvent};

/// A backend whose evals run on workers.
pub(super) struct LiveBackend {
    /// Runtime for asynchronous calls: the search runs on a thread of its own.
    pub(super) handle: Handle,
    /// Checks that this process still owns the search, before files are written.
    pub(super) fence: Fence,
    pub(super) tree: TreeFile,
    pub(super) plan: SearchPlan,
    pub(super) store: Arc<dyn BlobStore>,
    /// Opened on first use.
    pub(super) repository: Option<SearchRepository>,
    pub(super) requests: Arc<WorkRequests>,
    pub(super) notifications: mpsc::UnboundedReceiver<RunNotification>,
    /// The pending tries.
    pub(super) tries: HashMap<ItemId, PendingEval>,
    /// Evals that the infrastructure could not run, with the reasons.
    pub(super) unable: Vec<String>,
    /// Whether such evals count as failed.
    pub(super) fail_unable: bool,
    /// Evals settled while the search waited for ideas.
    pub(super) settled_evals: VecDeque<ItemId>,
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
}

/// A requested try.
pub(super) struct PendingEval {
    order: EvalOrder,
    attempt: u32,
    /// Time and cost of earlier attempts.
    earlier_attempts: AttemptTotals,
}

impl LiveBackend {
    pub(super) fn repository(&mut self) -> Result<&SearchRepository, BackendError> {
        if self.repository.is_none() {
            let (run, store) = (self.tree.run_dir(), Arc::clone(&self.store));
            let opening = SearchRepository::open(&run, &self.tree.name, store);
            let opened = self
                .handle
                .block_on(opening)
                .map_err(backend_error("cannot open the repository"))?;
            self.repository = Some(opened);
        }
        Ok(self.repository.as_ref().expect("it was just opened"))
    }

    /// Requests a try of an eval.
    fn request_eval(
        &mut self,
        order: EvalOrder,
        attempt: u32,
        earlier_attempts: AttemptTotals,
    ) -> Result<(), BackendError> {
        let failed = "cannot prepare an eval";
        let repository =
            self.repository()?.spec(&order.parent_commit).map_err(backend_error(failed))?;
        let (store, idea) = (Arc::clone(&self.store), order.idea.clone());
        let spec = self.handle.block_on(async {
            let idea = with_retry(async || store.put_file(&idea, MediaType::Text).await).await?;
            let spec = self.plan.spec(&order, repository, idea);
            with_retry(async || put_json(&*store, &spec).await).await
        });
        let spec = spec.map_err(backend_error(failed))?.digest;
        let eval = &order.eval;
        let item = self.eval_item(&order, attempt, &spec);
        let name = ItemName::Eval(EvalName {
            search: self.tree.name.clone(),
            node: eval.parent_node_id,
            eval: eval.eval_id,
            attempt,
        });
        self.tries.insert(item, PendingEval { order, attempt, earlier_attempts });
        self.requests.request(WorkRequest { kind: WorkKind::Eval, item, spec, name });
        Ok(())
    }

    /// The key of a try: the first one that is not used up by an infrastructure failure.
    fn eval_item(&self, order: &EvalOrder, attempt: u32, spec: &Digest) -> ItemId {
        let (tree, eval) = (&self.tree.name, order.eval.eval_id.0);
        let mut unable = 0;
        loop {
            let item = ItemId::for_eval(tree, eval, (order.round, unable), attempt, spec);
            let settled = self.requests.settlement(&item);
            let was_unable = settled.is_some_and(|settled| outcome::is_unable(&settled));
            if !was_unable || self.fail_unable || self.tries.contains_key(&item) {
                return item;
            }
            unable += 1;
        }
    }

    /// Handles a settled try: its eval has ended, or another attempt is requested.
    fn conclude(&mut self, item: ItemId) -> Result<Option<EvalResult>, BackendError> {
        let settled = self.requests.settlement(&item);
        let (Some(PendingEval { order, attempt, earlier_attempts }), Some(settled)) =
            (self.tries.remove(&item), settled)
        else {
            return Ok(None);
        };
        if outcome::is_unable(&settled) && !self.fail_unable {
            let error = settled.verdict.error.as_ref();
            let reason = error.map(|error| error.message.clone()).unwrap_or_default();
            self.unable.push(format!("eval {}: {reason}", order.eval.eval_id));
            return Ok(None);
        }
        let record = self.read_record(&settled)?;
        let tries = earlier_attempts.plus(&settled, record.as_ref());
        let path = match &record {
            Some(record) => self.write_results(record, &order, attempt)?,
            None => None,
        };
        if attempt <= order.retries && outcome::is_worth_retry(&settled, record.as_ref()) {
            self.request_eval(order, attempt + 1, tries)?;
            return Ok(None);
        }
        let mut result = outcome::result(&order, attempt, &settled, record.as_ref(), path);
        (result.seconds, result.cost) = (Some(tries.seconds), tries.cost);
        result.calls = tries.calls;
        if let Some(candidate) = record.as_ref().and_then(|record| record.candidate.as_ref()) {
            self.fence.check()?;
            self.repository()?;
            let repository = self.repository.as_ref().expect("it was opened");
            let parent = &order.parent_commit;
            let imported = import_with_retry(async || repository.import(parent, candidate).await);
            match self.handle.block_on(imported) {
                Ok(()) => {}
                Err(error @ RepositoryError::Refused { .. }) => {
                    outcome::mark_refused(&mut result, error.chain());
                }
                Err(error) => return Err(backend_error("cannot import a candidate")(error)),
            }
        }
        self.fence.check()?;
        result.write(&order.root).map_err(backend_error("cannot write an eval's result"))?;
        self.send_events(vec![events::eval_ended(&result)]);
        Ok(Some(result))
    }

    fn read_record(&self, settled: &ItemSettlement) -> Result<Option<EvalRecord>, BackendError> {
        let Some(blob) = settled.by.as_ref().and_then(|by| by.record.as_ref()) else {
            return Ok(None);
        };
        let store = &*self.store;
        let reading = with_retry(async || get_json::<EvalRecord>(store, &blob.digest).await);
        let record =
            self.handle.block_on(reading).map_err(backend_error("cannot read an eval's record"))?;
        Ok((record.item == settled.item).then_some(record))
    }

    fn write_results(
        &self,
        record: &EvalRecord,
        order: &EvalOrder,
        attempt: u32,
    ) -> Result<Option<String>, BackendError> {
        let (store, file) = (&*self.store, self.plan.results_file());
        let outage = OutageLog::new("the blob store");
        let writing = async {
            let mut backoff = outage.backoff();
            loop {
                self.fence.check()?;
                match results::write(store, record, &order.root, attempt, file).await {
                    Err(error) if error.is_transient() => backoff.wait_after_failure(&error).await,
                    written => {
                        return written.map_err(backend_error("cannot write an eval's files"));
                    }
                }
            }
        };
        self.handle.block_on(writing)
    }

    fn send_events(&self, events: Vec<SearchEvent>) {
        events::send(&self.events, events);
    }
}

impl RepositoryMaintenance for LiveBackend {
    fn reconcile(
        &mut self,
        wanted: &DesiredRepositoryState,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, BackendError> {
        self.repository()?;
        let repository = self.repository.as_ref().expect("it was opened");
        reconcile_repository(&self.handle, repository, wanted, deferred)
    }

    fn remove(&mut self, item: &DeferredCleanup) -> Result<(), String> {
        self.repository().map_err(|error| error.to_string())?;
        let repository = self.repository.as_ref().expect("it was opened");
        remove_from_repository(&self.handle, repository, item)
    }
}

impl SearchBackend for LiveBackend {
    fn resolve(&mut self, name: &str) -> Result<String, BackendError> {
        let (tree, store) = (&self.tree, Arc::clone(&self.store));
        let except = [tree.runs_root.clone()];
        let made = self.handle.block_on(async {
            let user = SourceRepository::open(&tree.resolve_path(&tree.repository)).await?;
            user.check_clean(&except).await?;
            let root = user.resolve(name).await?;
            SearchRepository::create(&tree.run_dir(), &tree.name, &user, &root, store).await
        });
        let made = made.map_err(backend_error("cannot create the search's repository"))?;
        let root = made.root();
        self.repository = Some(made);
        Ok(root)
    }

    fn diff(&mut self, from: &str, to: &str) -> Result<Vec<u8>, BackendError> {
        self.repository()?;
        let repository = self.repository.as_ref().expect("it was opened");
        let diff = self.handle.block_on(repository.diff(from, to));
        diff.map_err(backend_error("cannot compare commits"))
    }

    fn on_unmerged_result(&mut self, result: &EvalResult) {
        self.send_events(vec![events::eval_ended(result)]);
    }

    fn on_manifest_written(&mut self, manifest: &SearchManifest) {
        self.send_events(events::block_events(manifest));
    }

    fn generate_ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), SearchError>,
    ) -> Result<(), SearchError> {
        let begun = |order: &IdeasOrder| SearchEvent::IdeasStarted { node: order.node.node_id };
        self.send_events(orders.iter().map(begun).collect());
        self.write_ideas(orders, done)
    }

    fn begin_eval(&mut self, order: EvalOrder) -> Result<(), BackendError> {
        let (eval, node) = (order.eval.eval_id, order.eval.parent_node_id);
        let idea = order.eval.idea_path.clone();
        self.request_eval(order, 1, AttemptTotals::default())?;
        self.send_events(vec![SearchEvent::EvalStarted { eval, node, idea }]);
        Ok(())
    }

    fn next_result(&mut self) -> Result<EvalResult, BackendError> {
        loop {
            if let Some(item) = self.settled_evals.pop_front() {
                if let Some(result) = self.conclude(item)? {
                    return Ok(result);
                }
                continue;
            }
            let notification = match self.notifications.try_recv() {
                Ok(told) => Some(told),
                // Report them only when all settlements are handled: those of former sessions may
                // lead to requests, such as another attempt of an eval, that a former session
                // began.
                Err(_) if self.tries.is_empty() && !self.unable.is_empty() => {
                    // All other evals have ended.
                    return Err(BackendError::EvalsNotRun {
                        evals: std::mem::take(&mut self.unable),
                    });
                }
                Err(_) => {
                    self.requests.set_waiting();
                    self.handle.block_on(self.notifications.recv())
                }
            };
            match notification {
                Some(RunNotification::Settled(item)) => {
                    if let Some(result) = self.conclude(item)? {
                        return Ok(result);
                    }
                }
                Some(RunNotification::Ended) | None => return Err(BackendError::Stopped),
            }
        }
    }
}

/// Imports a candidate, and waits while the blob store is unavailable.
async fn import_with_retry(
    import: impl AsyncFn() -> Result<(), RepositoryError>,
) -> Result<(), RepositoryError> {
    let is_transient =
        |error: &_| matches!(error, RepositoryError::Store(error) if error.is_transient());
    with_retry_if(is_transient, import).await
}

/// Retries until success or a permanent error.
pub(super) async fn with_retry<T>(
    work: impl AsyncFn() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    with_retry_if(StoreError::is_transient, work).await
}

/// Retries until success or an error that is not transient.
pub(super) async fn with_retry_if<T, E: Error>(
    is_transient: impl Fn(&E) -> bool,
    work: impl AsyncFn() -> Result<T, E>,
) -> Result<T, E> {
    let outage = OutageLog::new("the blob store");
    let mut backoff = outage.backoff();
    loop {
        match work().await {
            Err(error) if is_transient(&error) => backoff.wait_after_failure(&error).await,
            done => return done,
        }
    }
}

/// Wraps an error for the search.
pub(super) fn backend_error<E: Error>(what: &'static str) -> impl FnOnce(E) -> BackendError {
    move |error| BackendError::Failed { what: what.to_owned(), reason: error_chain(&error) }
}
