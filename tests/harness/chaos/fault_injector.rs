//! Random faults: selection and injection.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::ItemId;
use rollout_protocol::limits::{DEATHS_BEFORE_SOLO, SOLO_DEATHS};
use rustix::process::Signal;

use super::ChaosPlan;
use super::random::ChaosRng;
use super::unmarked_results::UnmarkedResults;
use crate::cluster::{Cluster, ClusterMember};
use crate::nats::NatsServer;
use crate::s3_process::S3Process;
use crate::wait;

/// Longest pause or connection cut, in leases.
const LONGEST_DISTURBANCE: f64 = 1.4;

/// Total weight of the actions.
const ACTION_WEIGHTS: usize = 25;

/// Worker deaths allowed per item. One more and the run gives the item up, which an undisturbed run
/// never does.
const MAX_DEATHS_PER_ITEM: u32 = DEATHS_BEFORE_SOLO + SOLO_DEATHS - 1;

/// The process that a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultTarget {
    Server,
    Store,
    Coordinator(usize),
    Worker(usize),
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultAction {
    /// kill -9, then an immediate restart.
    Kill,
    /// Kill of the server and loss of its store.
    Wipe,
    /// SIGSTOP for a time.
    Stop,
    /// Connections are closed for a time.
    Cut,
    /// Bytes are held back for a time.
    Stall,
}

/// Injects faults into a cluster until its runs are complete.
pub(super) struct FaultInjector<'a> {
    plan: &'a ChaosPlan,
    random: ChaosRng,
    unmarked: UnmarkedResults<'a>,
    server: &'a mut NatsServer,
    store: Option<&'a mut S3Process>,
    coordinators: Vec<ClusterMember>,
    workers: Vec<ClusterMember>,
    /// End time, target and kind of each temporary fault.
    active_faults: Vec<(Instant, FaultTarget, FaultAction)>,
    retired: Option<usize>,
    complete: Vec<bool>,
    /// Number of workers killed while they ran the item.
    deaths: HashMap<ItemId, u32>,
    began: Instant,
    say: &'a dyn Fn(&str),
    pub(super) actions: BTreeMap<&'static str, u32>,
    pub(super) exposed_executions: usize,
}

impl<'a> FaultInjector<'a> {
    pub(super) fn new(
        plan: &'a ChaosPlan,
        cluster: &'a mut Cluster,
        coordinators: Vec<ClusterMember>,
        workers: Vec<ClusterMember>,
        unmarked: UnmarkedResults<'a>,
        say: &'a dyn Fn(&str),
    ) -> Self {
        Self {
            plan,
            random: ChaosRng::new(plan.seed),
            unmarked,
            server: &mut cluster.server,
            store: cluster.s3.as_mut(),
            complete: vec![false; coordinators.len()],
            coordinators,
            workers,
            active_faults: Vec::new(),
            retired: None,
            deaths: HashMap::new(),
            began: Instant::now(),
            say,
            actions: BTreeMap::new(),
            exposed_executions: 0,
        }
    }

    /// Injects faults until every run is complete or something fails; returns the failures. After
    /// the plan's time no more faults are injected, and unfinished runs must still complete.
    pub(super) fn run_until_complete(&mut self) -> Vec<String> {
        while self.began.elapsed() < self.plan.disturbed {
            let pause = self.random.between(self.plan.pause.0, self.plan.pause.1);
            let mut outcome = None;
            wait::holds_within(Duration::from_secs_f64(pause), || {
                self.end_due_actions();
                outcome = self.outcome();
                outcome.is_some()
            });
            match outcome {
                Some(problems) => return problems,
                None => self.inject_random(),
            }
        }
        self.log("no more faults");
        self.end_all_actions();
        let (mut outcome, calm) = (None, self.plan.completion_deadline());
        wait::holds_within(calm, || {
            outcome = self.outcome();
            outcome.is_some()
        });
        outcome.unwrap_or_else(|| vec![format!("not complete {calm:?} after the last fault")])
    }

