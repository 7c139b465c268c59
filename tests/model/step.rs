//! Steps: every possible next event as data, so that a schedule can be repeated and shrunk. An
//! impossible step does nothing.

use crate::broker::ServerLoss;
use crate::names::ExecutionEnding;
use crate::random::ScheduleRng;
use crate::simulation::Simulation;

/// One step. Workers and coordinators are given by index; further numbers are indexes within them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScheduleStep {
    Pull(usize, usize),
    SendClaim(usize, usize),
    Finish(usize, usize, ExecutionEnding, bool),
    ReportStart(usize, usize),
    ReportLoss(usize),
    Mark(usize, usize),
    Publish(usize, usize, bool),
    Acknowledge(usize),
    Heartbeat(usize),
    Read(usize),
    Claim(usize),
    ObserveHeartbeats(usize),
    Sync(usize),
    Perform(usize),
    Send(usize),
    BeginReconcile(usize),
    EndReconcile(usize),
    LookUpResults(usize),
    Renew(usize, bool),
    Purge(usize),
    Advance(u64),
    StartWorker(usize),
    Connect(usize),
    ResumeWorker(usize),
    ServerReturns(ServerLoss),
    StartCoordinator(usize, usize),
    ResumeCoordinator(usize),
    Cancel(usize, usize),
    Stop(usize),
    Respecify(usize),
    KillWorker(usize),
    DestroyWorker(usize),
    CutOff(usize),
    PauseWorker(usize),
    ServerDies,
    KillCoordinator(usize, u16),
    PauseCoordinator(usize),
    CopyDirectory,
    StoreDies,
    StoreReturns,
    FallBehind(usize),
    CatchUp(usize),
}

impl ScheduleStep {
    /// Whether it is a fault.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::KillWorker(_)
                | Self::DestroyWorker(_)
                | Self::CutOff(_)
                | Self::PauseWorker(_)
                | Self::ServerDies
                | Self::StoreDies
                | Self::KillCoordinator(..)
                | Self::PauseCoordinator(_)
                | Self::Respecify(_)
                | Self::Stop(_)
                | Self::Publish(_, _, false)
        )
    }
}

impl Simulation {
    /// Applies a step. Returns whether anything happened.
    pub(crate) fn apply_step(&mut self, step: ScheduleStep) -> bool {
        let happened =
            self.worker_step(step) || self.coordinator_step(step) || self.fault_step(step);
        self.now += if happened { 20 } else { 0 };
        if happened && step.is_fault() {
            self.invariants.faults += 1;
        }
        self.coordinators.retain(|coordinator| !coordinator.is_gone());
        happened
    }

    fn worker_step(&mut self, step: ScheduleStep) -> bool {
        match step {
            ScheduleStep::Pull(w, nth) => self.pull_delivery(w, nth),
            ScheduleStep::SendClaim(w, i) => self.send_claim(w, i),
            ScheduleStep::Finish(w, i, ending, bare) => self.finish_execution(w, i, ending, bare),
            ScheduleStep::ReportStart(w, i) => self.report_start(w, i),
            ScheduleStep::ReportLoss(w) => self.report_loss(w),
            ScheduleStep::Mark(w, i) => self.store_marker(w, i),
            ScheduleStep::Publish(w, i, heard) => self.publish_result(w, i, heard),
            ScheduleStep::Acknowledge(w) => self.send_acks(w),
            ScheduleStep::Heartbeat(w) => {
                let reaches = self.ensure_worker_connected(w);
                if reaches {
                    self.publish_heartbeat(w);
                }
                reaches
            }
            ScheduleStep::StartWorker(w) => !self.setup.embedded && self.start_worker(w),
            ScheduleStep::Connect(w) => self.set_worker_online(w, true),
            ScheduleStep::ResumeWorker(w) => self.set_worker_paused(w, false),
            _ => false,
        }
    }

