//! The workshop of a search for real: git, and evals as items of the search's run.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::error::Error;
use std::sync::Arc;

use rollout_protocol::blob::MediaType;
use rollout_protocol::digest::Digest;
use rollout_protocol::event::RunEvent;
use rollout_protocol::id::ItemId;
use rollout_protocol::item_name::{EvalName, ItemName};
use rollout_protocol::record::EvalRecord;
use rollout_worker::backoff::{Outage, chain};
use rollout_worker::store::{BlobStore, StoreError, get_json, put_json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::asked::{Asked, Told, Try, WorkKind};
use super::kept::{kept, removed};
use super::outcome::Tries;
use super::{Plan, events, outcome, results};
use crate::config::TreeFile;
use crate::engine::core::Settled;
use crate::workloads::search::driver::{
    EvalOrder, EvalResult, IdeasOrder, Keeper, Left, TreeError, Wanted, WorkError, Workshop,
};
use crate::workloads::search::manifest::{Cleanup, Manifest};
use crate::workloads::search::repository::{Repository, RepositoryError, UsersRepository};
use rollout_protocol::search::{NodeId, SearchEvent};

/// A workshop whose evals are run by workers.
pub(super) struct Shop {
    /// Waits for what is asynchronous: a search thinks on a thread of its own.
    pub(super) handle: Handle,
    pub(super) tree: TreeFile,
    pub(super) plan: Plan,
    pub(super) store: Arc<dyn BlobStore>,
    /// Opened when it is first needed.
    pub(super) repository: Option<Repository>,
    pub(super) asked: Arc<Asked>,
    pub(super) told: mpsc::UnboundedReceiver<Told>,
    /// The tries under way.
    pub(super) tries: HashMap<ItemId, Asking>,
    /// Evals that the infrastructure could not run, and why.
    pub(super) unable: Vec<String>,
    /// Whether those count as failed.
    pub(super) fail_unable: bool,
    /// Evals that were settled while ideas were waited for.
    pub(super) heard: VecDeque<ItemId>,
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
}

/// A try that was asked for.
pub(super) struct Asking {
    order: EvalOrder,
    attempt: u32,
    /// What the tries before took.
    before: Tries,
}

impl Shop {
    pub(super) fn repository(&mut self) -> Result<&Repository, WorkError> {
        if self.repository.is_none() {
            let (run, store) = (self.tree.run_dir(), Arc::clone(&self.store));
            let opening = Repository::open(&run, &self.tree.name, store);
            let opened = self.handle.block_on(opening).map_err(of("cannot open the repository"))?;
            self.repository = Some(opened);
        }
        Ok(self.repository.as_ref().expect("it was just opened"))
    }

    /// Asks for a try of an eval.
    fn ask(&mut self, order: EvalOrder, attempt: u32, before: Tries) -> Result<(), WorkError> {
        let failed = "cannot prepare an eval";
        let repository = self.repository()?.spec(&order.parent_commit).map_err(of(failed))?;
        let (store, idea) = (Arc::clone(&self.store), order.idea.clone());
        let spec = self.handle.block_on(async {
            let idea = patiently(async || store.put_file(&idea, MediaType::Text).await).await?;
            let spec = self.plan.spec(&order, repository, idea);
            patiently(async || put_json(&*store, &spec).await).await
        });
        let spec = spec.map_err(of(failed))?.digest;
        let eval = &order.eval;
        let item = self.item(&order, attempt, &spec);
        let name = ItemName::Eval(EvalName {
            search: self.tree.name.clone(),
            node: eval.parent_node_id,
            eval: eval.eval_id,
            attempt,
        });
        self.tries.insert(item, Asking { order, attempt, before });
        self.asked.ask(Try { kind: WorkKind::Eval, item, spec, name });
        Ok(())
    }

    /// The key of a try: one by which it was not asked for, if what came of it by the keys before was
    /// the infrastructure's doing.
    fn item(&self, order: &EvalOrder, attempt: u32, spec: &Digest) -> ItemId {
        let (tree, eval) = (&self.tree.name, order.eval.eval_id.0);
        let mut unable = 0;
        loop {
            let item = ItemId::for_eval(tree, eval, (order.round, unable), attempt, spec);
            let settled = self.asked.settlement(&item);
            let was_unable = settled.is_some_and(|settled| outcome::is_unable(&settled));
            if !was_unable || self.fail_unable || self.tries.contains_key(&item) {
                return item;
            }
            unable += 1;
        }
    }

    /// What a settled try means: the end of its eval, or another try.
    fn conclude(&mut self, item: ItemId) -> Result<Option<EvalResult>, WorkError> {
        let settled = self.asked.settlement(&item);
        let (Some(Asking { order, attempt, before }), Some(settled)) =
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
        let record = self.record(&settled)?;
        let tries = before.and(record.as_ref());
        let path = match &record {
            Some(record) => self.write_results(record, &order, attempt)?,
            None => None,
        };
        if attempt <= order.retries && outcome::is_worth_another(&settled, record.as_ref()) {
            self.ask(order, attempt + 1, tries)?;
            return Ok(None);
        }
        let mut result = outcome::result(&order, attempt, &settled, record.as_ref(), path);
        (result.seconds, result.cost) = (Some(tries.seconds), tries.cost);
        if let Some(candidate) = record.as_ref().and_then(|record| record.candidate.as_ref()) {
            self.repository()?;
            let repository = self.repository.as_ref().expect("it was opened");
            let parent = &order.parent_commit;
            let imported = imported(async || repository.import(parent, candidate).await);
            match self.handle.block_on(imported) {
                Ok(()) => {}
                Err(error @ RepositoryError::Refused { .. }) => {
                    outcome::refused(&mut result, error.chain());
                }
                Err(error) => return Err(of("cannot take a candidate in")(error)),
            }
        }
        result.write(&order.root).map_err(of("cannot write an eval's result"))?;
        self.tell(vec![events::ended(&result)]);
        Ok(Some(result))
    }

    fn record(&self, settled: &Settled) -> Result<Option<EvalRecord>, WorkError> {
        let Some(blob) = settled.by.as_ref().and_then(|by| by.record.as_ref()) else {
            return Ok(None);
        };
        let store = &*self.store;
        let reading = patiently(async || get_json::<EvalRecord>(store, &blob.digest).await);
        let record = self.handle.block_on(reading).map_err(of("cannot read an eval's record"))?;
        Ok((record.item == settled.item).then_some(record))
    }

    fn write_results(
        &self,
        record: &EvalRecord,
        order: &EvalOrder,
        attempt: u32,
    ) -> Result<Option<String>, WorkError> {
        let (store, file) = (&*self.store, self.plan.results_file());
        let outage = Outage::new("the blob store");
        let writing = async {
            let mut patience = outage.patience();
            loop {
                match results::write(store, record, &order.root, attempt, file).await {
                    Err(error) if error.is_transient() => patience.failed(&error).await,
                    written => return written,
                }
            }
        };
        self.handle.block_on(writing).map_err(of("cannot write an eval's files"))
    }

    fn tell(&self, told: Vec<SearchEvent>) {
        events::tell(&self.events, told);
    }
}

impl Keeper for Shop {
    fn keep(
        &mut self,
        wanted: &Wanted,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<Left>, WorkError> {
        self.repository()?;
        let repository = self.repository.as_ref().expect("it was opened");
        kept(&self.handle, repository, wanted, deferred)
    }

    fn remove(&mut self, item: &Cleanup) -> Result<(), String> {
        self.repository().map_err(|error| error.to_string())?;
        let repository = self.repository.as_ref().expect("it was opened");
        removed(&self.handle, repository, item)
    }
}

impl Workshop for Shop {
    fn resolve(&mut self, name: &str) -> Result<String, WorkError> {
        let (tree, store) = (&self.tree, Arc::clone(&self.store));
        let except = [tree.runs_root.clone()];
        let made = self.handle.block_on(async {
            let user = UsersRepository::open(&tree.resolve_path(&tree.repository)).await?;
            user.check_clean(&except).await?;
            let root = user.resolve(name).await?;
            Repository::create(&tree.run_dir(), &tree.name, &user, &root, store).await
        });
        let made = made.map_err(of("cannot begin with the repository"))?;
        let root = made.root();
        self.repository = Some(made);
        Ok(root)
    }

    fn diff(&mut self, from: &str, to: &str) -> Result<Vec<u8>, WorkError> {
        self.repository()?;
        let repository = self.repository.as_ref().expect("it was opened");
        let diff = self.handle.block_on(repository.diff(from, to));
        diff.map_err(of("cannot compare commits"))
    }

    fn left(&mut self, result: &EvalResult) {
        self.tell(vec![events::ended(result)]);
    }

    fn changed(&mut self, manifest: &Manifest) {
        self.tell(events::of_block(manifest));
    }

    fn ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let begun = |order: &IdeasOrder| SearchEvent::IdeasStarted { node: order.node.node_id };
        self.tell(orders.iter().map(begun).collect());
        self.write_ideas(orders, done)
    }

    fn begin(&mut self, order: EvalOrder) -> Result<(), WorkError> {
        let (eval, node) = (order.eval.eval_id, order.eval.parent_node_id);
        let idea = order.eval.idea_path.clone();
        self.ask(order, 1, Tries::default())?;
        self.tell(vec![SearchEvent::EvalStarted { eval, node, idea }]);
        Ok(())
    }

    fn ended(&mut self) -> Result<EvalResult, WorkError> {
        loop {
            if let Some(item) = self.heard.pop_front() {
                if let Some(result) = self.conclude(item)? {
                    return Ok(result);
                }
                continue;
            }
            let told = match self.told.try_recv() {
                Ok(told) => Some(told),
                // Only now: what follows from former settlements, another try of an eval for one, is
                // asked for, and may be running since a former sitting.
                Err(_) if self.tries.is_empty() && !self.unable.is_empty() => {
                    // Those that could be made are.
                    return Err(WorkError::Unable { evals: std::mem::take(&mut self.unable) });
                }
                Err(_) => {
                    self.asked.waits();
                    self.handle.block_on(self.told.recv())
                }
            };
            match told {
                Some(Told::Settled(item)) => {
                    if let Some(result) = self.conclude(item)? {
                        return Ok(result);
                    }
                }
                Some(Told::Over) | None => return Err(WorkError::Stopped),
            }
        }
    }
}

/// Takes a candidate in, for as long as the store needs to give it.
async fn imported(
    import: impl AsyncFn() -> Result<(), RepositoryError>,
) -> Result<(), RepositoryError> {
    let outage = Outage::new("the blob store");
    let mut patience = outage.patience();
    loop {
        match import().await {
            Err(RepositoryError::Store(error)) if error.is_transient() => {
                patience.failed(&error).await;
            }
            done => return done,
        }
    }
}

/// Does it until it is done or can never be.
pub(super) async fn patiently<T>(
    work: impl AsyncFn() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let outage = Outage::new("the blob store");
    let mut patience = outage.patience();
    loop {
        match work().await {
            Err(error) if error.is_transient() => patience.failed(&error).await,
            done => return done,
        }
    }
}

/// An error as a search tells it.
pub(super) fn of<E: Error>(what: &'static str) -> impl FnOnce(E) -> WorkError {
    move |error| WorkError::Failed { what: what.to_owned(), reason: chain(&error) }
}
