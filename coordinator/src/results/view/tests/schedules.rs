//! Random runs: the view of every part of a journal adds up and agrees with the core that wrote it.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum RunStep {
    Pass(usize),
    Fail(usize),
    Outage(usize),
    Start(usize),
    Lose(usize),
    Wait(u64),
    Cancel(usize),
    /// The owner dies, and another session resumes; it may reopen a settled trial.
    Resume(Option<usize>),
}

fn step() -> impl Strategy<Value = RunStep> {
    prop_oneof![
        4 => any::<usize>().prop_map(RunStep::Pass),
        2 => any::<usize>().prop_map(RunStep::Fail),
        3 => any::<usize>().prop_map(RunStep::Outage),
        3 => any::<usize>().prop_map(RunStep::Start),
        2 => any::<usize>().prop_map(RunStep::Lose),
        3 => (0u64..600_000).prop_map(RunStep::Wait),
        1 => any::<usize>().prop_map(RunStep::Cancel),
        2 => proptest::option::of(any::<usize>()).prop_map(RunStep::Resume),
    ]
}

const TASKS: [&str; 5] = ["a", "b", "c", "d", "e"];

fn play(steps: &[RunStep], permits: usize) -> JournalFixture {
    let mut journal = JournalFixture::new(&TASKS, permits);
    for step in steps {
        let offered = journal.offered();
        let pick = |n: usize| offered.get(n % offered.len().max(1)).map(|(item, _)| *item);
        let report = match *step {
            RunStep::Pass(n) => pick(n).map(|item| (item, passed())),
            RunStep::Fail(n) => pick(n).map(|item| (item, failed())),
            RunStep::Outage(n) => pick(n).map(|item| (item, outage())),
            RunStep::Start(n) => pick(n).map(|item| (item, ReportBody::Started)),
            RunStep::Lose(n) => {
                let (reason, phase, record, cost) = (LostReason::WorkerDied, None, None, 0.0);
                pick(n).map(|item| {
                    (
                        item,
                        ReportBody::Lost {
                            reason,
                            phase,
                            record,
                            cost,
                            model_use: Default::default(),
                        },
                    )
                })
            }
            RunStep::Wait(_) | RunStep::Cancel(_) | RunStep::Resume(_) => None,
        };
        if let Some((item, body)) = report {
            journal.report(item, body);
        }
        match *step {
            RunStep::Wait(ms) => {
                journal.now_ms += ms;
                journal.handle(CoreInput::Tick);
            }
            RunStep::Cancel(n) => {
                let trial = journal.plan.trial((n % TASKS.len()) as u64).expect("planned");
                let new = NewItem {
                    item: trial.item,
                    ordinal: trial.ordinal,
                    spec: trial.trial_ref.digest(),
                    class: Default::default(),
                    lane: 0,
                };
                journal.handle(CoreInput::Cancel { id: 1, items: vec![new] });
            }
            RunStep::Resume(reopened) => {
                let mut settled: Vec<ItemId> = journal
                    .core
                    .items()
                    .filter(|i| journal.core.settled_spec(i).is_some())
                    .collect();
                settled.sort_unstable();
                let reopened =
                    reopened.and_then(|n| settled.get(n % settled.len().max(1)).copied());
                journal.open(permits, reopened.into_iter().collect());
            }
            _ => {}
        }
    }
    journal
}

proptest! {
    #[test]
    fn view_of_every_prefix_adds_up(
        steps in proptest::collection::vec(step(), 0..40),
        permits in 1usize..4,
    ) {
        let journal = play(&steps, permits);
        let view = journal.view(true, None);
        prop_assert_eq!(view.counts.settled, journal.core.settled() as u64);
        prop_assert_eq!(view.counts.running, journal.core.in_flight() as u64);
        prop_assert_eq!(view.tally.settled(), view.counts.settled);
        let (_, events) = journal.fold(journal.records.len(), None);
        prop_assert!(events.windows(2).all(|pair| pair[0].seq < pair[1].seq));
        let mut before = 0;
        for count in 1..=journal.records.len() {
            let (fold, seen) = journal.fold(count, None);
            prop_assert_eq!(&seen[..], &events[..seen.len()], "events stay what they are");
            let now = journal.now().wall;
            let view = RunView::new(fold, RunKind::Job, None, None, now);
            assert_adds_up(&view.counts);
            let reopened = rollout_engine::reopened_items(&journal.records[count - 1].1).len() as u64;
            prop_assert!(view.counts.settled + reopened >= before, "a settled trial was lost");
            before = view.counts.settled;
        }
    }
}
