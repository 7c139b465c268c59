//! Random schedules of remote workers: redelivery, deaths, outages, wipes of the queue, takeovers.
//! In every schedule each item ends with one settlement, the journal alone gives the same state,
//! and no execution starts beside one that its worker shows.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::delivery::QueuedOffer;
use rollout_protocol::wire::heartbeat::{
    ActiveExecution, Heartbeat, ReceivedHeartbeat, ResourceBudget,
};

use super::*;
use crate::core::ItemToReopen;

const ITEMS: u8 = 3;
const LEASE: u64 = 60_000;

#[derive(Debug, Clone, Copy)]
enum FleetStep {
    Deliver(usize, usize),
    Finish(usize, bool),
    /// Milliseconds pass; living workers send heartbeats and extend what they hold.
    Wait(u64),
    Observe,
    /// A worker process dies.
    Die(usize),
    /// A dead worker returns and reports its losses.
    Return(usize),
    /// A worker loses its connection, or reconnects.
    Cut(usize),
    /// The queue's process dies; everything in flight is delivered again.
    Restart,
    /// The queue loses everything.
    Wipe,
    /// Another coordinator takes over.
    Takeover,
    /// Limits on the unstarted offers of the two classes.
    Room(usize, usize),
    Cancel(usize),
    /// A user gives a settled item another try.
    Retry(usize),
    Respecify(usize),
}

fn step() -> impl Strategy<Value = FleetStep> {
    prop_oneof![
        8 => (any::<usize>(), 0usize..2).prop_map(|(n, w)| FleetStep::Deliver(n, w)),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(n, ok)| FleetStep::Finish(n, ok)),
        5 => (0u64..3000).prop_map(FleetStep::Wait),
        3 => (20_000u64..70_000).prop_map(FleetStep::Wait),
        3 => Just(FleetStep::Observe),
        1 => (0usize..2).prop_map(FleetStep::Die),
        2 => (0usize..2).prop_map(FleetStep::Return),
        2 => (0usize..2).prop_map(FleetStep::Cut),
        1 => Just(FleetStep::Restart),
        1 => Just(FleetStep::Wipe),
        1 => Just(FleetStep::Takeover),
        1 => (0usize..3, 0usize..3).prop_map(|(small, large)| FleetStep::Room(small, large)),
        1 => any::<usize>().prop_map(FleetStep::Cancel),
        1 => any::<usize>().prop_map(FleetStep::Retry),
        1 => any::<usize>().prop_map(FleetStep::Respecify),
    ]
}

/// A message in the queue.
#[derive(Debug, Clone, Copy)]
struct QueuedTry {
    try_id: TryId,
    spec: u8,
    delivered: u32,
    /// When it is delivered again.
    until: u64,
}

#[derive(Debug, Clone, Copy)]
struct FleetExecution {
    item: u8,
    try_id: TryId,
    spec: u8,
    exec: u64,
    claiming: bool,
    /// Whether its worker has sent a heartbeat since it runs.
    shown: bool,
}

#[derive(Debug, Default)]
struct FleetWorker {
    process: u32,
    dead: bool,
    cut: bool,
    /// Until when every delivery is suspicious.
    suspicious: u64,
    executions: Vec<FleetExecution>,
    /// Executions of a previous process.
    left: Vec<FleetExecution>,
    /// Ends that are not reported yet.
    spool: Vec<(FleetExecution, ReportBody)>,
}

struct Fleet {
    world: CoreFixture,
    workers: [FleetWorker; 2],
    queue: BTreeMap<u8, QueuedTry>,
    heartbeats: BTreeMap<String, (u64, Heartbeat)>,
    /// Since when every heartbeat is kept.
    kept_since: u64,
    /// Every report, in the stream and in the store.
    said: Vec<PositionedReport>,
    markers: Vec<Report>,
    next_exec: u64,
    next_question: u64,
    questions: BTreeMap<u64, (usize, FleetExecution)>,
    seen: usize,
    settled: BTreeMap<ItemId, ItemSettlement>,
    specs: BTreeMap<u8, u8>,
}

