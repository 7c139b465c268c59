//! Steps: everything that can happen next, as data, so that a schedule can be said again and
//! shortened. A step that cannot happen does nothing.

use crate::broker::Loss;
use crate::names::Ending;
use crate::random::Random;
use crate::world::World;

/// One step. Workers and coordinators are named by their place, the rest by its place there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Step {
    Pull(usize, usize),
    Ask(usize, usize),
    Finish(usize, usize, Ending, bool),
    Begin(usize, usize),
    Loss(usize),
    Mark(usize, usize),
    Publish(usize, usize, bool),
    Acknowledge(usize),
    Hello(usize),
    Read(usize),
    Claim(usize),
    Hellos(usize),
    Sync(usize),
    Perform(usize),
    Send(usize),
    BeginRound(usize),
    EndRound(usize),
    Look(usize),
    Renew(usize, bool),
    Purge(usize),
    Pass(u64),
    StartWorker(usize),
    Connect(usize),
    ContinueWorker(usize),
    ServerReturns(Loss),
    StartCoordinator(usize, usize),
    ContinueCoordinator(usize),
    Cancel(usize, usize),
    Stop(usize),
    Respecify(usize),
    KillWorker(usize),
    DestroyWorker(usize),
    CutOff(usize),
    StopWorker(usize),
    ServerDies,
    KillCoordinator(usize, u16),
    StopCoordinator(usize),
    CopyDirectory,
    StoreDies,
    StoreReturns,
    FallBehind(usize),
    CatchUp(usize),
}

impl Step {
    /// Whether it is something that goes wrong.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::KillWorker(_)
                | Self::DestroyWorker(_)
                | Self::CutOff(_)
                | Self::StopWorker(_)
                | Self::ServerDies
                | Self::StoreDies
                | Self::KillCoordinator(..)
                | Self::StopCoordinator(_)
                | Self::Respecify(_)
                | Self::Stop(_)
                | Self::Publish(_, _, false)
        )
    }
}

impl World {
    /// Does a step; whether anything happened.
    pub(crate) fn step(&mut self, step: Step) -> bool {
        let happened = self.worker_step(step) || self.coordinator_step(step) || self.fault(step);
        self.now += if happened { 20 } else { 0 };
        if happened && step.is_fault() {
            self.judge.faults += 1;
        }
        self.coordinators.retain(|coordinator| !coordinator.is_gone());
        happened
    }

    fn worker_step(&mut self, step: Step) -> bool {
        match step {
            Step::Pull(w, nth) => self.pull(w, nth),
            Step::Ask(w, i) => self.ask(w, i),
            Step::Finish(w, i, ending, bare) => self.finish(w, i, ending, bare),
            Step::Begin(w, i) => self.say_beginning(w, i),
            Step::Loss(w) => self.say_loss(w),
            Step::Mark(w, i) => self.mark(w, i),
            Step::Publish(w, i, heard) => self.publish(w, i, heard),
            Step::Acknowledge(w) => self.acknowledge(w),
            Step::Hello(w) => {
                let reaches = self.reaches(w);
                if reaches {
                    self.say_hello(w);
                }
                reaches
            }
            Step::StartWorker(w) => !self.setup.embedded && self.start_worker(w),
            Step::Connect(w) => self.connect_worker(w, true),
            Step::ContinueWorker(w) => self.pause_worker(w, false),
            _ => false,
        }
    }

    fn coordinator_step(&mut self, step: Step) -> bool {
        match step {
            Step::Read(c) => self.read(c),
            Step::Claim(c) => self.take_claim(c),
            Step::Hellos(c) => !self.setup.embedded && self.see_hellos(c),
            Step::Sync(c) => self.sync(c),
            Step::Perform(c) => self.perform(c),
            Step::Send(c) => self.send(c),
            Step::BeginRound(c) => self.begin_round(c),
            Step::EndRound(c) => self.end_round(c),
            Step::Look(c) => self.look(c),
            Step::Renew(c, heard) => self.renew(c, heard),
            Step::Purge(c) => self.purge(c),
            Step::Cancel(c, n) => self.cancel(c, n),
            Step::Stop(c) => self.stop(c),
            Step::StartCoordinator(host, directory) => self.start_coordinator(host, directory),
            Step::ContinueCoordinator(c) => self.pause_coordinator(c, false),
            _ => false,
        }
    }

    fn fault(&mut self, step: Step) -> bool {
        match step {
            Step::Pass(ms) => {
                self.pass(ms);
                true
            }
            Step::ServerReturns(loss) => self.server_returns(loss),
            Step::Respecify(n) => self.respecify(n),
            Step::KillWorker(w) => !self.setup.embedded && self.kill_worker(w),
            Step::DestroyWorker(w) => !self.setup.embedded && self.destroy_worker(w),
            Step::CutOff(w) => !self.setup.embedded && self.connect_worker(w, false),
            Step::StopWorker(w) => !self.setup.embedded && self.pause_worker(w, true),
            Step::ServerDies => self.server_dies(),
            Step::KillCoordinator(c, share) => self.kill_coordinator(c, share),
            Step::StopCoordinator(c) => self.pause_coordinator(c, true),
            Step::StoreDies => !self.setup.embedded && self.turn_store(true),
            Step::StoreReturns => self.turn_store(false),
            Step::FallBehind(c) => self.lag(c, true),
            Step::CatchUp(c) => self.lag(c, false),
            Step::CopyDirectory => self.copy_directory(),
            _ => false,
        }
    }
}

