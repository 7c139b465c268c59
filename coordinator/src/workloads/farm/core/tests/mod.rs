//! Tests of the core, with a fixture that plays the run.

mod groups;
mod model;
mod outages;
mod pauses;
mod refills;
mod schedules;
mod submissions;

use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::farm::{
    AckReceipt, AdmissionRefusal, AdmittedGroup, CancelReason, CancelReceipt, FarmLimits,
    FarmRecord, GroupPolicy, GroupRequest, LossCause, RolloutSpec, SampleEnd, SampleResult,
    StalenessBounds, SubmitReceipt, SubmittedGroup,
};
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::offer::SizeClass;

use super::*;

/// How a test lets a sample end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    Reward(f64),
    Truncated,
    Lost,
    /// Lost by a full disk.
    Outage,
    /// Lost by a model server that did not answer.
    ModelOutage,
    AgentFailed,
    CancelledByUser,
}

fn sample_result(outcome: Outcome) -> SampleResult {
    let empty = SampleResult::cancelled(CancelReason::ByUser);
    let phase = Phase::AgentExecution;
    match outcome {
        Outcome::Reward(reward) => {
            SampleResult { end: SampleEnd::Completed, reward: Some(reward), ..empty }
        }
        Outcome::Truncated => SampleResult { end: SampleEnd::Truncated, ..empty },
        Outcome::Lost | Outcome::Outage | Outcome::ModelOutage => {
            let cause = LossCause::Infrastructure;
            let code = match outcome {
                Outcome::Outage => ErrorCode::DISK_FULL,
                Outcome::ModelOutage => ErrorCode::MODEL_UNREACHABLE,
                _ => ErrorCode::ENVIRONMENT_LOST,
            };
            let error = TrialError::transient(ErrorType::EnvironmentStartFailed, code, "no answer");
            let end = SampleEnd::NoResult { cause, phase };
            SampleResult { end, error: Some(error), ..empty }
        }
        Outcome::AgentFailed => {
            let (kind, code) = (ErrorType::AgentExecutionFailed, ErrorCode::NON_ZERO_EXIT);
            let (class, retry) = (ErrorClass::Agent, RetryClass::Permanent);
            let error = TrialError::new(kind, code, class, retry, "exit code 1");
            let end = SampleEnd::NoResult { cause: LossCause::Agent, phase };
            SampleResult { end, error: Some(error), ..empty }
        }
        Outcome::CancelledByUser => empty,
    }
}

/// A farm and its journal.
#[derive(Debug, Clone)]
struct FarmFixture {
    core: FarmCore,
    journal: Vec<(Timestamp, FarmRecord)>,
    now_ms: i64,
    /// Samples that the run has begun, or must cancel, and has not settled.
    running: Vec<u64>,
    next_id: u64,
    /// Completions in the order in which they were shown.
    shown: Vec<Arc<Completion>>,
    forgotten: usize,
}

fn group_id(name: &str) -> GroupId {
    name.parse().expect("an id")
}

fn admitted(request: GroupRequest) -> AdmittedGroup {
    let digest = Digest::from_bytes([7; 32]);
    let class = SizeClass::default();
    let spec = RolloutSpec { settings: digest, agent: digest, task: digest, class, lane: 0 };
    let content = request.content().expect("a digest");
    AdmittedGroup { request, content, spec }
}

fn request(name: &str, n: u32) -> GroupRequest {
    GroupRequest::new(group_id(name), "d/t", n)
}

impl FarmFixture {
    fn new() -> Self {
        Self::with_settings(|_| {})
    }