impl Fleet {
    fn new() -> Self {
        let mut fleet = Self {
            world: CoreFixture::remote(ITEMS, 2),
            workers: Default::default(),
            queue: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            kept_since: 0,
            said: Vec::new(),
            markers: Vec::new(),
            next_exec: 0,
            next_question: 0,
            questions: BTreeMap::new(),
            seen: 0,
            settled: BTreeMap::new(),
            specs: (0..ITEMS).map(|n| (n, 1)).collect(),
        };
        fleet.perform();
        fleet
    }

    fn handle(&mut self, input: CoreInput) {
        self.world.handle(input);
        self.perform();
    }

    /// Carries out the core's new effects.
    fn perform(&mut self) {
        while self.seen < self.world.effects.len() {
            let effect = self.world.effects[self.seen].clone();
            self.seen += 1;
            match effect {
                CoreEffect::Offer { item, try_id, .. } => {
                    let n = item.as_bytes()[0];
                    let spec = self.specs[&n];
                    let message = QueuedTry { try_id, spec, delivered: 0, until: 0 };
                    assert!(self.queue.insert(n, message).is_none(), "two tries in the queue");
                }
                CoreEffect::Withdraw { item, try_id } => self.remove(item.as_bytes()[0], try_id),
                CoreEffect::Answer { id, answer } => self.answered(id, answer),
                CoreEffect::Settled(settled) => {
                    let former = self.settled.insert(settled.item, (*settled).clone());
                    assert!(former.is_none(), "settled twice: {settled:?}");
                }
                CoreEffect::LookForResults { item } => {
                    let of_item = |report: &&Report| report.item == item;
                    let reports = self.markers.iter().filter(of_item).cloned().collect();
                    self.world.handle(CoreInput::Found { item, reports });
                }
                CoreEffect::StopExecution { exec, .. } => self.stopped(exec),
                CoreEffect::Retry(_)
                | CoreEffect::Lost { .. }
                | CoreEffect::Receipt { .. }
                | CoreEffect::Paused(_)
                | CoreEffect::Reopened(_)
                | CoreEffect::EventChunk(_)
                | CoreEffect::Stop(_) => {}
            }
        }
    }

    fn remove(&mut self, n: u8, try_id: TryId) {
        if self.queue.get(&n).is_some_and(|message| message.try_id == try_id) {
            self.queue.remove(&n);
        }
    }

    fn answered(&mut self, id: u64, answer: ClaimAnswer) {
        let Some((w, execution)) = self.questions.remove(&id) else { return };
        let worker = &mut self.workers[w];
        let Some(place) = worker.executions.iter().position(|e| e.exec == execution.exec) else {
            return;
        };
        if worker.cut {
            return;
        }
        match answer {
            ClaimAnswer::Run => {
                worker.executions[place].claiming = false;
                self.assert_shown_by_no_other(w, &execution);
            }
            ClaimAnswer::Hold => drop(worker.executions.remove(place)),
            ClaimAnswer::Drop => {
                worker.executions.remove(place);
                self.remove(execution.item, execution.try_id);
            }
        }
    }

    /// Asserts that no worker was told to run beside an execution that a connected worker shows.
    fn assert_shown_by_no_other(&self, w: usize, execution: &FleetExecution) {
        let floor = self.world.core.items[&item(execution.item)].floor;
        for other in self.workers.iter().filter(|worker| !worker.dead && !worker.cut) {
            let beside = other.executions.iter().find(|e| {
                e.item == execution.item
                    && e.exec != execution.exec
                    && e.shown
                    && !e.claiming
                    && e.try_id >= floor
            });
            assert!(beside.is_none(), "worker {w} runs {execution:?} beside {beside:?}");
        }
    }

    fn stopped(&mut self, exec_id: ExecId) {
        for w in 0..2 {
            let worker = &mut self.workers[w];
            let running = |e: &FleetExecution| exec(e.exec) == exec_id && !e.claiming;
            if let Some(place) = worker.executions.iter().position(running)
                && !worker.cut
            {
                let ended = worker.executions.remove(place);
                worker.spool.push((ended, lost(LostReason::Stopped)));
                self.publish(w);
            }
        }
    }

