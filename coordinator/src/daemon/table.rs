//! The runs of a daemon in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rollout_base::shared_limit::LimitShares;

use super::hosted_run::{HostedRun, HostedRunState, HostedRunView};
use super::id::HostedRunId;
use super::principal::{Principal, Role};
use super::schedule::{QueuedRun, UserCounts, next_run};
use super::{Daemon, DaemonError};

/// Most runs of a page.
const MAX_PAGE: usize = 500;

/// Sessions for each run that may run: those of paused runs do not count as running, but take a thread
/// and memory.
const SESSIONS_PER_RUN: u64 = 4;

/// The runs of a daemon.
#[derive(Debug, Default)]
pub(super) struct RunTable {
    runs: BTreeMap<HostedRunId, Arc<HostedRun>>,
    /// Those that may still change, and some that no longer do: kept runs make no start slower.
    active: BTreeMap<HostedRunId, Arc<HostedRun>>,
    /// Runs by user and idempotency key.
    keys: HashMap<(String, String), HostedRunId>,
    /// Runs whose record cannot be read, and why.
    unreadable: BTreeMap<HostedRunId, String>,
    /// Number of the last start of each user, among all starts.
    starts: HashMap<String, u64>,
}

/// A run whose record cannot be read. Only administrators see it: its user is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRun {
    /// The run.
    pub id: HostedRunId,
    /// Why it cannot be read.
    pub reason: String,
}

/// Which runs to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunQuery {
    /// Only runs in this state.
    pub state: Option<HostedRunState>,
    /// Only runs of this user.
    pub user: Option<String>,
    /// Only runs with this job name.
    pub name: Option<String>,
    /// Only runs that are older than this one.
    pub before: Option<HostedRunId>,
    /// Most runs.
    pub limit: usize,
}

/// A page of a list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunPage {
    /// Runs, newest first.
    pub runs: Vec<HostedRunView>,
    /// Runs that cannot be read, on an administrator's first page.
    pub unreadable: Vec<UnreadableRun>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<HostedRunId>,
}

/// Numbers of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunTotals {
    /// Runs by state.
    pub by_state: BTreeMap<&'static str, u64>,
    /// Runs whose record cannot be read.
    pub unreadable: u64,
    /// Trials that run now.
    pub running_trials: u64,
    /// Slots of executions that are free.
    pub free_slots: u64,
    /// Executions that wait for a slot.
    pub waiting_executions: u64,
}

impl RunTable {
    pub(super) fn insert(&mut self, run: Arc<HostedRun>) {
        if let Some(submission) = run.view().record.submission {
            self.keys.insert((run.user().to_owned(), submission.key), run.id().clone());
        }
        self.active.insert(run.id().clone(), Arc::clone(&run));
        self.runs.insert(run.id().clone(), run);
    }

    pub(super) fn insert_unreadable(&mut self, id: HostedRunId, reason: String) {
        self.unreadable.insert(id, reason);
    }

    pub(super) fn remove(&mut self, run: &HostedRun) {
        self.runs.remove(run.id());
        self.active.remove(run.id());
        if let Some(submission) = run.view().record.submission {
            self.keys.remove(&(run.user().to_owned(), submission.key));
        }
    }

    /// The run that a user submitted under a key.
    pub(super) fn by_key(&self, user: &str, key: &str) -> Option<Arc<HostedRun>> {
        let id = self.keys.get(&(user.to_owned(), key.to_owned()))?;
        self.runs.get(id).cloned()
    }

    /// The runs that may still change. The others are not looked at again: a settled run stays settled.
    fn active(&mut self) -> impl Iterator<Item = &Arc<HostedRun>> {
        self.active.retain(|_, run| !run.is_settled());
        self.active.values()
    }

    /// The runs with a session in this process.
    pub(super) fn live(&mut self) -> impl Iterator<Item = &Arc<HostedRun>> {
        self.active().filter(|run| run.is_live())
    }

    /// The runs that have a place among the running ones.
    pub(super) fn running(&mut self) -> impl Iterator<Item = &Arc<HostedRun>> {
        self.active().filter(|run| run.has_place())
    }

    /// The runs whose session left something that could not be noted, or is to be tried again.
    pub(super) fn unwritten(&mut self) -> Vec<Arc<HostedRun>> {
        self.active().filter(|run| run.is_unwritten()).cloned().collect()
    }

