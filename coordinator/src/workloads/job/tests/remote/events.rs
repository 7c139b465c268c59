//! Tests of the event stream while workers and coordinators die.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::record::{Settlement, TrialRecord};
use rollout_worker::executor::Finished;
use rollout_worker::work::trial::TrialContext;

use super::*;

/// Runs trials that take a moment.
#[derive(Debug)]
struct SlowRunner(LocalRunner);

#[async_trait]
impl Runner for SlowRunner {
    async fn run(&self, context: TrialContext) -> Finished<TrialRecord> {
        // Simulated work of the trial.
        tokio::time::sleep(Duration::from_millis(150)).await;
        self.0.run(context).await
    }
}

/// The executions that run according to events.
#[derive(Debug, Default)]
struct ShownExecutions {
    running: BTreeSet<(ItemId, ExecId)>,
    settled: BTreeSet<ItemId>,
    phases: usize,
    ended: bool,
}

impl ShownExecutions {
    fn apply(&mut self, event: &RunEvent) {
        match &event.kind {
            EventKind::TrialPhase { item, exec, .. } => {
                assert!(!self.settled.contains(item), "a phase after the end of {item}");
                self.running.insert((*item, *exec));
                self.phases += 1;
            }
            EventKind::TrialRetry { item, exec, .. }
            | EventKind::TrialLost { item, exec, .. }
            | EventKind::ExecutionEnded { item, exec, .. } => {
                self.running.remove(&(*item, *exec));
            }
            EventKind::TrialSettled { settlement, .. } => {
                self.running.retain(|(item, _)| *item != settlement.item);
                assert!(self.settled.insert(settlement.item), "settled twice: {event:?}");
            }
            EventKind::RunEnded { .. } => {
                assert_eq!(self.running, BTreeSet::new(), "at the end");
                self.ended = true;
            }
            _ => {}
        }
    }

    /// Takes in events until this many items are settled, or until the stream ends.
    async fn watch(&mut self, seen: &mut mpsc::Receiver<Vec<RunEvent>>, settled: usize) {
        while self.settled.len() < settled {
            let Some(events) = timeout(LONG, seen.recv()).await.expect("in time") else { return };
            events.iter().for_each(|event| self.apply(event));
        }
    }
}

/// Starts a worker whose trials take a moment.
fn slow_worker(
    world: &RemoteFixture,
    name: &str,
) -> (watch::Sender<ShutdownLevel>, Task<service::WorkerExit>) {
    world.worker_with(name, 3, Arc::new(SlowRunner(world.runner(name))))
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_hands_over_ends_no_execution() {
    let world = RemoteFixture::new(80).await;
    let _workers = ["a", "b"].map(|name| slow_worker(&world, name));
    let (stop, (session, mut seen)) = world.open_session(|plan| plan, true).await;
    wait_for_settled(&mut seen, 20).await;
    stop.send(StopLevel::Drain).await.expect("it runs");
    let ended = wait_for_end((session, seen)).await;
    assert!(ended.cancelled && ended.pending > 0, "{ended:?}");
    assert_eq!(wait_for_end(world.start_session().await).await, COMPLETED);
    assert_eq!(world.settled(), 80);
    let records = record_texts(&world.dir.path().join("run/records")).concat();
    let superseded = records.lines().flat_map(|line| {
        serde_json::from_str::<Settlement>(line).expect("a settlement").superseded
    });
    assert_eq!(superseded.collect::<Vec<_>>(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn execution_end_event_is_sent_after_kill_and_takeover() {
    let world = RemoteFixture::new(150).await;
    let _lasting = ["a", "b"].map(|name| slow_worker(&world, name));
    let killed = slow_worker(&world, "c");
    let (session, mut seen) = world.start_session().await;
    ShownExecutions::default().watch(&mut seen, 40).await;
    // The heartbeat of a killed worker stays where the next coordinator reads it.
    drop(killed);
    drop(session);
    let (session, mut seen) = world.start_session().await;
    let mut shown = ShownExecutions::default();
    shown.watch(&mut seen, usize::MAX).await;
    assert_eq!(
        timeout(LONG, session).await.expect("in time").expect("ended").expect("well"),
        COMPLETED
    );
    assert_eq!((shown.ended, shown.settled.len()), (true, 150));
    assert!(shown.phases > 0, "heartbeats showed executions");
}
