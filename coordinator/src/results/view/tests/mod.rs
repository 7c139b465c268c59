//! Views of runs whose journals the engine's core made.

mod captured;
mod directories;
mod hook_events;
mod schedules;
mod states;

use rollout_engine::core::{
    Core, CoreEffect, CoreInput, CoreOutput, CoreSettings, InputTime, JournalRecord, NewItem,
    RemoteTimeouts, SessionEnd, SessionStart,
};
use rollout_protocol::Timestamp;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::event::EventKind;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::record::{Durations, LostReason, Timestamps, Verdict};
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentSpec, AgentTaskOptions};
use rollout_protocol::spec::environment::{
    EnvironmentRates, EnvironmentSpec, PreservePolicy, ProcessSettings, ProviderSpec,
};
use rollout_protocol::spec::settings::{TrialSettings, VerifierSettings};
use rollout_protocol::version::RUN_FORMAT;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::{Incarnation, PositionedReport, ReportPosition};
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};

use super::run::{ItemCounts, RunKind, RunView};
use super::*;
use crate::plan::{JobPlan, PlannedTask};

const RUN: RunId = RunId::from_bytes([7; 16]);

/// A plan with one agent, these tasks and one attempt.
pub(super) fn plan(tasks: &[&str]) -> JobPlan {
    let agent = AgentSpec {
        name: "agent".into(),
        kind: AgentKind::Oracle,
        env: [].into(),
        limits: AgentLimits::default(),
        install_once: false,
        model: None,
        task_options: AgentTaskOptions::default(),
        session_calls: None,
    };
    let task = |name: &&str| PlannedTask {
        dataset: "data".into(),
        name: (*name).into(),
        spec: Digest::sha256(b"spec"),
        git_commit_id: Some("c0ffee".into()),
        files: Digest::sha256(name.as_bytes()),
        rules: Digest::sha256(b"rules"),
        class: Default::default(),
        resources: Default::default(),
        variables: [].into(),
        format: None,
        format_guessed: false,
        about: Default::default(),
    };
    let settings = TrialSettings {
        instruction_path: "/instruction.md".into(),
        environment: EnvironmentSpec {
            provider: ProviderSpec::Process(ProcessSettings::default()),
            force_build: false,
            preserve_env: PreservePolicy::Never,
            rates: EnvironmentRates::default(),
        },
        verifier: VerifierSettings::default(),
        artifacts: Vec::new(),
        extra_instructions: Vec::new(),
        compose_overlays: Vec::new(),
        install_only: false,
        gateway: None,
        budget: None,
        secrets: std::collections::BTreeSet::new(),
    };
    JobPlan::new(settings, vec![agent], tasks.iter().map(task).collect(), 1).expect("a plan")
}

/// A core that writes its journal to memory.
struct JournalFixture {
    plan: JobPlan,
    core: Core,
    records: Vec<(Timestamp, JournalRecord)>,
    effects: Vec<CoreEffect>,
    epoch: u32,
    now_ms: u64,
    sequence: u64,
    execs: u8,
}

struct Recorder<'a>(&'a mut Vec<(Timestamp, JournalRecord)>, &'a mut Vec<CoreEffect>);

impl CoreOutput for Recorder<'_> {
    fn record(&mut self, at: Timestamp, record: &JournalRecord) {
        self.0.push((at, record.clone()));
    }
    fn effects(&mut self) -> &mut Vec<CoreEffect> {
        self.1
    }
}

fn policy() -> RetryPolicy {
    RetryPolicy { max_attempts: 3, ..RetryPolicy::default() }
}

impl JournalFixture {
    /// A first session of these tasks, as many of them at a time.
    fn new(tasks: &[&str], permits: usize) -> Self {
        let settings = CoreSettings {
            run: RUN,
            epoch: 1,
            permits,
            retry: policy(),
            timeouts: RemoteTimeouts::default(),
        };
        let mut fixture = Self {
            plan: plan(tasks),
            core: Core::new(settings),
            records: Vec::new(),
            effects: Vec::new(),
            epoch: 0,
            now_ms: 0,
            sequence: 0,
            execs: 0,
        };
        fixture.open(permits, Vec::new());
        fixture
    }

    /// Begins the next session, which reopens these items. Former executors are dead.
    fn open(&mut self, permits: usize, reopened: Vec<ItemId>) {
        self.epoch += 1;
        let settings = CoreSettings {
            run: RUN,
            epoch: self.epoch,
            permits,
            retry: policy(),
            timeouts: RemoteTimeouts::default(),
        };
        let mut core = Core::new(settings);
        for (at, record) in self.records.clone() {
            core.apply(at, record, &mut Vec::new());
        }
        core.begin_session(RUN, policy());
        let opened = SessionStart {
            format: RUN_FORMAT,
            run: RUN,
            epoch: self.epoch,
            plan: self.plan.digest(),
            retry: policy(),
            version: "test".to_owned(),
            owner: "test".to_owned(),
            former: None,
            pool: None,
            holder: None,
            takeover: None,
            replaces: Vec::new(),
            reopened,
            reopened_within: Vec::new(),
        };
        let opened = JournalRecord::Opened(Box::new(opened));
        core.apply(self.now().wall, opened.clone(), &mut Vec::new());
        self.records.push((self.now().wall, opened));
        self.core = core;
        let items = self.plan.trials().map(|trial| NewItem {
            item: trial.item,
            ordinal: trial.ordinal,
            spec: trial.trial_ref.digest(),
            class: Default::default(),
            lane: 0,
        });
        let items = items.collect();
        self.handle(CoreInput::Items(items));
        self.handle(CoreInput::PlanComplete);
        self.handle(CoreInput::PreviousExecutorsDead);
    }

