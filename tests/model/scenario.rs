//! Hand-written schedules.

use std::ops::{Deref, DerefMut};

use rollout_protocol::record::ItemOutcome;

use crate::names::{self, ExecutionEnding, item};
use crate::rules::ProtocolRules;
use crate::schedule::finish_schedule;
use crate::simulation::{Simulation, SimulationSetup};
use crate::step::ScheduleStep;

/// A simulation that prints its trace when the test fails.
pub(crate) struct Scenario(Simulation);

impl Deref for Scenario {
    type Target = Simulation;
    fn deref(&self) -> &Simulation {
        &self.0
    }
}

impl DerefMut for Scenario {
    fn deref_mut(&mut self) -> &mut Simulation {
        &mut self.0
    }
}

impl Drop for Scenario {
    #[expect(clippy::print_stdout, reason = "trace of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0.trace.take().unwrap_or_default().join("\n"));
        }
    }
}

impl Scenario {
    /// A world with this many items and workers with these slots, connected long ago. Offers exist
    /// but are neither durable nor published.
    pub(crate) fn new(items: usize, slots: &[usize]) -> Self {
        let setup = SimulationSetup {
            items,
            permits: items,
            slots: slots.to_vec(),
            reports_limit: 64,
            settled_workers: true,
            embedded: false,
        };
        let mut world = Simulation::new(setup, ProtocolRules::ALL);
        world.trace = Some(Vec::new());
        Self(world)
    }

    /// Like [`Self::new`], with every worker running as many items as it has slots.
    pub(crate) fn running(items: usize, slots: &[usize]) -> Self {
        let mut story = Self::new(items, slots);
        story.advance(2_000);
        story
    }

    /// Applies steps, each of which must be possible.
    pub(crate) fn apply(&mut self, steps: &[ScheduleStep]) -> &mut Self {
        for step in steps {
            self.log(|| format!("- {step:?}"));
            assert!(self.apply_step(*step), "{step:?} is not possible");
            self.assert_invariants();
        }
        self
    }

    pub(crate) fn advance_seconds(&mut self, seconds: u64) -> &mut Self {
        self.0.advance(seconds * 1000);
        self.assert_invariants();
        self
    }

    /// Finishes the worker's first execution with a reward, and runs until idle.
    pub(crate) fn finish_first(&mut self, w: usize) -> &mut Self {
        self.apply(&[ScheduleStep::Finish(w, 0, ExecutionEnding::Reward, false)]).advance_seconds(1)
    }

    fn assert_invariants(&self) {
        assert_eq!(self.invariants.violation, None);
    }

    /// Heals the world, settles everything and checks the invariants.
    pub(crate) fn run_to_end(&mut self) -> &mut Self {
        finish_schedule(&mut self.0);
        self.assert_invariants();
        self
    }

    /// Number of executions of an item.
    pub(crate) fn execution_count(&self, n: usize) -> usize {
        self.invariants.executions.values().filter(|fact| fact.item == item(n)).count()
    }

    /// The execution that settled the item.
    pub(crate) fn settled_by(&self, n: usize) -> Option<u32> {
        let settled = self.invariants.settled.get(&item(n))?;
        settled.by().map(|by| names::exec_number(&by))
    }

    pub(crate) fn outcome(&self, n: usize) -> Option<ItemOutcome> {
        self.invariants.settled.get(&item(n)).map(|settled| settled.verdict().outcome)
    }

    /// The worker that runs the item now.
    pub(crate) fn running_worker(&self, n: usize) -> Option<usize> {
        let runs = |w: &usize| {
            self.workers[*w].running.iter().any(|execution| execution.offer.item == item(n))
        };
        (0..self.workers.len()).find(runs)
    }
}
