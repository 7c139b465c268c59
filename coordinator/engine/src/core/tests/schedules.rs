//! Random schedules: executions, losses, outages, duplicates, and crashes with the journal cut at
//! any record. In every schedule each item ends with one settlement, by a result that was reported,
//! and a crash takes back nothing that was durable.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const ITEMS: u8 = 4;

#[derive(Debug, Clone, Copy)]
enum ScheduleStep {
    /// Deliver an offer, maybe again, to a worker that claims it if required.
    Deliver(usize),
    /// A running execution ends.
    Finish(usize, ResultKind),
    /// An execution of any time announces events.
    Announce(usize),
    /// A report is repeated.
    Repeat(usize),
    /// Time passes.
    Wait(u64),
    /// Records become durable.
    Sync,
    /// The process dies. This many of the records that were not durable survive.
    Crash(usize),
}

#[derive(Debug, Clone, Copy)]
enum ResultKind {
    Verdict,
    Outage,
    Died,
    Unreachable,
}

fn step() -> impl Strategy<Value = ScheduleStep> {
    prop_oneof![
        6 => any::<usize>().prop_map(ScheduleStep::Deliver),
        2 => any::<usize>().prop_map(|n| ScheduleStep::Finish(n, ResultKind::Verdict)),
        1 => any::<usize>().prop_map(|n| ScheduleStep::Finish(n, ResultKind::Outage)),
        1 => any::<usize>().prop_map(|n| ScheduleStep::Finish(n, ResultKind::Died)),
        1 => any::<usize>().prop_map(|n| ScheduleStep::Finish(n, ResultKind::Unreachable)),
        1 => any::<usize>().prop_map(ScheduleStep::Announce),
        1 => any::<usize>().prop_map(ScheduleStep::Repeat),
        2 => (0u64..3000).prop_map(ScheduleStep::Wait),
        3 => Just(ScheduleStep::Sync),
        1 => any::<usize>().prop_map(ScheduleStep::Crash),
    ]
}

/// The queue, the executions, and every report.
struct Schedule {
    world: CoreFixture,
    running: Vec<(u8, TryId, u64)>,
    said: Vec<(u8, TryId, u64, ReportBody)>,
    verdicts: HashSet<(ItemId, ExecId)>,
    next_exec: u64,
    announced: u32,
    durable: usize,
    settled: HashMap<ItemId, ItemSettlement>,
}

impl Schedule {
    fn run(steps: Vec<ScheduleStep>) -> Self {
        let mut schedule = Self {
            world: CoreFixture::new(ITEMS, 2),
            running: Vec::new(),
            said: Vec::new(),
            verdicts: HashSet::new(),
            next_exec: 0,
            announced: 0,
            durable: 0,
            settled: HashMap::new(),
        };
        for step in steps {
            schedule.step(step);
        }
        schedule.heal();
        schedule
    }

    fn step(&mut self, step: ScheduleStep) {
        match step {
            ScheduleStep::Deliver(n) => self.deliver(n),
            ScheduleStep::Finish(n, kind) => self.finish(n, kind),
            ScheduleStep::Announce(n) => self.announce(n),
            ScheduleStep::Repeat(n) => {
                if !self.said.is_empty() {
                    let (item, try_id, e, body) = self.said[n % self.said.len()].clone();
                    self.world.report(item, try_id, e, 1, body);
                }
            }
            ScheduleStep::Wait(ms) => self.world.wait(ms),
            ScheduleStep::Sync => self.sync(),
            ScheduleStep::Crash(n) => self.crash(n),
        }
    }

    fn deliver(&mut self, n: usize) {
        let offered = self.world.offered();
        if offered.is_empty() {
            return;
        }
        let (item, try_id) = offered[n % offered.len()];
        let n = item.as_bytes()[0];
        self.next_exec += 1;
        let e = self.next_exec;
        let first = try_id.n == 1 && !self.running.iter().any(|r| (r.0, r.1) == (n, try_id));
        let never = !self.said.iter().any(|s| (s.0, s.1) == (n, try_id));
        if (first && never) || self.world.claim(n, try_id, e) == ClaimAnswer::Run {
            self.running.push((n, try_id, e));
        }
    }