    fn with_settings(change: impl FnOnce(&mut FarmSettings)) -> Self {
        let mut fixture = Self {
            core: FarmCore::new(),
            journal: Vec::new(),
            now_ms: 1_000_000,
            running: Vec::new(),
            next_id: 0,
            shown: Vec::new(),
            forgotten: 0,
        };
        let mut settings = FarmSettings::new("f");
        change(&mut settings);
        fixture.handle(FarmInput::Configure(settings));
        fixture
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.now_ms).expect("in range")
    }

    /// Gives the core an input, plays the run, and checks the state.
    fn handle(&mut self, input: FarmInput) -> Vec<FarmReply> {
        let mut out = FarmOutput::default();
        let at = self.now();
        self.core.handle(at, input, &mut out);
        self.journal.extend(out.records.into_iter().map(|record| (at, record)));
        let mut replies = Vec::new();
        for effect in out.effects {
            match effect {
                FarmEffect::Reply { reply, .. } => replies.push(reply),
                FarmEffect::Completed(shown) => self.shown.extend(shown),
                FarmEffect::Withdraw(ordinals) => {
                    self.running.extend(ordinals);
                    self.running.sort_unstable();
                    self.running.dedup();
                }
                FarmEffect::Acknowledged(_) => {}
                FarmEffect::Forget(items) => self.forgotten += items.len(),
            }
        }
        self.core.check().expect("consistent");
        replies
    }

    fn replay(journal: &[(Timestamp, FarmRecord)]) -> FarmCore {
        let (mut core, mut effects) = (FarmCore::new(), Vec::new());
        for (at, record) in journal {
            core.apply(*at, record, &mut effects);
        }
        core
    }

    /// The process dies; the next one replays the journal and finds what the run has.
    fn restart(&mut self) {
        let former = self.core.snapshot();
        self.core = Self::replay(&self.journal);
        assert_eq!(self.core.snapshot(), former, "a replay gives the same state");
        self.core.check().expect("consistent");
        let begun = std::mem::take(&mut self.running);
        for ordinal in begun {
            let item = self.core.begun(ordinal).expect("the run may need it").item;
            assert_eq!(self.core.find_begun(&item).map(|begun| begun.ordinal), Some(ordinal));
            self.running.push(ordinal);
        }
        self.running.extend(self.core.ending());
        self.running.sort_unstable();
        self.running.dedup();
    }

    /// The process dies; the wall clock shows `wall_ms` when the next one begins.
    fn restart_at(&mut self, wall_ms: i64) {
        self.restart();
        let wall = Timestamp::from_millisecond(wall_ms).expect("in range");
        self.now_ms = self.core.session_start(wall).as_millisecond();
        self.handle(FarmInput::Tick);
    }

    /// The journal is replaced by a snapshot.
    fn compact(&mut self) {
        let at = self.now();
        self.journal = self.core.snapshot().into_iter().map(|record| (at, record)).collect();
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn submit(&mut self, request: GroupRequest) -> Result<SubmitReceipt, AdmissionRefusal> {
        let id = self.next_id();
        let group = Box::new(admitted(request));
        match self.handle(FarmInput::Submit { id, group }).pop() {
            Some(FarmReply::Submitted(answer)) => answer,
            other => panic!("no answer to a submission: {other:?}"),
        }
    }

    fn admit(&mut self, request: GroupRequest) {
        let receipt = self.submit(request).expect("admitted");
        assert_eq!(receipt, SubmitReceipt { state: SubmittedGroup::Admitted, end: None });
    }

    fn begin(&mut self, max: usize) -> Vec<u64> {
        let begun: Vec<u64> =
            self.core.begin_next(max).into_iter().map(|begun| begun.ordinal).collect();
        self.running.extend(&begun);
        begun
    }

    fn settle(&mut self, ordinal: u64, outcome: Outcome) {
        let at = self.running.iter().position(|of| *of == ordinal).expect("it runs");
        self.running.remove(at);
        let item = self.core.begun(ordinal).expect("it is known").item;
        self.handle(FarmInput::Settled { item, result: Box::new(sample_result(outcome)) });
    }

    fn cancel(&mut self, name: &str) -> CancelReceipt {
        self.try_cancel(name).expect("cancelled")
    }

    fn try_cancel(&mut self, name: &str) -> Result<CancelReceipt, AdmissionRefusal> {
        let id = self.next_id();
        match self.handle(FarmInput::Cancel { id, group: group_id(name) }).pop() {
            Some(FarmReply::Cancelled(answer)) => answer,
            other => panic!("no answer to a cancellation: {other:?}"),
        }
    }

    fn acknowledge(&mut self, consumer: &str, completions: &[u64]) -> AckReceipt {
        let (id, consumer) = (self.next_id(), consumer.to_owned());
        let completions = completions.to_vec();
        match self.handle(FarmInput::Acknowledge { id, consumer, completions }).pop() {
            Some(FarmReply::Acknowledged(receipt)) => receipt,
            other => panic!("no answer to an acknowledgement: {other:?}"),
        }
    }

    fn wait(&mut self, ms: i64) {
        self.now_ms += ms;
        self.handle(FarmInput::Tick);
    }

    /// Outcomes of the completions so far, by cursor.
    fn outcomes(&self) -> Vec<&'static str> {
        self.shown.iter().map(|completion| completion.result.end.as_str()).collect()
    }

    fn last_end(&self) -> Option<rollout_protocol::farm::GroupEnd> {
        self.shown.last().and_then(|completion| completion.group_end)
    }
}