    /// Numbers of the runs that have not ended.
    pub(super) fn open_by_user(&mut self) -> UserCounts {
        self.active().filter(|run| run.is_open()).map(|run| run.user()).collect()
    }

    /// The run that starts next, which has a place from now on. Paused runs whose turn comes before
    /// continue. `shares` is the limit of running runs.
    pub(super) fn next_to_start(&mut self, shares: LimitShares) -> Option<Arc<HostedRun>> {
        loop {
            let next = self.next_with_place(shares)?;
            let Some(continues) = next.take_place() else { continue };
            let number = self.starts.values().max().copied().unwrap_or_default() + 1;
            self.starts.insert(next.user().to_owned(), number);
            if !continues {
                return Some(next);
            }
        }
    }

    /// Lets a paused run continue at once, if there is a place for it.
    pub(super) fn continue_now(&mut self, run: &HostedRun, shares: LimitShares) {
        let running = self.running_by_user();
        let counts = [running.of(run.user()), running.total()];
        let waits = run.is_live() && run.queued_priority().is_some();
        if waits && shares.allows(run.limit_user().is_admin, counts, 1) {
            let _continues = run.take_place();
        }
    }

    fn running_by_user(&mut self) -> UserCounts {
        self.running().map(|run| run.user()).collect()
    }

    /// The run whose turn it is to get a place.
    fn next_with_place(&mut self, shares: LimitShares) -> Option<Arc<HostedRun>> {
        let live: UserCounts = self.live().map(|run| run.user()).collect();
        let running = self.running_by_user();
        let sessions = LimitShares::new(shares.total() * SESSIONS_PER_RUN);
        let queued = self.active.values().filter_map(|run| {
            let priority = run.queued_priority()?;
            let user = run.limit_user();
            let counts = [live.of(&user.name), live.total()];
            let has_room = run.is_live() || sessions.allows(user.is_admin, counts, 1);
            has_room.then(|| QueuedRun { id: run.id().clone(), user, priority })
        });
        let next = next_run(queued, shares, &running, &self.starts)?;
        self.runs.get(&next).cloned()
    }

    fn page(&self, principal: &Principal, query: &RunQuery) -> RunPage {
        let limit = query.limit.clamp(1, MAX_PAGE);
        let end = match &query.before {
            Some(before) => std::ops::Bound::Excluded(before),
            None => std::ops::Bound::Unbounded,
        };
        let mut page = RunPage::default();
        for run in self.runs.range((std::ops::Bound::Unbounded, end)).rev().map(|(_, run)| run) {
            let is_user = query.user.as_ref().is_none_or(|user| user == run.user());
            if !principal.may_see(run.user()) || !is_user {
                continue;
            }
            // A record is copied only if it is shown.
            if !run.matches(query.name.as_deref(), query.state) {
                continue;
            }
            if page.runs.len() == limit {
                page.next = page.runs.last().map(|last| last.record.id.clone());
                break;
            }
            page.runs.push(run.view());
        }
        if principal.role == Role::Admin && query.before.is_none() {
            let unreadable = self.unreadable.iter();
            page.unreadable = unreadable
                .map(|(id, reason)| UnreadableRun { id: id.clone(), reason: reason.clone() })
                .collect();
        }
        page
    }
}

impl Daemon {
    /// Lists the runs that a user may see.
    pub fn list(&self, principal: &Principal, query: &RunQuery) -> RunPage {
        self.table().page(principal, query)
    }

    /// Finds a run that a user may see.
    ///
    /// # Errors
    /// [`DaemonError::NotFound`], also for a run of another user; for an administrator,
    /// [`DaemonError::Unreadable`].
    pub fn find(
        &self,
        principal: &Principal,
        id: &HostedRunId,
    ) -> Result<Arc<HostedRun>, DaemonError> {
        let table = self.table();
        match table.runs.get(id) {
            Some(run) if principal.may_see(run.user()) => Ok(Arc::clone(run)),
            Some(_) => Err(DaemonError::NotFound),
            None => match table.unreadable.get(id).filter(|_| principal.role == Role::Admin) {
                Some(reason) => Err(DaemonError::Unreadable { reason: reason.clone() }),
                None => Err(DaemonError::NotFound),
            },
        }
    }

