//! Schedules: drawn from a seed, run, healed, checked, shrunk and printed.

use std::cell::Cell;
use std::fmt::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::broker::ServerLoss;
use crate::names::{ExecutionEnding, item_number};
use crate::random::ScheduleRng;
use crate::rules::ProtocolRules;
use crate::simulation::{Simulation, SimulationSetup};
use crate::step::{FaultPlan, ScheduleStep, draw_step};

/// Virtual time within which a healed world settles everything: a lease for executions that may
/// still run, two reconciliation rounds, and the same again for every retry.
const HEALING_STEPS: usize = 60;
const HEALING_STEP: u64 = 15_000;

/// Common properties of a family of schedules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScheduleFamily {
    pub(crate) name: &'static str,
    pub(crate) embedded: bool,
    pub(crate) faults: FaultPlan,
    pub(crate) rules: ProtocolRules,
}

/// A schedule as data.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) setup: SimulationSetup,
    pub(crate) rules: ProtocolRules,
    pub(crate) steps: Vec<ScheduleStep>,
}

/// A schedule that violates an invariant.
#[derive(Debug)]
pub(crate) struct ScheduleFailure {
    pub(crate) number: u64,
    pub(crate) what: String,
    pub(crate) schedule: Schedule,
}

fn draw_setup(family: &ScheduleFamily, random: &mut ScheduleRng) -> SimulationSetup {
    let workers = if family.embedded { 1 } else { 1 + random.below(3) };
    SimulationSetup {
        items: 1 + random.below(3) + random.below(2),
        permits: 1 + random.below(4),
        slots: (0..workers).map(|_| 1 + random.below(2)).collect(),
        reports_limit: if random.percent(10) { 3 } else { 64 },
        settled_workers: random.percent(70),
        embedded: family.embedded,
    }
}

/// Draws and runs the schedule of a seed.
pub(crate) fn run_schedule(
    family: &ScheduleFamily,
    number: u64,
) -> Result<Simulation, Box<ScheduleFailure>> {
    let mut random = ScheduleRng::new(number);
    let schedule =
        Schedule { setup: draw_setup(family, &mut random), rules: family.rules, steps: vec![] };
    let steps = 30 + random.below(90);
    let faults =
        FaultPlan { max_faults: random.below(family.faults.max_faults + 1), ..family.faults };
    // A step without effect is dropped from the schedule, but a step that panics is kept.
    let mut done = Vec::with_capacity(steps);
    let result = catch_panic(|| {
        let mut world = Simulation::new(schedule.setup.clone(), schedule.rules);
        while done.len() < steps && world.invariants.violation.is_none() {
            let step = draw_step(&world, &faults, &mut random);
            done.push(step);
            if !world.apply_step(step) {
                done.pop();
            }
        }
        finish_schedule(&mut world);
        world
    });
    let broken = |what| {
        Box::new(ScheduleFailure { number, what, schedule: Schedule { steps: done, ..schedule } })
    };
    match result {
        Ok(mut world) => match world.invariants.violation.take() {
            None => Ok(world),
            Some(what) => Err(broken(what)),
        },
        Err(what) => Err(broken(what)),
    }
}

impl Schedule {
    /// The violation, if any.
    fn violation(&self) -> Option<String> {
        let result = catch_panic(|| {
            let mut world = Simulation::new(self.setup.clone(), self.rules);
            self.steps.iter().all(|step| {
                world.apply_step(*step);
                world.invariants.violation.is_none()
            });
            finish_schedule(&mut world);
            world.invariants.violation
        });
        result.unwrap_or_else(Some)
    }

    /// Removes steps as long as the schedule still fails in the same way.
    pub(crate) fn shrink(&mut self, what: &str) {
        let same = |schedule: &Self| {
            schedule.violation().is_some_and(|is| failure_kind(&is) == failure_kind(what))
        };
        let mut chunk = (self.steps.len() / 2).max(1);
        loop {
            let before = self.steps.len();
            let mut at = 0;
            while at < self.steps.len() {
                let mut shorter = self.clone();
                shorter.steps.drain(at..(at + chunk).min(self.steps.len()));
                if same(&shorter) {
                    *self = shorter;
                } else {
                    at += chunk;
                }
            }
            if chunk == 1 && self.steps.len() == before {
                return;
            }
            chunk = (chunk / 2).max(1);
        }
    }