    fn now(&self) -> InputTime {
        let wall = Timestamp::from_millisecond(1_750_000_000_000 + self.now_ms as i64);
        InputTime { monotonic_ms: self.now_ms, wall: wall.expect("in range") }
    }

    fn handle(&mut self, input: CoreInput) {
        self.now_ms += 100;
        let now = self.now();
        self.core.handle(now, input, &mut Recorder(&mut self.records, &mut self.effects));
    }

    /// Items in the queue or running, in the plan's order, with their tries.
    fn offered(&self) -> Vec<(ItemId, TryId)> {
        let mut offered: Vec<(ItemId, TryId)> = Vec::new();
        for (_, record) in &self.records {
            if let JournalRecord::Offered { tries } = record {
                offered.extend(tries.iter().map(|offer| (offer.item, offer.try_id)));
            }
        }
        let is_offered = |(item, try_id): &(ItemId, TryId)| {
            let progress = self.core.progress(item).expect("it was offered");
            progress.stage == rollout_engine::core::ItemStage::Offered && progress.tries == try_id.n
        };
        offered.retain(is_offered);
        offered.sort_by_key(|(item, _)| self.core.ordinal(item));
        offered.dedup();
        offered
    }

    /// A report about the current try of a trial, by a new execution.
    fn report(&mut self, item: ItemId, body: ReportBody) {
        self.execs += 1;
        self.report_again(item, body);
    }

    /// A further report of the last execution.
    fn report_again(&mut self, item: ItemId, body: ReportBody) {
        let found = self.offered().into_iter().find(|(offered, _)| *offered == item);
        let (_, try_id) = found.expect("it is offered");
        let trial = self.plan.trials().find(|trial| trial.item == item).expect("planned");
        let report = Report {
            run: RUN,
            item,
            try_id,
            exec: ExecId::from_bytes([self.execs; 16]),
            spec: trial.trial_ref.digest(),
            worker: format!("worker-{}", self.execs).parse().expect("a token"),
            body,
        };
        self.sequence += 1;
        let position = ReportPosition::for_report(Incarnation(1), self.sequence, &report);
        self.handle(CoreInput::Reported(Box::new(PositionedReport { position, report })));
    }

    fn item(&self, task: &str) -> ItemId {
        let trial = self.plan.trials().find(|trial| trial.name.task == task);
        trial.expect("planned").item
    }

    fn close(&mut self, cancelled: bool) {
        let owed = self.plan.len() - self.core.settled() as u64;
        let closed = JournalRecord::Closed(SessionEnd { cancelled, owed });
        self.records.push((self.now().wall, closed));
    }

    /// How often the journal reopens each item.
    fn reopened(&self) -> std::collections::HashMap<ItemId, u32> {
        let mut times = std::collections::HashMap::new();
        for (_, record) in &self.records {
            for item in rollout_engine::reopened_items(record) {
                *times.entry(*item).or_insert(0) += 1;
            }
        }
        times
    }

    /// The state after the first `count` records, with their events.
    fn fold(&self, count: usize, watched: Option<ItemId>) -> (RunFold, Vec<NumberedEvent>) {
        let mut fold = RunFold::new("job".into(), Some(self.plan.clone()), 0, self.reopened());
        if let Some(item) = watched {
            fold = fold.watching(item);
        }
        let mut events = Vec::new();
        for (at, record) in &self.records[..count] {
            fold.apply(*at, record.clone(), Some(&mut |event| events.push(event)));
        }
        (fold, events)
    }

    /// The snapshot of a run whose owner is alive, or died.
    fn view(&self, is_live: bool, watched: Option<ItemId>) -> RunView {
        let now = self.now().wall;
        let owner = OwnerView {
            host: "host".to_owned(),
            pid: 1,
            since: now,
            last_heartbeat_at: now,
            heartbeat_age_sec: 0.0,
            dead: !is_live,
        };
        let (fold, _) = self.fold(self.records.len(), watched);
        RunView::new(fold, RunKind::Job, None, Some((owner, self.epoch)), now)
    }
}

fn result(verdict: Verdict) -> ReportBody {
    let at = Timestamp::UNIX_EPOCH;
    ReportBody::Result(Box::new(ResultBody {
        verdict,
        durations: Durations { total_sec: 2.0, ..Durations::default() },
        timestamps: Timestamps::instant(at),
        record: None,
    }))
}

fn passed() -> ReportBody {
    result(Verdict::completed(1.0))
}

/// A failure of the agent.
fn failed() -> ReportBody {
    let (kind, class) = (ErrorType::AgentExecutionFailed, ErrorClass::Agent);
    let code = ErrorCode::NON_ZERO_EXIT;
    result(Verdict::failed(TrialError::new(kind, code, class, RetryClass::Permanent, "exit 1")))
}

/// A failure of the infrastructure that is tried again.
fn outage() -> ReportBody {
    let kind = ErrorType::EnvironmentStartFailed;
    result(Verdict::failed(TrialError::transient(kind, ErrorCode::UNREACHABLE, "no answer")))
}

/// Every item is in one count.
#[track_caller]
fn assert_adds_up(counts: &ItemCounts) {
    let ItemCounts { completed, failed, cancelled, unverified, .. } = *counts;
    assert_eq!(counts.settled, completed + failed + cancelled + unverified, "{counts:?}");
    let unsettled = counts.running + counts.waiting + counts.queued;
    assert_eq!(counts.total, counts.settled + unsettled, "{counts:?}");
}

/// Names of events, for comparison.
fn names(events: &[NumberedEvent]) -> Vec<String> {
    let name = |event: &NumberedEvent| {
        let value = serde_json::to_value(event).expect("JSON");
        value["event"].as_str().expect("a name").to_owned()
    };
    events.iter().map(name).collect()
}