    /// `Some` when all runs are complete or one failed.
    fn outcome(&mut self) -> Option<Vec<String>> {
        for (coordinator, complete) in self.coordinators.iter_mut().zip(&mut self.complete) {
            if *complete || coordinator.is_running() {
                continue;
            }
            let ended = coordinator.wait(Duration::ZERO);
            if ended.status.code() != Some(i32::from(ExitCode::Success.code())) {
                let (name, status) = (&coordinator.name, ended.status);
                return Some(vec![format!("{name} ended with {status}:\n{}", ended.stderr)]);
            }
            *complete = true;
        }
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if self.retired != Some(number) && !worker.is_running() {
                let ended = worker.wait(Duration::ZERO);
                let (name, status) = (&worker.name, ended.status);
                return Some(vec![format!("{name} ended with {status}:\n{}", ended.stderr)]);
            }
        }
        self.complete.iter().all(|complete| *complete).then(Vec::new)
    }

    fn inject_random(&mut self) {
        let target = self.target();
        let action = self.action(target);
        if self.active_faults.iter().any(|(_, of, _)| *of == target) && action != FaultAction::Kill
        {
            return;
        }
        if action == FaultAction::Kill && self.would_exhaust_item(target) {
            return;
        }
        let for_a_time =
            self.random.between(0.5, LONGEST_DISTURBANCE * self.plan.lease.as_secs_f64());
        let name = match action {
            FaultAction::Kill => "kill",
            FaultAction::Wipe => "wipe",
            FaultAction::Stop => "stop",
            FaultAction::Cut => "cut",
            FaultAction::Stall => "stall",
        };
        *self.actions.entry(name).or_default() += 1;
        if matches!(action, FaultAction::Stop | FaultAction::Cut | FaultAction::Stall) {
            let end = Instant::now() + Duration::from_secs_f64(for_a_time);
            self.active_faults.push((end, target, action));
            self.log(&format!("{name} {} for {for_a_time:.1} s", self.name(target)));
        } else {
            self.log(&format!("{name} {}", self.name(target)));
        }
        self.begin_action(target, action);
    }

    /// Chooses a process that should be running.
    fn target(&mut self) -> FaultTarget {
        let coordinators = (0..self.coordinators.len()).filter(|number| !self.complete[*number]);
        let workers = (0..self.workers.len()).filter(|number| self.retired != Some(*number));
        let mut targets: Vec<_> = coordinators.map(FaultTarget::Coordinator).collect();
        targets.extend(workers.map(FaultTarget::Worker));
        targets.push(FaultTarget::Server);
        targets.extend(self.store.iter().map(|_| FaultTarget::Store));
        targets[self.random.below(targets.len())]
    }

    fn action(&mut self, target: FaultTarget) -> FaultAction {
        let chosen = self.random.below(ACTION_WEIGHTS);
        if self.plan.only_kills {
            return FaultAction::Kill;
        }
        match (target, chosen) {
            (FaultTarget::Server, 0..5) => FaultAction::Wipe,
            (FaultTarget::Server | FaultTarget::Store, 0..17) | (_, 0..10) => FaultAction::Kill,
            (FaultTarget::Server | FaultTarget::Store, _) | (_, 10..15) => FaultAction::Stop,
            (_, 15..20) => FaultAction::Cut,
            (_, _) => FaultAction::Stall,
        }
    }

    /// Whether killing the target would make the run give an item up. Pauses a worker first, so
    /// that the items it runs can be counted before it dies.
    fn would_exhaust_item(&mut self, target: FaultTarget) -> bool {
        let FaultTarget::Worker(number) = target else { return false };
        let worker = &mut self.workers[number];
        let was_paused = worker.is_paused();
        worker.pause();
        let items = worker.executing_items();
        let spared = items.iter().any(|item| self.deaths.get(item) >= Some(&MAX_DEATHS_PER_ITEM));
        if !spared {
            items.into_iter().for_each(|item| *self.deaths.entry(item).or_default() += 1);
        } else if !was_paused {
            worker.resume();
        }
        spared
    }

    fn begin_action(&mut self, target: FaultTarget, action: FaultAction) {
        let member = match target {
            FaultTarget::Server => return self.disturb_server(action),
            FaultTarget::Store => return self.disturb_store(action),
            FaultTarget::Coordinator(number) => &mut self.coordinators[number],
            FaultTarget::Worker(number) => &mut self.workers[number],
        };
        if matches!(target, FaultTarget::Worker(_)) {
            self.exposed_executions += member.executing_items().len();
        }
        match action {
            FaultAction::Kill | FaultAction::Wipe => {
                let _killed = member.kill();
                match target {
                    FaultTarget::Worker(number)
                        if self.plan.no_return && self.retired.is_none() =>
                    {
                        self.retired = Some(number);
                    }
                    _ => member.start(),
                }
            }
            FaultAction::Stop => member.pause(),
            FaultAction::Cut => member.tcp_proxy().cut(),
            FaultAction::Stall => member.tcp_proxy().stall(),
        }
    }

    fn disturb_server(&mut self, action: FaultAction) {
        match action {
            FaultAction::Stop => self.server.signal(Signal::STOP),
            FaultAction::Wipe => {
                self.exposed_executions += self.unmarked.count();
                self.server.wipe();
                self.server.ensure_started();
            }
            FaultAction::Kill | FaultAction::Cut | FaultAction::Stall => {
                self.server.kill();
                self.server.ensure_started();
            }
        }
    }

    fn disturb_store(&mut self, action: FaultAction) {
        let Some(store) = &mut self.store else { return };
        match action {
            FaultAction::Stop => store.signal(Signal::STOP),
            _ => {
                store.kill();
                store.ensure_started();
            }
        }
    }

    fn end_due_actions(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.active_faults.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, target, action) in due {
            self.log(&format!("{} recovers", self.name(target)));
            self.end_action(target, action);
        }
    }

    fn end_action(&mut self, target: FaultTarget, action: FaultAction) {
        let member = match target {
            FaultTarget::Server => return self.server.signal(Signal::CONT),
            FaultTarget::Store => {
                return self.store.iter_mut().for_each(|store| store.signal(Signal::CONT));
            }
            FaultTarget::Coordinator(number) => &mut self.coordinators[number],
            FaultTarget::Worker(number) => &mut self.workers[number],
        };
        match action {
            FaultAction::Stop => member.resume(),
            _ => member.tcp_proxy().restore(),
        }
    }

    /// Ends all temporary faults and returns the workers, dead ones included.
    pub(super) fn into_workers(mut self) -> Vec<ClusterMember> {
        self.end_all_actions();
        self.workers
    }

    fn end_all_actions(&mut self) {
        for (_, target, action) in std::mem::take(&mut self.active_faults) {
            self.end_action(target, action);
        }
    }

    fn name(&self, target: FaultTarget) -> String {
        match target {
            FaultTarget::Server => "nats-server".to_owned(),
            FaultTarget::Store => "S3 server".to_owned(),
            FaultTarget::Coordinator(number) => self.coordinators[number].name.clone(),
            FaultTarget::Worker(number) => self.workers[number].name.clone(),
        }
    }

    fn log(&self, what: &str) {
        (self.say)(&format!("{:6.1} s  {what}", self.began.elapsed().as_secs_f64()));
    }
}
