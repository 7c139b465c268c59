//! Executions that really happened, and settlements that became durable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rollout_engine::core::ItemSettlement;
use rollout_protocol::blob::MediaType;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, TrialRecord, Verdict};
use rollout_protocol::retry::RetryPolicy;
use rollout_store::testing::FaultyStore;
use rollout_worker::executor::{FileRole, Finished, RecordFile};
use rollout_worker::service::Runner;
use rollout_worker::testing::passed_trial;
use rollout_worker::work::trial::TrialContext;

use crate::invariants::MIN_DEATHS_BEFORE_POISONED;
use crate::names::may_be_retried;

/// An execution.
#[derive(Debug, Clone)]
struct LoggedExecution {
    item: ItemId,
    /// Its verdict, if it ended by itself.
    verdict: Option<Verdict>,
}

/// Everything that executions and durable settlements say.
#[derive(Debug, Default)]
struct LogState {
    executions: HashMap<ExecId, LoggedExecution>,
    settled: BTreeMap<ItemId, ItemSettlement>,
    problems: Vec<String>,
    /// The items whose settlement each session has written or read.
    sessions: Vec<BTreeSet<ItemId>>,
}

/// The log of a schedule, and the runner of its workers.
#[derive(Debug)]
pub(crate) struct ExecutionLog {
    state: Mutex<LogState>,
    random: Mutex<StdRng>,
}

impl ExecutionLog {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { state: Mutex::default(), random })
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new session.
    pub(crate) fn begin_session(&self) -> usize {
        let mut state = self.state();
        state.sessions.push(BTreeSet::new());
        state.sessions.len() - 1
    }

    /// A settlement is durable, or was read from the journal.
    pub(crate) fn record_settlement(&self, session: usize, settled: &ItemSettlement) {
        let mut state = self.state();
        if !state.sessions[session].insert(settled.item) {
            state.problems.push(format!("{} is settled twice in a session", settled.item));
        }
        let problem = match state.settled.get(&settled.item) {
            None => state.check_new(settled),
            Some(known) if known.verdict == settled.verdict && known.by == settled.by => None,
            Some(known) => Some(format!("{known:?} became {settled:?}")),
        };
        state.problems.extend(problem);
        state.settled.entry(settled.item).or_insert_with(|| settled.clone());
    }

    /// Number of settled items.
    pub(crate) fn settled(&self) -> usize {
        self.state().settled.len()
    }

    /// Violated invariants, after every item had time to be settled. The last session has only
    /// replayed the journal.
    pub(crate) fn problems(
        &self,
        items: &[ItemId],
        excused: usize,
        store: &FaultyStore,
    ) -> Vec<String> {
        let state = self.state();
        let mut problems = state.problems.clone();
        for item in items {
            let runs = state.executions.values().filter(|execution| execution.item == *item);
            let verdicts = runs.clone().filter_map(|execution| execution.verdict.as_ref());
            let outages = verdicts.filter(|verdict| may_be_retried(verdict)).count();
            let runs = runs.count();
            if runs > 1 + outages + excused {
                let what =
                    format!("{runs} executions of {item}: {outages} outages, {excused} faults");
                problems.push(format!("more executions than faults explain: {what}"));
            }
            let Some(settled) = state.settled.get(item) else {
                problems.push(format!("{item} is not settled"));
                continue;
            };
            if state.sessions.last().is_none_or(|read| !read.contains(item)) {
                problems.push(format!("the journal lost the settlement of {item}"));
            }
            problems.extend(check_record(settled, store));
        }
        problems
    }

    /// The next execution: its duration, how it ends, and its reward.
    fn next_act(&self) -> (Duration, u32, f64) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = [0, 900, 20_000, 200_000][random.random_range(0..4)];
        let duration = Duration::from_millis(random.random_range(0..=longest));
        (duration, random.random_range(0..10), f64::from(random.random::<u32>()))
    }
}

