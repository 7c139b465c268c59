//! Reading of runs: items, their executions and files. All of it comes from the run directory and the
//! blob store, as for `rollout show` and `rollout logs`.

use std::sync::Arc;

use rollout_base::shared_limit::{LimitUser, SharedPlace};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::record::TrialRecord;
use rollout_protocol::reference::TrialReferences;
use rollout_store::BlobStore;

use super::event_feed::{HostedEvent, ReadTurns};
use super::failure::RunFault;
use super::hosted_run::HostedRun;
use super::principal::Principal;
use super::record::HostedKind;
use super::{Daemon, DaemonError};
use crate::launch::LaunchError;
use crate::launch::live_output::RunningTrial;
use crate::launch::store::find;
use crate::results::view::{
    self, CapturedError, CapturedFile, RecordedExecution, RunDirectory, RunViewError, TrialDetail,
    TrialFilter, TrialRow, find_trial,
};
use crate::workloads::search::driver::{SearchDirectory, SearchError};
use crate::workloads::search::report::SearchOverview;

/// Runs whose journal is read at the same time: reading one takes a processor and memory.
pub(super) const CONCURRENT_READS: u64 = 4;

/// Which items to list.
#[derive(Debug, Clone, Default)]
pub struct ItemQuery {
    /// Only items in this state.
    pub state: Option<String>,
    /// Pattern of the agent's name.
    pub agent: Option<String>,
    /// Pattern of the task's name.
    pub task: Option<String>,
    /// Items of the selection before the page.
    pub skip: usize,
    /// Most items.
    pub limit: usize,
}

/// A page of items.
#[derive(Debug, Clone, Default)]
pub struct ItemPage {
    /// Items, in the plan's order.
    pub items: Vec<TrialRow>,
    /// `skip` of the next page; `None` after the last one.
    pub next: Option<usize>,
}

/// An item with its executions.
#[derive(Debug)]
pub struct ItemDetail {
    /// The item.
    pub detail: TrialDetail,
    /// Its executions, with the files that they left.
    pub executions: Vec<RecordedExecution>,
    /// The execution that runs, if any; `None` before the first session of the run.
    pub running: Option<RunningTrial>,
}

/// The files of an execution of an item.
#[derive(Debug)]
pub struct ItemFiles {
    /// The store that has them.
    pub store: Arc<dyn BlobStore>,
    /// The record of the execution.
    pub record: TrialRecord,
    /// Its artifacts.
    pub references: TrialReferences,
}