    fn step(&mut self, step: FleetStep) {
        match step {
            FleetStep::Deliver(n, w) => self.deliver(n, w),
            FleetStep::Finish(n, fine) => self.finish(n, fine),
            FleetStep::Wait(ms) => self.wait(ms),
            FleetStep::Observe => self.observe(),
            FleetStep::Die(w) => {
                let worker = &mut self.workers[w];
                worker.dead = true;
                let executions = std::mem::take(&mut worker.executions);
                worker.left.extend(executions.into_iter().filter(|e| !e.claiming));
            }
            FleetStep::Return(w) => self.reconnect_worker(w),
            FleetStep::Cut(w) => {
                let worker = &mut self.workers[w];
                worker.cut = !worker.cut;
                if !worker.cut {
                    worker.suspicious = self.world.now_ms + LEASE;
                    self.send_heartbeat(w);
                    self.publish(w);
                }
            }
            FleetStep::Restart => {
                for message in self.queue.values_mut() {
                    (message.until, message.delivered) = (0, 0);
                }
                self.reconnected();
            }
            FleetStep::Wipe => {
                self.queue.clear();
                self.reconnected();
            }
            FleetStep::Takeover => self.take_over(),
            FleetStep::Room(small, large) => {
                let rooms = [(SizeClass(0), small), (SizeClass(1), large)];
                self.handle(CoreInput::OfferLimits(rooms.into()));
            }
            FleetStep::Cancel(n) => {
                let n = u8::try_from(n % usize::from(ITEMS)).expect("few");
                let items = vec![planned(n, self.specs[&n])];
                self.handle(CoreInput::Cancel { id: 0, items });
            }
            FleetStep::Retry(n) => {
                let n = u8::try_from(n % usize::from(ITEMS)).expect("few");
                // The queue of this test has one try of an item.
                if !self.queue.contains_key(&n)
                    && let Some(former) = self.settled.remove(&item(n))
                {
                    let tries = self.world.core.progress(&item(n)).map_or(0, |of| of.tries);
                    let new = planned(n, self.specs[&n]);
                    let items = vec![ItemToReopen { new, tries, former: Box::new(former) }];
                    self.handle(CoreInput::Reopen { id: 0, named: 1, items });
                }
            }
            FleetStep::Respecify(n) => {
                let n = u8::try_from(n % usize::from(ITEMS)).expect("few");
                if !self.settled.contains_key(&item(n)) {
                    *self.specs.get_mut(&n).expect("planned") += 1;
                    self.take_over();
                }
            }
        }
    }

    fn reconnected(&mut self) {
        for worker in &mut self.workers {
            worker.suspicious = self.world.now_ms + LEASE;
        }
        self.heartbeats.clear();
        self.kept_since = self.world.now_ms;
        self.handle(CoreInput::Reconnected);
    }

    fn take_over(&mut self) {
        let specs: Vec<u8> = self.specs.values().copied().collect();
        self.questions.clear();
        for worker in &mut self.workers {
            worker.executions.retain(|e| !e.claiming);
        }
        let replayed = self.world.take_over(&specs);
        self.settled = replayed.into_iter().map(|settled| (settled.item, settled)).collect();
        // Some were retried since.
        let core = &self.world.core;
        self.settled.retain(|item, _| core.settled_spec(item).is_some());
        self.seen = 0;
        self.perform();
    }

    fn deliver(&mut self, n: usize, w: usize) {
        let now = self.world.now_ms;
        let free: Vec<u8> = self
            .queue
            .iter()
            .filter(|(_, message)| message.until <= now)
            .map(|(n, _)| *n)
            .collect();
        let worker = &self.workers[w];
        if free.is_empty() || worker.dead || worker.cut || worker.executions.len() > 1 {
            return;
        }
        let item = free[n % free.len()];
        let message = self.queue.get_mut(&item).expect("free");
        message.delivered += 1;
        message.until = now + LEASE;
        let QueuedTry { try_id, spec, delivered, .. } = *message;
        let same = |e: &FleetExecution| (e.item, e.try_id) == (item, try_id);
        if self.workers[w].executions.iter().any(same) {
            // The execution here keeps the message alive.
            return;
        }
        self.next_exec += 1;
        let claiming = delivered > 1 || try_id.n > 1 || now < worker.suspicious;
        let exec = self.next_exec;
        let execution = FleetExecution { item, try_id, spec, exec, claiming, shown: false };
        self.workers[w].executions.push(execution);
        if claiming {
            self.ask(w, execution);
        }
    }