    fn finish(&mut self, n: usize, kind: ResultKind) {
        if self.running.is_empty() {
            return;
        }
        let (n, try_id, e) = self.running.swap_remove(n % self.running.len());
        let body = match kind {
            ResultKind::Verdict => ok(e as f64),
            ResultKind::Outage => outage(),
            ResultKind::Died => lost(LostReason::WorkerDied),
            ResultKind::Unreachable => lost(LostReason::Unreachable),
        };
        if matches!(kind, ResultKind::Verdict | ResultKind::Outage) {
            self.verdicts.insert((item(n), exec(e)));
        }
        self.said.push((n, try_id, e, body.clone()));
        self.world.report(n, try_id, e, 1, body);
    }

    /// An execution that runs, ended or is unknown announces events: nothing else changes.
    fn announce(&mut self, n: usize) {
        let running = self.running.iter().copied();
        let ended = self.said.iter().map(|(item, try_id, e, _)| (*item, *try_id, *e));
        let all: Vec<_> = running.chain(ended).chain([(0, FIRST, u64::MAX)]).collect();
        let (n, try_id, e) = all[n % all.len()];
        self.announced += 1;
        let state = |world: &CoreFixture| {
            let items = 0..ITEMS;
            let executions: Vec<_> = items.map(|n| world.core.executions(&item(n))).collect();
            let offered = world.offered().len();
            let others = world.effects.iter().filter(|e| !matches!(e, CoreEffect::EventChunk(_)));
            (executions, offered, others.count(), world.settled().len())
        };
        let before = state(&self.world);
        self.world.report(n, try_id, e, 1, events(self.announced));
        assert_eq!(state(&self.world), before);
    }

    fn sync(&mut self) {
        self.durable = self.world.journal.len();
        let settled: Vec<ItemSettlement> = self.world.settled().into_iter().cloned().collect();
        for settled in settled {
            let former = self.settled.insert(settled.item, settled.clone());
            assert!(former.is_none_or(|f| f == settled), "settled twice: {settled:?}");
        }
    }

    fn crash(&mut self, keep: usize) {
        let unsynced = self.world.journal.len() - self.durable;
        let records = self.durable + keep % (unsynced + 1);
        self.running.clear();
        let replayed = self.world.crash(records, ITEMS);
        self.durable = records;
        let replayed: HashMap<ItemId, ItemSettlement> =
            replayed.into_iter().map(|settled| (settled.item, settled)).collect();
        for (item, settled) in &self.settled {
            let again = replayed.get(item).expect("what was durable is not taken back");
            assert_eq!((&again.by, &again.verdict), (&settled.by, &settled.verdict));
        }
        self.settled = replayed;
    }

    /// No more faults: runs everything offered to its end.
    fn heal(&mut self) {
        for _ in 0..400 {
            while !self.running.is_empty() {
                self.finish(0, ResultKind::Verdict);
            }
            if self.world.core.is_complete() {
                break;
            }
            self.world.wait(60_000);
            let offered = self.world.offered();
            for n in 0..offered.len() {
                self.deliver(n);
            }
        }
        self.sync();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_losses_and_crashes_settle_each_item_once(steps in prop::collection::vec(step(), 0..60)) {
        let schedule = Schedule::run(steps);
        prop_assert!(schedule.world.core.is_complete(), "{:#?}", schedule.world.journal);
        prop_assert_eq!(schedule.settled.len(), usize::from(ITEMS));
        for (item, settled) in &schedule.settled {
            if let Some(by) = &settled.by {
                prop_assert!(schedule.verdicts.contains(&(*item, by.exec)), "{:?}", settled);
            }
        }
    }
}
