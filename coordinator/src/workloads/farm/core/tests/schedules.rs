//! Random schedules: submissions, results, cancellations, acknowledgements, pauses, versions,
//! deadlines, compactions, and restarts with the journal cut at any record. The state is compared
//! with its replay and with a simple model at every step.

use proptest::prelude::*;

use super::model::TrainerModel;
use super::*;

#[derive(Debug, Clone, Copy)]
enum FarmStep {
    Submit(u8, u8),
    Begin(usize),
    Settle(usize, u8),
    Cancel(u8),
    Acknowledge(usize),
    Version(u64),
    Pause,
    Resume,
    Wait(i64),
    Restart,
    Compact,
}

fn step() -> impl Strategy<Value = FarmStep> {
    prop_oneof![
        6 => (0u8..8, any::<u8>()).prop_map(|(group, kind)| FarmStep::Submit(group, kind)),
        6 => (1usize..4).prop_map(FarmStep::Begin),
        8 => (any::<usize>(), any::<u8>()).prop_map(|(n, kind)| FarmStep::Settle(n, kind)),
        1 => (0u8..8).prop_map(FarmStep::Cancel),
        4 => any::<usize>().prop_map(FarmStep::Acknowledge),
        1 => (0u64..3).prop_map(FarmStep::Version),
        1 => Just(FarmStep::Pause),
        2 => Just(FarmStep::Resume),
        2 => (0i64..4000).prop_map(FarmStep::Wait),
        2 => Just(FarmStep::Restart),
        1 => Just(FarmStep::Compact),
    ]
}

/// One of few requests for a group, so that some are equal and some are in conflict.
fn random_request(group: u8, kind: u8) -> GroupRequest {
    let policies = [GroupPolicy::Refill, GroupPolicy::Drop, GroupPolicy::AsIs];
    let kind = kind % 8;
    let n = u32::from(group % 4) + 1;
    GroupRequest {
        group_policy: policies[usize::from(group) % 3],
        max_refills: (group > 4).then_some(1),
        min_usable: (kind % 4 == 1).then_some(1),
        deadline_sec: (group % 2 == 1).then_some(5),
        priority: i32::from(group % 3),
        consumer: (group == 6).then(|| "eval".to_owned()),
        policy_version: u64::from(kind / 4),
        ..request(&format!("g{group}"), n)
    }
}

struct Schedule {
    farm: FarmFixture,
    model: TrainerModel,
    taken: usize,
}

impl Schedule {
    fn new() -> Self {
        let farm = FarmFixture::with_settings(|settings| {
            let limits = FarmLimits {
                open_groups: 4,
                open_samples: 10,
                unacknowledged: 14,
                ..settings.limits
            };
            settings.limits = limits;
            settings.consumers = vec!["train".to_owned(), "eval".to_owned()];
            settings.staleness =
                StalenessBounds { admission: Some(3), queue: Some(2), in_flight: Some(4) };
        });
        Self { farm, model: TrainerModel::default(), taken: 0 }
    }

    fn step(&mut self, step: FarmStep) {
        match step {
            FarmStep::Submit(group, kind) => {
                let request = random_request(group, kind);
                let answer = self.farm.submit(request.clone());
                self.model.submitted(&request, &answer);
            }
            FarmStep::Begin(max) => {
                self.farm.begin(max);
            }
            FarmStep::Settle(n, kind) => {
                if !self.farm.running.is_empty() {
                    let ordinal = self.farm.running[n % self.farm.running.len()];
                    self.farm.settle(ordinal, outcome(kind));
                }
            }
            FarmStep::Cancel(group) => {
                let name = format!("g{group}");
                let receipt = self.farm.cancel(&name);
                self.model.cancelled(&group_id(&name), &receipt);
            }
            FarmStep::Acknowledge(n) => self.acknowledge(n),
            FarmStep::Version(more) => {
                let version = self.farm.core.policy_version + more;
                self.farm.handle(FarmInput::PolicyVersion { id: 0, version });
            }
            FarmStep::Pause => {
                self.farm.handle(FarmInput::Pause { id: 0 });
            }
            FarmStep::Resume => {
                self.farm.handle(FarmInput::Resume { id: 0, version: None });
            }
            FarmStep::Wait(ms) => self.farm.wait(ms),
            FarmStep::Restart => self.farm.restart(),
            FarmStep::Compact => self.farm.compact(),
        }
        self.compare();
    }