    fn ask(&mut self, w: usize, execution: FleetExecution) {
        self.next_question += 1;
        let id = self.next_question;
        self.questions.insert(id, (w, execution));
        let claim = Claim {
            run: RUN,
            item: item(execution.item),
            try_id: execution.try_id,
            exec: exec(execution.exec),
            spec: spec(execution.spec),
            worker: self.name(w).parse().expect("valid"),
            stage: None,
        };
        self.handle(CoreInput::Claim { id, claim });
    }

    /// Repeats a claim whose answer did not arrive.
    fn ask_again(&mut self, w: usize) {
        let waits =
            |e: &FleetExecution| self.questions.values().any(|(_, asked)| asked.exec == e.exec);
        let executions = self.workers[w].executions.iter();
        let unanswered: Vec<_> = executions.filter(|e| e.claiming && !waits(e)).copied().collect();
        for execution in unanswered {
            self.ask(w, execution);
        }
    }

    fn name(&self, w: usize) -> String {
        format!("w{w}-{}", self.workers[w].process)
    }

    fn finish(&mut self, n: usize, fine: bool) {
        let w = n % 2;
        let worker = &mut self.workers[w];
        let Some(place) = worker.executions.iter().position(|e| !e.claiming) else { return };
        if worker.dead {
            return;
        }
        let ended = worker.executions.remove(place);
        let body = if fine { ok(ended.exec as f64) } else { outage() };
        self.markers.push(self.report(w, &ended, body.clone()));
        self.workers[w].spool.push((ended, body));
        self.publish(w);
    }

    fn report(&self, w: usize, of: &FleetExecution, body: ReportBody) -> Report {
        Report {
            run: RUN,
            item: item(of.item),
            try_id: of.try_id,
            exec: exec(of.exec),
            spec: spec(of.spec),
            worker: self.name(w).parse().expect("valid"),
            body,
        }
    }

    fn publish(&mut self, w: usize) {
        if self.workers[w].cut || self.workers[w].dead {
            return;
        }
        for (ended, body) in std::mem::take(&mut self.workers[w].spool) {
            let sequence = self.said.len() as u64 + 1;
            let report = self.report(w, &ended, body);
            let position = ReportPosition::for_report(Incarnation(1), sequence, &report);
            let reported = PositionedReport { position, report };
            self.said.push(reported.clone());
            self.handle(CoreInput::Reported(Box::new(reported)));
            self.remove(ended.item, ended.try_id);
        }
    }

    fn reconnect_worker(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        if !std::mem::take(&mut worker.dead) {
            return;
        }
        worker.cut = false;
        worker.process += 1;
        worker.suspicious = self.world.now_ms + LEASE;
        for gone in std::mem::take(&mut worker.left) {
            worker.spool.push((gone, lost(LostReason::WorkerDied)));
        }
        self.send_heartbeat(w);
        self.publish(w);
    }

    fn wait(&mut self, ms: u64) {
        for second in (0..ms).step_by(5000) {
            self.pass_time((ms - second).min(5000));
        }
    }

    fn pass_time(&mut self, ms: u64) {
        self.world.now_ms += ms;
        let now = self.world.now_ms;
        for w in 0..2 {
            if self.workers[w].dead || self.workers[w].cut {
                continue;
            }
            for e in &self.workers[w].executions {
                if let Some(message) = self.queue.get_mut(&e.item)
                    && message.try_id == e.try_id
                {
                    message.until = now + LEASE;
                }
            }
            self.send_heartbeat(w);
            self.ask_again(w);
        }
        self.handle(CoreInput::Tick);
    }