    /// Counts its runs.
    pub fn totals(&self) -> RunTotals {
        let table = self.table();
        let mut totals = RunTotals::default();
        for run in table.runs.values() {
            let view = run.view();
            *totals.by_state.entry(state_word(view.state)).or_default() += 1;
            if view.is_live {
                totals.running_trials += view.record.progress.running;
            }
        }
        totals.unreadable = table.unreadable.len() as u64;
        let slots = self.slots.counts();
        totals.free_slots = slots.free;
        totals.waiting_executions = slots.waiting;
        totals
    }
}

/// The word of a state in documents and labels.
const fn state_word(state: HostedRunState) -> &'static str {
    match state {
        HostedRunState::Queued => "queued",
        HostedRunState::Starting => "starting",
        HostedRunState::Running => "running",
        HostedRunState::Paused => "paused",
        HostedRunState::Cancelling => "cancelling",
        HostedRunState::Completed => "completed",
        HostedRunState::Cancelled => "cancelled",
        HostedRunState::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rollout_protocol::Timestamp;

    use super::super::driver;
    use super::super::record::{HostedOutcome, HostedRunEnd};
    use super::super::tests::{JOB, accepted, daemon, job, user};
    use super::*;

    /// Does something with a run, or submits one.
    async fn perform(daemon: &Arc<Daemon>, action: u8, run: Option<Arc<HostedRun>>) {
        let Some(run) = run.filter(|_| action > 1) else {
            let principal = user(["ada", "bob"][usize::from(action % 2)], Role::Submit);
            accepted(daemon.submit(&principal, job(None, JOB)).await);
            return;
        };
        // Refused of runs that have ended.
        match action {
            2 => drop(daemon.pause(&run).await),
            3 => drop(daemon.resume(&run).await),
            4 => drop(daemon.cancel(&run).await),
            5 => drop(daemon.delete(&run).await),
            6 => drop(daemon.table().next_to_start(LimitShares::new(3))),
            7 if run.is_open() && !run.is_live() => run.set_session(Some(driver::session(&run).0)),
            8 if run.is_live() => run.set_session(None),
            9 if run.is_live() => {
                let (at, outcome) = (Timestamp::now(), HostedOutcome::Completed);
                let end = HostedRunEnd { at, outcome, code: 0 };
                run.note(&daemon.dir, |record| record.end = Some(end)).await.expect("written");
                run.set_session(None);
            }
            _ => {}
        }
    }

    fn check(table: &mut RunTable) {
        let all: Vec<_> = table.runs.values().cloned().collect();
        let count = |is_counted: fn(&HostedRun) -> bool| -> UserCounts {
            all.iter().filter(|run| is_counted(run)).map(|run| run.user()).collect()
        };
        assert_eq!(table.open_by_user(), count(HostedRun::is_open));
        assert_eq!(table.running_by_user(), count(HostedRun::has_place));
        assert_eq!(
            table.live().map(|run| run.user()).collect::<UserCounts>(),
            count(HostedRun::is_live)
        );
        for run in &all {
            let is_active = table.active.contains_key(run.id());
            assert_eq!(is_active, !run.is_settled(), "{run:?}");
            assert!(is_active || run.queued_priority().is_none(), "{run:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn runs_that_are_looked_through_are_those_that_may_change(
            actions in proptest::collection::vec((0_u8..10, 0_usize..8), 1..40),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let directory = tempfile::tempdir().expect("a directory");
                let daemon = daemon(directory.path(), 1000);
                for (action, which) in actions {
                    let runs: Vec<_> = daemon.table().runs.values().cloned().collect();
                    let run = runs.get(which % runs.len().max(1)).cloned();
                    perform(&daemon, action, run).await;
                    check(&mut daemon.table());
                }
            });
        }
    }

    #[tokio::test]
    async fn runs_that_have_ended_are_not_looked_through_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let daemon = daemon(directory.path(), 1000);
        let ada = user("ada", Role::Submit);
        for _ in 0..20 {
            let run = accepted(daemon.submit(&ada, job(None, JOB)).await);
            daemon.cancel(&run).await.expect("cancelled");
        }
        accepted(daemon.submit(&ada, job(None, JOB)).await);
        let mut table = daemon.table();
        assert_eq!(table.open_by_user().total(), 1);
        assert_eq!((table.active.len(), table.runs.len()), (1, 21));
    }
}
