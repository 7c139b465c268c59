//! Chooses what to do to whom, and does it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::ItemId;
use rollout_protocol::limits::{DEATHS_BEFORE_SOLO, SOLO_DEATHS};
use rustix::process::Signal;

use super::Plan;
use super::random::Random;
use crate::cluster::Member;
use crate::nats::NatsServer;
use crate::wait;

/// Longest stop or cut, in leases.
const LONGEST: f64 = 1.4;

/// Sides of the dice that choose an action.
const SIDES: usize = 25;

/// Workers that may die under one item: one more, and it is given up, as no undisturbed run does.
const DEATHS: u32 = DEATHS_BEFORE_SOLO + SOLO_DEATHS - 1;

/// Whom something is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Server,
    Coordinator(usize),
    Worker(usize),
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// kill -9, and started again at once.
    Kill,
    /// Kill of the server, and its store is gone.
    Wipe,
    /// SIGSTOP for a time.
    Stop,
    /// Connections are closed for a time.
    Cut,
    /// Bytes wait for a time.
    Stall,
}

/// Disturbs a cluster until its runs are complete.
pub(super) struct Killer<'a> {
    plan: &'a Plan,
    random: Random,
    server: &'a mut NatsServer,
    coordinators: Vec<Member>,
    workers: Vec<Member>,
    /// What ends when.
    ends: Vec<(Instant, Target, Action)>,
    retired: Option<usize>,
    complete: Vec<bool>,
    /// How many workers were killed while they ran an item.
    deaths: HashMap<ItemId, u32>,
    began: Instant,
    say: &'a dyn Fn(&str),
    pub(super) actions: BTreeMap<&'static str, u32>,
    pub(super) exposed: usize,
}