    fn send_heartbeat(&mut self, w: usize) {
        let executions = self.workers[w].executions.iter_mut();
        let executions = executions.map(|e| {
            e.shown = true;
            running_execution(e.item, e.try_id, e.exec, e.claiming)
        });
        let executions = executions.collect();
        let name = self.name(w);
        self.heartbeats.insert(name.clone(), (self.world.now_ms, heartbeat(&name, executions)));
        let kept = Duration::from_millis(self.world.now_ms - self.kept_since);
        self.handle(CoreInput::HeartbeatsKept(kept));
        self.handle(CoreInput::Heartbeats(self.all_heartbeats()));
    }

    fn all_heartbeats(&self) -> Vec<ReceivedHeartbeat> {
        let seen = self.heartbeats.values().map(|(at, heartbeat)| ReceivedHeartbeat {
            heartbeat: heartbeat.clone(),
            age: Duration::from_millis(self.world.now_ms - at),
        });
        seen.collect()
    }

    fn observe(&mut self) {
        let listed = self.queue.iter().map(|(n, message)| QueuedOffer {
            item: item(*n),
            try_id: message.try_id,
            delivered: message.delivered > 0,
        });
        self.handle(CoreInput::Observed(listed.collect()));
    }

    /// No more faults: runs everything to its end.
    fn heal(&mut self) {
        self.handle(CoreInput::OfferLimits(BTreeMap::new()));
        for w in 0..2 {
            self.reconnect_worker(w);
            if self.workers[w].cut {
                self.step(FleetStep::Cut(w));
            }
        }
        for round in 0..200 {
            if self.world.core.is_complete() {
                return;
            }
            self.wait(10_000);
            for n in 0..4 {
                self.finish(n, true);
                self.deliver(n, n % 2);
            }
            if round % 3 == 0 {
                self.observe();
            }
        }
        panic!("not settled: {:#?}\n{:#?}", self.queue, self.world.core);
    }
}

/// A report that the queue lost and the store has.
pub(super) fn marker(n: u8, try_id: TryId, e: u64, body: ReportBody) -> Report {
    let worker = "w".parse().expect("valid");
    Report { run: RUN, item: item(n), try_id, exec: exec(e), spec: spec(1), worker, body }
}

/// Items that alternate between two classes.
pub(super) fn planned(n: u8, under: u8) -> NewItem {
    let (ordinal, class) = (u64::from(n), SizeClass(n % 2));
    NewItem { item: item(n), ordinal, spec: spec(under), class, lane: 0 }
}

pub(super) fn running_execution(n: u8, try_id: TryId, e: u64, claiming: bool) -> ActiveExecution {
    ActiveExecution {
        run: RUN,
        item: item(n),
        try_id,
        exec: exec(e),
        phase: Phase::AgentExecution,
        claiming,
        stage: None,
        parked: None,
    }
}

pub(super) fn heartbeat(name: &str, executions: Vec<ActiveExecution>) -> Heartbeat {
    Heartbeat {
        worker: name.parse().expect("valid"),
        host: "host".to_owned(),
        version: "test".to_owned(),
        store: "store".to_owned(),
        pool: "default".to_owned(),
        slots: 2,
        free: 0,
        budget: ResourceBudget::default(),
        providers: BTreeMap::new(),
        variables: std::collections::BTreeSet::new(),
        max_offline_sec: None,
        draining: false,
        low_disk: false,
        disk_fault: None,
        gone: false,
        executions,
        model_calls: Vec::new(),
        model_leases: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn remote_workers_with_random_faults_settle_each_item_once(
        steps in prop::collection::vec(step(), 0..80)
    ) {
        let mut fleet = Fleet::new();
        for step in steps {
            fleet.step(step);
            fleet.world.assert_replay_matches();
        }
        fleet.heal();
        prop_assert_eq!(fleet.settled.len(), usize::from(ITEMS));
        for settled in fleet.settled.values() {
            if let Some(by) = &settled.by {
                let said = fleet.said.iter().any(|said| said.report.exec == by.exec)
                    || fleet.markers.iter().any(|marker| marker.exec == by.exec);
                prop_assert!(said, "{:?}", settled);
            }
        }
    }
}
