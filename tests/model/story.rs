//! Schedules written by hand.

use std::ops::{Deref, DerefMut};

use rollout_protocol::record::Outcome;

use crate::names::{self, Ending, item};
use crate::rules::Rules;
use crate::schedule::finish;
use crate::step::Step;
use crate::world::{Setup, World};

/// A world with something to tell when its test fails.
pub(crate) struct Story(World);

impl Deref for Story {
    type Target = World;
    fn deref(&self) -> &World {
        &self.0
    }
}

impl DerefMut for Story {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.0
    }
}

impl Drop for Story {
    #[expect(clippy::print_stdout, reason = "what happened, for whoever reads a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0.trace.take().unwrap_or_default().join("\n"));
        }
    }
}

impl Story {
    /// So many items, and workers with so many slots, connected long ago. Offers are made and
    /// neither recorded durably nor published.
    pub(crate) fn of(items: usize, slots: &[usize]) -> Self {
        let setup = Setup {
            items,
            permits: items,
            slots: slots.to_vec(),
            reports_limit: 64,
            settled_workers: true,
            embedded: false,
        };
        let mut world = World::new(setup, Rules::ALL);
        world.trace = Some(Vec::new());
        Self(world)
    }

    /// The same, and every worker runs as many as it has slots for.
    pub(crate) fn running(items: usize, slots: &[usize]) -> Self {
        let mut story = Self::of(items, slots);
        story.pass(2_000);
        story
    }

    /// Does steps, each of which must be possible.
    pub(crate) fn does(&mut self, steps: &[Step]) -> &mut Self {
        for step in steps {
            self.note(|| format!("- {step:?}"));
            assert!(self.step(*step), "{step:?} is not possible");
            self.is_sound();
        }
        self
    }

    pub(crate) fn pass_seconds(&mut self, seconds: u64) -> &mut Self {
        self.0.pass(seconds * 1000);
        self.is_sound();
        self
    }

    /// The first execution of a worker ends with a reward, and everything that follows is done.
    pub(crate) fn finishes(&mut self, w: usize) -> &mut Self {
        self.does(&[Step::Finish(w, 0, Ending::Reward, false)]).pass_seconds(1)
    }

    fn is_sound(&self) {
        assert_eq!(self.judge.broken, None);
    }

    /// The world heals, and everything is settled and judged.
    pub(crate) fn ends(&mut self) -> &mut Self {
        finish(&mut self.0);
        self.is_sound();
        self
    }

    /// Executions of an item.
    pub(crate) fn runs(&self, n: usize) -> usize {
        self.judge.executions.values().filter(|fact| fact.item == item(n)).count()
    }

    /// Whether an item is settled, and by which execution.
    pub(crate) fn settled_by(&self, n: usize) -> Option<u32> {
        let settled = self.judge.settled.get(&item(n))?;
        settled.by().map(|by| names::exec_number(&by))
    }

    pub(crate) fn outcome(&self, n: usize) -> Option<Outcome> {
        self.judge.settled.get(&item(n)).map(|settled| settled.verdict().outcome)
    }

    /// The worker that runs something of an item now.
    pub(crate) fn runner(&self, n: usize) -> Option<usize> {
        let runs = |w: &usize| {
            self.workers[*w].running.iter().any(|execution| execution.offer.item == item(n))
        };
        (0..self.workers.len()).find(runs)
    }
}