    fn coordinator_step(&mut self, step: ScheduleStep) -> bool {
        match step {
            ScheduleStep::Read(c) => self.read_report(c),
            ScheduleStep::Claim(c) => self.handle_claim(c),
            ScheduleStep::ObserveHeartbeats(c) => {
                !self.setup.embedded && self.observe_heartbeats(c)
            }
            ScheduleStep::Sync(c) => self.sync_journal(c),
            ScheduleStep::Perform(c) => self.perform_effect(c),
            ScheduleStep::Send(c) => self.send_effect(c),
            ScheduleStep::BeginReconcile(c) => self.begin_reconcile(c),
            ScheduleStep::EndReconcile(c) => self.end_reconcile(c),
            ScheduleStep::LookUpResults(c) => self.look_up_results(c),
            ScheduleStep::Renew(c, heard) => self.renew_lock(c, heard),
            ScheduleStep::Purge(c) => self.purge_reports(c),
            ScheduleStep::Cancel(c, n) => self.cancel_item(c, n),
            ScheduleStep::Stop(c) => self.stop_run(c),
            ScheduleStep::StartCoordinator(host, directory) => {
                self.start_coordinator(host, directory)
            }
            ScheduleStep::ResumeCoordinator(c) => self.set_coordinator_paused(c, false),
            _ => false,
        }
    }

    fn fault_step(&mut self, step: ScheduleStep) -> bool {
        match step {
            ScheduleStep::Advance(ms) => {
                self.advance(ms);
                true
            }
            ScheduleStep::ServerReturns(loss) => self.restart_server(loss),
            ScheduleStep::Respecify(n) => self.respecify(n),
            ScheduleStep::KillWorker(w) => !self.setup.embedded && self.kill_worker(w),
            ScheduleStep::DestroyWorker(w) => !self.setup.embedded && self.destroy_worker(w),
            ScheduleStep::CutOff(w) => !self.setup.embedded && self.set_worker_online(w, false),
            ScheduleStep::PauseWorker(w) => !self.setup.embedded && self.set_worker_paused(w, true),
            ScheduleStep::ServerDies => self.kill_server(),
            ScheduleStep::KillCoordinator(c, share) => self.kill_coordinator(c, share),
            ScheduleStep::PauseCoordinator(c) => self.set_coordinator_paused(c, true),
            ScheduleStep::StoreDies => !self.setup.embedded && self.set_store_down(true),
            ScheduleStep::StoreReturns => self.set_store_down(false),
            ScheduleStep::FallBehind(c) => self.set_coordinator_lag(c, true),
            ScheduleStep::CatchUp(c) => self.set_coordinator_lag(c, false),
            ScheduleStep::CopyDirectory => self.copy_directory(),
            _ => false,
        }
    }
}

/// The kinds and number of faults that may happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultPlan {
    /// Maximum number of faults.
    pub(crate) max_faults: usize,
    /// Workers die, are cut off, are paused.
    pub(crate) workers: bool,
    /// The server dies with what it had.
    pub(crate) server: bool,
    /// The server loses tails and acknowledgements when it dies.
    pub(crate) tail_loss: bool,
    /// The server loses everything when it dies.
    pub(crate) total_loss: bool,
    /// Coordinators die.
    pub(crate) coordinators: bool,
    /// Coordinators are paused while others take over, with copies of the directory.
    pub(crate) takeovers: bool,
    /// Users stop, cancel and change specs.
    pub(crate) user_commands: bool,
    /// Percentage of executions that end by an outage.
    pub(crate) outage_percent: usize,
    /// Some executions end at once and leave nothing.
    pub(crate) bare: bool,
}