impl LogState {
    /// Checks a settlement against the executions.
    fn check_new(&self, settled: &ItemSettlement) -> Option<String> {
        let of_item = || self.executions.values().filter(|fact| fact.item == settled.item);
        let Some(by) = &settled.by else {
            let deaths = of_item().filter(|fact| fact.verdict.is_none()).count();
            let poisoned = error_code(&settled.verdict) == Some(&ErrorCode::POISONED);
            let explained = poisoned && deaths >= MIN_DEATHS_BEFORE_POISONED;
            return (!explained).then(|| format!("{deaths} deaths, no execution: {settled:?}"));
        };
        let Some(fact) = self.executions.get(&by.exec) else {
            return Some(format!("{} is settled by {}, which never ran", settled.item, by.exec));
        };
        let same = |verdict: &Verdict| {
            (verdict.outcome, verdict.reward, error_code(verdict))
                == (settled.verdict.outcome, settled.verdict.reward, error_code(&settled.verdict))
        };
        if fact.item != settled.item || !fact.verdict.as_ref().is_some_and(same) {
            return Some(format!("{fact:?} was settled as {settled:?}"));
        }
        let runs = u32::try_from(of_item().count()).unwrap_or(u32::MAX);
        let is_early =
            may_be_retried(&settled.verdict) && runs < RetryPolicy::default().max_attempts;
        is_early.then(|| format!("an outage after {runs} executions settled it: {settled:?}"))
    }
}

fn error_code(verdict: &Verdict) -> Option<&ErrorCode> {
    verdict.error.as_ref().map(|error| &error.code)
}

/// Compares the stored record of a settlement, and the file in it, with its verdict.
fn check_record(settled: &ItemSettlement, store: &FaultyStore) -> Option<String> {
    let blob = settled.by.as_ref()?.record.as_ref()?;
    let record: TrialRecord = serde_json::from_str(&store.inner().text(blob)).expect("JSON");
    let file = record.outputs.first().map(|output| store.inner().text(&output.blob));
    let is_whole = match settled.verdict.reward {
        Some(reward) => file.is_none_or(|text| text == reward.to_string()),
        None => true,
    };
    let same = record.verdict.reward == settled.verdict.reward && is_whole;
    (!same).then(|| format!("the record {record:?} was settled as {settled:?}"))
}

#[async_trait]
impl Runner for ExecutionLog {
    async fn run(&self, mut context: TrialContext) -> Finished<TrialRecord> {
        let labels = &context.execution.labels;
        let (item, exec) = (labels.item, labels.exec);
        let execution = LoggedExecution { item, verdict: None };
        if self.state().executions.insert(exec, execution).is_some() {
            self.state().problems.push(format!("{exec} began twice"));
        }
        let (duration, ending, reward) = self.next_act();
        let mut finished = passed_trial(&context);
        if !duration.is_zero() {
            context.execution.phases.entered(Phase::AgentExecution);
            context.execution.create_scratch().await.expect("created");
            let file = context.execution.scratch.join("out.txt");
            std::fs::write(&file, reward.to_string()).expect("written");
            let role =
                FileRole::Output { path: "out.txt".into(), total_bytes: 15, truncated: false };
            finished.files.push(RecordFile {
                file,
                media_type: MediaType::Text,
                role,
                digest: None,
            });
            tokio::select! {
                () = tokio::time::sleep(duration) => {}
                _ = context.execution.stop.wait_for(Option::is_some) => {
                    finished.stopped = Some(Phase::AgentExecution);
                    return finished;
                }
            }
        }
        finished.record.verdict = verdict(ending, reward);
        if let Some(execution) = self.state().executions.get_mut(&exec) {
            execution.verdict = Some(finished.record.verdict.clone());
        }
        finished
    }
}

/// The verdict of an execution: one of ten is an outage, one a failure of the agent.
fn verdict(ending: u32, reward: f64) -> Verdict {
    let error = match ending {
        0 => TrialError::transient(
            ErrorType::EnvironmentStartFailed,
            ErrorCode::UNREACHABLE,
            "as scripted",
        ),
        1 => TrialError::new(
            ErrorType::AgentExecutionFailed,
            ErrorCode::NON_ZERO_EXIT,
            ErrorClass::Agent,
            RetryClass::Permanent,
            "as scripted",
        ),
        _ => return Verdict::completed(reward),
    };
    let outcome = ItemOutcome::Failed;
    Verdict { outcome, error: Some(error), reward: None, ..Verdict::completed(0.0) }
}