    /// The trace of the schedule as text.
    pub(crate) fn trace_text(&self) -> String {
        let mut text = format!("{:?}\n", self.setup);
        let steps: Vec<String> = self.steps.iter().map(|step| format!("{step:?}")).collect();
        writeln!(text, "steps: [{}]", steps.join(", ")).expect("text");
        let trace = Cell::new(Vec::new());
        let broken = catch_panic(|| {
            let mut world = Simulation::new(self.setup.clone(), self.rules);
            world.trace = Some(Vec::new());
            self.steps.iter().all(|step| {
                world.log(|| format!("- {step:?}"));
                world.apply_step(*step);
                trace.set(world.trace.clone().unwrap_or_default());
                world.invariants.violation.is_none()
            });
            world.log(|| "--- no more faults".to_owned());
            finish_schedule(&mut world);
            trace.set(world.trace.take().unwrap_or_default());
            world.invariants.violation
        });
        for line in trace.take() {
            writeln!(text, "{line}").expect("text");
        }
        writeln!(text, "BROKEN: {:?}", broken.unwrap_or_else(Some)).expect("text");
        text
    }
}

impl ScheduleFailure {
    /// The shrunk schedule and its trace as text.
    pub(crate) fn report(mut self, family: &ScheduleFamily) -> String {
        self.schedule.shrink(&self.what);
        let Self { number, what, schedule } = self;
        let name = family.name;
        format!(
            "{name}, schedule {number}: {what}\n(ROLLOUT_MODEL_SEED={number})\n{}",
            schedule.trace_text()
        )
    }
}

/// Kind of a failure: its text without the names in it.
pub(crate) fn failure_kind(what: &str) -> String {
    let first = what.split(':').next().unwrap_or(what);
    first.chars().filter(|c| !c.is_ascii_digit()).collect()
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may panic, without printing the panic; its message becomes the error.
fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("panic: {}", text.unwrap_or_default())
    })
}

/// Heals the world; then all items must be settled correctly.
pub(crate) fn finish_schedule(world: &mut Simulation) {
    if world.invariants.violation.is_none() {
        heal(world);
    }
    if world.invariants.violation.is_none() {
        check_end(world);
    }
}

fn heal(world: &mut Simulation) {
    world.restart_server(ServerLoss::default());
    world.set_store_down(false);
    for w in 0..world.workers.len() {
        world.set_worker_online(w, true);
        world.set_worker_paused(w, false);
        if !world.setup.embedded {
            world.start_worker(w);
        }
    }
    for c in 0..world.coordinators.len() {
        world.set_coordinator_paused(c, false);
        world.set_coordinator_lag(c, false);
    }
    for _ in 0..HEALING_STEPS {
        world.run_until_idle();
        ensure_owner(world);
        for w in 0..world.workers.len() {
            while world.finish_execution(w, 0, ExecutionEnding::Reward, false) {}
        }
        world.run_until_idle();
        if world.is_complete() || world.invariants.violation.is_some() {
            return;
        }
        world.advance(HEALING_STEP);
    }
    let unsettled: Vec<usize> = (0..world.setup.items)
        .filter(|n| !world.invariants.settled.contains_key(&crate::names::item(*n)))
        .collect();
    world.invariants.fail(format!("items not settled: {unsettled:?}"));
}

/// Ensures that some coordinator owns the run and is not about to end.
fn ensure_owner(world: &mut Simulation) {
    if let Some(c) = world.owner()
        && world.coordinators[c].core.stopping().is_some()
    {
        world.close_run_session(c);
    }
    if world.owner().is_none() {
        let directory = world.invariants.directory;
        let host = world.broker.lock.as_ref().map_or(0, |(_, lock)| lock.host);
        world.start_coordinator(host, directory);
    }
}

fn check_end(world: &mut Simulation) {
    let Some(c) = world.owner() else { return };
    let directory = world.coordinators[c].directory;
    let before = world.invariants.settled.len();
    if before != world.setup.items {
        world.invariants.fail("an item is settled that is not in the plan");
    }
    for n in 0..world.setup.items {
        let of_item = |fact: &&crate::invariants::ExecutionFact| item_number(&fact.item) == n;
        let facts = world.invariants.executions.values().filter(of_item);
        let runs = facts.clone().count();
        let outages = facts
            .filter_map(|fact| fact.verdict.as_ref())
            .filter(|verdict| crate::names::may_be_retried(verdict))
            .count();
        let faults = world.invariants.faults;
        if runs > 1 + outages + faults {
            let what = format!("{runs} executions of item {n}: {outages} outages, {faults} faults");
            world.invariants.fail(format!("more executions than faults explain: {what}"));
        }
    }
    // Reading the journal again must give the same result.
    world.coordinators.clear();
    let epoch = world.directories[directory].epoch() + 1;
    world.begin_run_session(0, directory, epoch);
    if world.invariants.settled.len() != before {
        world.invariants.fail("the journal has fewer settlements when it is read again");
    }
}