/// Draws the next step.
pub(crate) fn draw_step(
    world: &Simulation,
    faults: &FaultPlan,
    random: &mut ScheduleRng,
) -> ScheduleStep {
    if world.invariants.faults < faults.max_faults && random.percent(12) {
        return draw_fault(world, faults, random);
    }
    let w = random.below(world.workers.len());
    let c = random.below(world.coordinators.len().max(1));
    let i = random.below(2);
    match random.below(96) {
        0..=9 => ScheduleStep::Pull(w, i),
        10..=13 => ScheduleStep::SendClaim(w, i),
        14..=23 => {
            let outage = random.percent(faults.outage_percent);
            let ending = if outage {
                ExecutionEnding::Outage
            } else {
                random.pick(&[
                    ExecutionEnding::Reward,
                    ExecutionEnding::Reward,
                    ExecutionEnding::AgentFailure,
                ])
            };
            ScheduleStep::Finish(w, i, ending, faults.bare && random.percent(50))
        }
        24..=27 => ScheduleStep::ReportStart(w, i),
        28 | 29 => ScheduleStep::ReportLoss(w),
        30..=34 => ScheduleStep::Mark(w, i),
        35..=41 => ScheduleStep::Publish(w, i, true),
        42..=44 => ScheduleStep::Acknowledge(w),
        45..=47 => ScheduleStep::Heartbeat(w),
        48..=56 => ScheduleStep::Read(c),
        57..=60 => ScheduleStep::Claim(c),
        61 | 62 => ScheduleStep::ObserveHeartbeats(c),
        63..=69 => ScheduleStep::Sync(c),
        70..=76 => ScheduleStep::Perform(c),
        77..=82 => ScheduleStep::Send(c),
        83 | 84 => ScheduleStep::BeginReconcile(c),
        85 | 86 => ScheduleStep::EndReconcile(c),
        87 => ScheduleStep::LookUpResults(c),
        88 => ScheduleStep::Renew(c, !random.percent(20)),
        89 => ScheduleStep::Purge(c),
        _ => draw_recovery(world, faults, random),
    }
}

/// Advances time or recovers from a fault.
fn draw_recovery(world: &Simulation, faults: &FaultPlan, random: &mut ScheduleRng) -> ScheduleStep {
    let w = random.below(world.workers.len());
    let c = random.below(world.coordinators.len().max(1));
    if !world.broker.up && random.percent(40) {
        return ScheduleStep::ServerReturns(draw_loss(faults, random));
    }
    let takeover = faults.takeovers && random.percent(50);
    match random.below(10) {
        0 => ScheduleStep::Advance(
            random.pick(&[300, 2_000, 6_000, 20_000, 45_000, 65_000, 130_000]),
        ),
        1..=4 => ScheduleStep::StartWorker(w),
        5 => random.pick(&[ScheduleStep::Connect(w), ScheduleStep::StoreReturns]),
        6 => ScheduleStep::ResumeWorker(w),
        7 => random.pick(&[ScheduleStep::ResumeCoordinator(c), ScheduleStep::CatchUp(c)]),
        _ if takeover => ScheduleStep::StartCoordinator(1, random.below(world.directories.len())),
        _ => ScheduleStep::StartCoordinator(0, 0),
    }
}

fn draw_loss(faults: &FaultPlan, random: &mut ScheduleRng) -> ServerLoss {
    if faults.total_loss && random.percent(30) {
        return ServerLoss { all: true, ..ServerLoss::default() };
    }
    if !faults.tail_loss {
        return ServerLoss::default();
    }
    let mut upto = |n| u8::try_from(random.below(n)).expect("small");
    ServerLoss { reports: upto(3), work: upto(3), acks: upto(3), all: false }
}

fn draw_fault(world: &Simulation, faults: &FaultPlan, random: &mut ScheduleRng) -> ScheduleStep {
    let w = random.below(world.workers.len());
    let c = random.below(world.coordinators.len().max(1));
    let n = random.below(world.setup.items);
    let share = u16::try_from(random.below(65_536)).expect("16 bits");
    match random.below(13) {
        0 if faults.workers => ScheduleStep::KillWorker(w),
        1 if faults.workers && random.percent(30) => ScheduleStep::DestroyWorker(w),
        2 if faults.workers => ScheduleStep::CutOff(w),
        3 if faults.workers => ScheduleStep::PauseWorker(w),
        4 if faults.workers => ScheduleStep::Publish(w, 0, false),
        5 if faults.server && random.percent(30) => ScheduleStep::StoreDies,
        5 if faults.server => ScheduleStep::ServerDies,
        6 | 7 if faults.coordinators => ScheduleStep::KillCoordinator(c, share),
        8 if faults.takeovers => ScheduleStep::PauseCoordinator(c),
        12 if faults.coordinators => ScheduleStep::FallBehind(c),
        9 if faults.takeovers => ScheduleStep::CopyDirectory,
        10 if faults.user_commands && random.percent(30) => ScheduleStep::Cancel(c, n),
        10 if faults.user_commands && random.percent(30) => ScheduleStep::Stop(c),
        11 if faults.user_commands => ScheduleStep::Respecify(n),
        _ => ScheduleStep::Pull(w, 0),
    }
}