impl Daemon {
    /// Lists the items of a run for a user.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn items(
        &self,
        user: &Principal,
        run: &HostedRun,
        query: ItemQuery,
    ) -> Result<ItemPage, DaemonError> {
        check_items(run)?;
        let directory = run.directory().clone();
        let page = self.read_in_turn(user, move || {
            let directory = match RunDirectory::open(&directory) {
                Err(RunViewError::NotRunDirectory { .. }) => return Ok(Ok(ItemPage::default())),
                opened => opened?,
            };
            let view = directory.view(None, None)?;
            Ok::<_, RunViewError>(page(&view, &query))
        });
        let page = page.await.map_err(|error| self.failed(RunFault::View(error)))?;
        page.map_err(|pattern| DaemonError::BadQuery(format!("cannot use the pattern `{pattern}`")))
    }

    /// Everything about an item: `key` is its id, its name, or a part of it that no other has.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub async fn item(
        &self,
        user: &Principal,
        run: &HostedRun,
        key: &str,
    ) -> Result<ItemDetail, DaemonError> {
        let (run_id, mut detail) = self.detail(user, run, key).await?;
        let running = run_id.map(|run| RunningTrial::new(run, &detail));
        let store = self.store_of(run).await.ok();
        let mut executions = Vec::new();
        for execution in std::mem::take(&mut detail.executions) {
            let item = detail.row.item;
            executions.push(RecordedExecution::read(store.as_deref(), item, execution).await);
        }
        Ok(ItemDetail { detail, executions, running })
    }

    /// The overview of a search, as `rollout tree show --json` prints it.
    ///
    /// # Errors
    /// [`DaemonError::NoFiles`] before its first session has begun.
    pub async fn search(
        &self,
        user: &Principal,
        run: &HostedRun,
    ) -> Result<SearchOverview, DaemonError> {
        if run.kind() != HostedKind::Tree {
            let (action, reason) = ("show the overview of", "it is no search");
            return Err(DaemonError::Conflict { action, reason });
        }
        let directory = SearchDirectory::new(run.directory());
        let read = self.read_in_turn(user, move || directory.read()).await;
        let failed = |error: SearchError| {
            self.failed(RunFault::Launch(Box::new(LaunchError::Search(error))))
        };
        let manifest = read.map_err(failed)?.ok_or(DaemonError::NoFiles)?;
        Ok(SearchOverview::from_manifest(&manifest))
    }

    /// The files of the execution that settled an item, else of the newest one with a record; with
    /// `number`, of that try.
    ///
    /// # Errors
    /// [`DaemonError`], also if no execution has left a record.
    pub async fn item_files(
        &self,
        user: &Principal,
        run: &HostedRun,
        key: &str,
        number: Option<u32>,
    ) -> Result<ItemFiles, DaemonError> {
        let (_, detail) = self.detail(user, run, key).await?;
        let nothing = || DaemonError::NoFiles;
        let execution = detail.recorded_execution(number).ok_or_else(nothing)?;
        let store = self.store_of(run).await?;
        let record = view::record_of(&*store, detail.row.item, execution).await;
        let record = record.map_err(|error| self.failed(RunFault::Captured(error)))?;
        let record = record.ok_or_else(nothing)?;
        let blob = execution.record.as_ref().ok_or_else(nothing)?;
        let references = TrialReferences::from_record(blob, &record);
        Ok(ItemFiles { store, record, references })
    }

    /// The captured outputs with a name, or all of them, or a file in the logs.
    ///
    /// # Errors
    /// [`DaemonError::NoFiles`] for a name of nothing.
    pub fn captured_files(
        &self,
        files: &ItemFiles,
        name: Option<&str>,
    ) -> Result<Vec<CapturedFile>, DaemonError> {
        let found = view::captured_files(&files.record, name);
        found.map_err(|error| self.failed(RunFault::Captured(error)))
    }

    /// The next durable events of a run after a number.
    ///
    /// # Errors
    /// [`DaemonError::Failed`].
    pub async fn events(
        &self,
        user: &LimitUser,
        run: &HostedRun,
        after: u64,
    ) -> Result<Vec<HostedEvent>, DaemonError> {
        let reads = ReadTurns { limit: &self.reads, user };
        run.next_events(after, reads).await.map_err(|fault| self.failed(fault))
    }

    /// The item with a key, and the id of the run in its journal.
    async fn detail(
        &self,
        user: &Principal,
        run: &HostedRun,
        key: &str,
    ) -> Result<(Option<RunId>, TrialDetail), DaemonError> {
        check_items(run)?;
        let (directory, key) = (run.directory().clone(), key.to_owned());
        let detail = self.read_in_turn(user, move || {
            let directory = match RunDirectory::open(&directory) {
                Err(RunViewError::NotRunDirectory { .. }) => return Ok(None),
                opened => opened?,
            };
            let Ok(trial) = find_trial(directory.plan()?, &key) else { return Ok(None) };
            let view = directory.view(Some(trial.item), None)?;
            let run = view.header.run;
            Ok::<_, RunViewError>(view.detail().map(|detail| (run, detail)))
        });
        let detail = detail.await.map_err(|error| self.failed(RunFault::View(error)))?;
        detail.ok_or(DaemonError::NoItem)
    }

    pub(super) async fn store_of(
        &self,
        run: &HostedRun,
    ) -> Result<Arc<dyn BlobStore>, DaemonError> {
        let failed = |error: LaunchError| self.failed(RunFault::Launch(Box::new(error)));
        let url = find(None, run.directory()).map_err(|error| failed(error.into()))?;
        rollout_store::open_existing(&url).await.map_err(|error| failed(error.into()))
    }

    /// A turn of a user to read a journal.
    pub(super) async fn read_turn(&self, user: &Principal) -> SharedPlace {
        ReadTurns { limit: &self.reads, user: &user.limit_user() }.next().await
    }

    /// Reads in a turn of a user. The turn ends with the reading, also if the client has gone.
    async fn read_in_turn<T: Send + 'static>(
        &self,
        user: &Principal,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        ReadTurns { limit: &self.reads, user: &user.limit_user() }.read(work).await
    }

    /// The error of a fault, in words.
    pub(super) fn failed(&self, fault: RunFault) -> DaemonError {
        let failure = fault.in_words(self.options.explain);
        tracing::debug!("a request failed: {}", failure.message);
        DaemonError::Failed(failure)
    }

    /// The error of a captured file that cannot be read.
    pub fn captured_failure(&self, error: CapturedError) -> DaemonError {
        self.failed(RunFault::Captured(error))
    }
}

/// Refuses a search: its evals are in its overview.
fn check_items(run: &HostedRun) -> Result<(), DaemonError> {
    if run.kind() != HostedKind::Tree {
        return Ok(());
    }
    let reason = "it is a search, whose evals are in its overview";
    Err(DaemonError::Conflict { action: "read the items of", reason })
}

fn page(view: &view::RunView, query: &ItemQuery) -> Result<ItemPage, String> {
    let filter =
        TrialFilter { failed: false, agent: query.agent.clone(), task: query.task.clone() };
    let rows = view.trials(&filter)?;
    let rows =
        rows.filter(|row| query.state.as_ref().is_none_or(|state| state == row.state.as_str()));
    let mut items: Vec<_> = rows.skip(query.skip).take(query.limit.saturating_add(1)).collect();
    let has_more = items.len() > query.limit;
    items.truncate(query.limit);
    Ok(ItemPage { items, next: query.next(has_more) })
}

impl ItemQuery {
    fn next(&self, has_more: bool) -> Option<usize> {
        has_more.then(|| self.skip.saturating_add(self.limit))
    }
}

/// A digest in the path of an artifact must belong to the item.
impl ItemFiles {
    /// The artifact with a path.
    pub fn artifact(&self, path: &str) -> Option<(Digest, u64)> {
        let found = self.references.artifacts.iter().find(|artifact| artifact.path == path);
        found.map(|artifact| (artifact.blob.digest, artifact.blob.size_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_cursor_has_no_next_page() {
        let query = ItemQuery { skip: usize::MAX, limit: 100, ..ItemQuery::default() };
        assert_eq!(query.next(false), None);
        let query = ItemQuery { skip: 100, limit: 100, ..ItemQuery::default() };
        assert_eq!(query.next(true), Some(200));
    }
}