impl<'a> Killer<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        server: &'a mut NatsServer,
        coordinators: Vec<Member>,
        workers: Vec<Member>,
        say: &'a dyn Fn(&str),
    ) -> Self {
        Self {
            plan,
            random: Random::new(plan.seed),
            server,
            complete: vec![false; coordinators.len()],
            coordinators,
            workers,
            ends: Vec::new(),
            retired: None,
            deaths: HashMap::new(),
            began: Instant::now(),
            say,
            actions: BTreeMap::new(),
            exposed: 0,
        }
    }

    /// Until every run is complete or something went wrong: what did. What is not complete when the
    /// time of the plan has passed is left alone from then on, and has to complete.
    pub(super) fn go(&mut self) -> Vec<String> {
        while self.began.elapsed() < self.plan.disturbed {
            let pause = self.random.between(self.plan.pause.0, self.plan.pause.1);
            let mut outcome = None;
            wait::holds_within(Duration::from_secs_f64(pause), || {
                self.end_what_is_due();
                outcome = self.outcome();
                outcome.is_some()
            });
            match outcome {
                Some(problems) => return problems,
                None => self.act(),
            }
        }
        self.tell("everything is left alone");
        self.let_go();
        let (mut outcome, calm) = (None, self.plan.calm());
        wait::holds_within(calm, || {
            outcome = self.outcome();
            outcome.is_some()
        });
        outcome.unwrap_or_else(|| vec![format!("not complete after {calm:?} without disturbance")])
    }

    /// Some when it is over.
    fn outcome(&mut self) -> Option<Vec<String>> {
        for (coordinator, complete) in self.coordinators.iter_mut().zip(&mut self.complete) {
            if *complete || coordinator.is_up() {
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
            if self.retired != Some(number) && !worker.is_up() {
                let ended = worker.wait(Duration::ZERO);
                let (name, status) = (&worker.name, ended.status);
                return Some(vec![format!("{name} ended with {status}:\n{}", ended.stderr)]);
            }
        }
        self.complete.iter().all(|complete| *complete).then(Vec::new)
    }

    fn act(&mut self) {
        let target = self.target();
        let action = self.action(target);
        if self.ends.iter().any(|(_, of, _)| *of == target) && action != Action::Kill {
            return;
        }
        if action == Action::Kill && self.spares(target) {
            return;
        }
        let for_a_time = self.random.between(0.5, LONGEST * self.plan.lease.as_secs_f64());
        let name = match action {
            Action::Kill => "kill",
            Action::Wipe => "wipe",
            Action::Stop => "stop",
            Action::Cut => "cut",
            Action::Stall => "stall",
        };
        *self.actions.entry(name).or_default() += 1;
        if matches!(action, Action::Stop | Action::Cut | Action::Stall) {
            let end = Instant::now() + Duration::from_secs_f64(for_a_time);
            self.ends.push((end, target, action));
            self.tell(&format!("{name} {} for {for_a_time:.1} s", self.name(target)));
        } else {
            self.tell(&format!("{name} {}", self.name(target)));
        }
        self.begin(target, action);
    }

    /// A process that is not meant to have ended.
    fn target(&mut self) -> Target {
        let coordinators = (0..self.coordinators.len()).filter(|number| !self.complete[*number]);
        let workers = (0..self.workers.len()).filter(|number| self.retired != Some(*number));
        let mut targets: Vec<_> = coordinators.map(Target::Coordinator).collect();
        targets.extend(workers.map(Target::Worker));
        targets.push(Target::Server);
        targets[self.random.below(targets.len())]
    }

    fn action(&mut self, target: Target) -> Action {
        let chosen = self.random.below(SIDES);
        if self.plan.only_kills {
            return Action::Kill;
        }
        match (target, chosen) {
            (Target::Server, 0..5) => Action::Wipe,
            (Target::Server, 5..17) | (_, 0..10) => Action::Kill,
            (Target::Server, _) | (_, 10..15) => Action::Stop,
            (_, 15..20) => Action::Cut,
            (_, _) => Action::Stall,
        }
    }

    /// Whether killing it would make the run give an item up. A worker is stopped here, so that what
    /// it runs is counted before it is gone.
    fn spares(&mut self, target: Target) -> bool {
        let Target::Worker(number) = target else { return false };
        let worker = &mut self.workers[number];
        let was_paused = worker.is_paused();
        worker.pause();
        let items = worker.executing();
        let spared = items.iter().any(|item| self.deaths.get(item) >= Some(&DEATHS));
        if !spared {
            items.into_iter().for_each(|item| *self.deaths.entry(item).or_default() += 1);
        } else if !was_paused {
            worker.resume();
        }
        spared
    }

    fn begin(&mut self, target: Target, action: Action) {
        let member = match target {
            Target::Server => return self.disturb_server(action),
            Target::Coordinator(number) => &mut self.coordinators[number],
            Target::Worker(number) => &mut self.workers[number],
        };
        if matches!(target, Target::Worker(_)) {
            self.exposed += member.executing().len();
        }
        match action {
            Action::Kill | Action::Wipe => {
                let _killed = member.kill();
                match target {
                    Target::Worker(number) if self.plan.no_return && self.retired.is_none() => {
                        self.retired = Some(number);
                    }
                    _ => member.start(),
                }
            }
            Action::Stop => member.pause(),
            Action::Cut => member.wire().cut(),
            Action::Stall => member.wire().stall(),
        }
    }

    fn disturb_server(&mut self, action: Action) {
        match action {
            Action::Stop => self.server.signal(Signal::STOP),
            Action::Wipe => {
                self.server.wipe();
                self.server.go();
            }
            Action::Kill | Action::Cut | Action::Stall => {
                self.server.kill();
                self.server.go();
            }
        }
    }

    fn end_what_is_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.ends.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, target, action) in due {
            self.tell(&format!("{} goes on", self.name(target)));
            self.finish(target, action);
        }
    }

    fn finish(&mut self, target: Target, action: Action) {
        let member = match target {
            Target::Server => return self.server.signal(Signal::CONT),
            Target::Coordinator(number) => &mut self.coordinators[number],
            Target::Worker(number) => &mut self.workers[number],
        };
        match action {
            Action::Stop => member.resume(),
            _ => member.wire().mend(),
        }
    }

    /// Lets everything go on: the workers that are left, and the dead one.
    pub(super) fn end(mut self) -> Vec<Member> {
        self.let_go();
        self.workers
    }

    fn let_go(&mut self) {
        for (_, target, action) in std::mem::take(&mut self.ends) {
            self.finish(target, action);
        }
    }

    fn name(&self, target: Target) -> String {
        match target {
            Target::Server => "nats-server".to_owned(),
            Target::Coordinator(number) => self.coordinators[number].name.clone(),
            Target::Worker(number) => self.workers[number].name.clone(),
        }
    }

    fn tell(&self, what: &str) {
        (self.say)(&format!("{:6.1} s  {what}", self.began.elapsed().as_secs_f64()));
    }
}