    fn acknowledge(&mut self, n: usize) {
        let unread = self.model.unacknowledged();
        if unread.is_empty() {
            return;
        }
        let completion = &unread[n % unread.len()];
        let receipt = self.farm.acknowledge(&completion.consumer, &[completion.cursor]);
        assert_eq!(receipt.acknowledged, 1);
        self.model.acknowledged(completion.cursor);
    }

    fn compare(&mut self) {
        let shown = self.farm.shown[self.taken..].to_vec();
        self.taken = self.farm.shown.len();
        self.model.take(&shown);
        let unread: Vec<_> = self.farm.core.completions().cloned().collect();
        assert_eq!(unread, self.model.unacknowledged());
        let snapshot = self.farm.core.snapshot();
        assert_eq!(FarmFixture::replay(&self.farm.journal).snapshot(), snapshot);
        let at = self.farm.now();
        let restored: Vec<_> = snapshot.iter().map(|record| (at, record.clone())).collect();
        assert_eq!(FarmFixture::replay(&restored).snapshot(), snapshot);
    }

    /// Everything that was begun ends, and every completion is acknowledged.
    fn drain(&mut self) {
        self.step(FarmStep::Resume);
        loop {
            self.step(FarmStep::Begin(3));
            let Some(ordinal) = self.farm.running.first().copied() else {
                if self.farm.core.status().queued_samples == 0 {
                    break;
                }
                // Parked refills begin as probes.
                self.step(FarmStep::Wait(60_000));
                continue;
            };
            self.farm.settle(ordinal, Outcome::Reward(1.0));
            self.compare();
        }
        self.model.assert_ended();
        while !self.model.unacknowledged().is_empty() {
            self.acknowledge(0);
            self.compare();
        }
        assert!(self.farm.core.groups.is_empty(), "nothing is left of groups");
        assert!(self.farm.core.slots.is_empty() && self.farm.core.ordinals.is_empty());
        assert!(self.farm.core.deadlines.is_empty());
    }
}

fn outcome(kind: u8) -> Outcome {
    match kind % 8 {
        0..3 => Outcome::Reward(f64::from(kind % 2)),
        3 => Outcome::Truncated,
        4 => Outcome::AgentFailed,
        5 => Outcome::CancelledByUser,
        6 => Outcome::Lost,
        _ if kind < 128 => Outcome::Outage,
        _ => Outcome::ModelOutage,
    }
}

/// A journal that is cut after any record is the journal of some farm: its replay is consistent.
fn assert_prefixes_replay(journal: &[(Timestamp, FarmRecord)]) {
    let (mut core, mut effects) = (FarmCore::new(), Vec::new());
    for (at, record) in journal {
        core.apply(*at, record, &mut effects);
        let is_snapshot_part = matches!(
            record,
            FarmRecord::Snapshot(_)
                | FarmRecord::SnapshotGroup(_)
                | FarmRecord::SnapshotCompletions { .. }
                | FarmRecord::SnapshotIds { .. }
        );
        if !is_snapshot_part {
            core.check().expect("consistent");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn random_schedule_agrees_with_model_and_replay(steps in prop::collection::vec(step(), 1..120)) {
        let mut schedule = Schedule::new();
        for step in steps {
            schedule.step(step);
        }
        assert_prefixes_replay(&schedule.farm.journal);
        schedule.drain();
    }
}