/// Which faults may happen, and how many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// At most so many.
    pub(crate) most: usize,
    /// Workers die, are cut off, are stopped.
    pub(crate) workers: bool,
    /// The server dies with what it had.
    pub(crate) server: bool,
    /// It loses tails and acknowledgements when it does.
    pub(crate) tails: bool,
    /// It loses everything.
    pub(crate) wipes: bool,
    /// Coordinators die.
    pub(crate) coordinators: bool,
    /// Coordinators are stopped while others take over, with copies of the directory.
    pub(crate) owners: bool,
    /// Users stop, cancel and change what items run under.
    pub(crate) users: bool,
    /// How often of a hundred an execution ends by an outage.
    pub(crate) outages: usize,
    /// Executions that end at once and leave nothing.
    pub(crate) bare: bool,
}

/// Draws the next step.
pub(crate) fn draw(world: &World, faults: &Faults, random: &mut Random) -> Step {
    if world.judge.faults < faults.most && random.percent(12) {
        return draw_fault(world, faults, random);
    }
    let w = random.below(world.workers.len());
    let c = random.below(world.coordinators.len().max(1));
    let i = random.below(2);
    match random.below(96) {
        0..=9 => Step::Pull(w, i),
        10..=13 => Step::Ask(w, i),
        14..=23 => {
            let outage = random.percent(faults.outages);
            let ending = if outage {
                Ending::Outage
            } else {
                random.pick(&[Ending::Reward, Ending::Reward, Ending::AgentFailure])
            };
            Step::Finish(w, i, ending, faults.bare && random.percent(50))
        }
        24..=27 => Step::Begin(w, i),
        28 | 29 => Step::Loss(w),
        30..=34 => Step::Mark(w, i),
        35..=41 => Step::Publish(w, i, true),
        42..=44 => Step::Acknowledge(w),
        45..=47 => Step::Hello(w),
        48..=56 => Step::Read(c),
        57..=60 => Step::Claim(c),
        61 | 62 => Step::Hellos(c),
        63..=69 => Step::Sync(c),
        70..=76 => Step::Perform(c),
        77..=82 => Step::Send(c),
        83 | 84 => Step::BeginRound(c),
        85 | 86 => Step::EndRound(c),
        87 => Step::Look(c),
        88 => Step::Renew(c, !random.percent(20)),
        89 => Step::Purge(c),
        _ => draw_recovery(world, faults, random),
    }
}

/// Time passes, and what is broken is put right.
fn draw_recovery(world: &World, faults: &Faults, random: &mut Random) -> Step {
    let w = random.below(world.workers.len());
    let c = random.below(world.coordinators.len().max(1));
    if !world.broker.up && random.percent(40) {
        return Step::ServerReturns(draw_loss(faults, random));
    }
    let takeover = faults.owners && random.percent(50);
    match random.below(10) {
        0 => Step::Pass(random.pick(&[300, 2_000, 6_000, 20_000, 45_000, 65_000, 130_000])),
        1..=4 => Step::StartWorker(w),
        5 => random.pick(&[Step::Connect(w), Step::StoreReturns]),
        6 => Step::ContinueWorker(w),
        7 => random.pick(&[Step::ContinueCoordinator(c), Step::CatchUp(c)]),
        _ if takeover => Step::StartCoordinator(1, random.below(world.directories.len())),
        _ => Step::StartCoordinator(0, 0),
    }
}

fn draw_loss(faults: &Faults, random: &mut Random) -> Loss {
    if faults.wipes && random.percent(30) {
        return Loss { all: true, ..Loss::default() };
    }
    if !faults.tails {
        return Loss::default();
    }
    let mut upto = |n| u8::try_from(random.below(n)).expect("small");
    Loss { reports: upto(3), work: upto(3), acks: upto(3), all: false }
}

fn draw_fault(world: &World, faults: &Faults, random: &mut Random) -> Step {
    let w = random.below(world.workers.len());
    let c = random.below(world.coordinators.len().max(1));
    let n = random.below(world.setup.items);
    let share = u16::try_from(random.below(65_536)).expect("16 bits");
    match random.below(13) {
        0 if faults.workers => Step::KillWorker(w),
        1 if faults.workers && random.percent(30) => Step::DestroyWorker(w),
        2 if faults.workers => Step::CutOff(w),
        3 if faults.workers => Step::StopWorker(w),
        4 if faults.workers => Step::Publish(w, 0, false),
        5 if faults.server && random.percent(30) => Step::StoreDies,
        5 if faults.server => Step::ServerDies,
        6 | 7 if faults.coordinators => Step::KillCoordinator(c, share),
        8 if faults.owners => Step::StopCoordinator(c),
        12 if faults.coordinators => Step::FallBehind(c),
        9 if faults.owners => Step::CopyDirectory,
        10 if faults.users && random.percent(30) => Step::Cancel(c, n),
        10 if faults.users && random.percent(30) => Step::Stop(c),
        11 if faults.users => Step::Respecify(n),
        _ => Step::Pull(w, 0),
    }
}
