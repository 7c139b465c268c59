//! Sessions of the run: the real engine over the queue of the fleet.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise::{self, Task};
use rollout_engine::core::RemoteTimeouts;
use rollout_engine::journal::RunLayout;
use rollout_engine::reconcile::{self, RemoteRun, message_channel};
use rollout_engine::{
    DurableStateListener, EngineOutcome, LockError, LockOptions, OpenError, RunError,
    RunOpenOptions, open_run,
};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::budget::RunBudget;
use tokio::sync::mpsc;

use super::fleet::{Fleet, LEASE};
use super::planner::SamplePlanner;

/// A running session. Dropping it is the death of its process.
pub(crate) type Session = Task<Result<EngineOutcome, RunError>>;

/// Starts a session, once the previous one has released the lock. Also returns the id of the run.
pub(crate) async fn start_session(fleet: &Fleet) -> (Session, RunId) {
    let (events, mut seen) = mpsc::channel(1024);
    let (stop, mut stops) = mpsc::channel(1);
    let opening = RunOpenOptions {
        layout: RunLayout::new(fleet.dir.path().join("run")),
        job: "model".to_owned(),
        plan: Digest::sha256(b"plan"),
        permits: fleet.permits,
        retry: RetryPolicy { initial_delay_ms: 4000, ..RetryPolicy::default() },
        lock: LockOptions::default(),
        timeouts: RemoteTimeouts { lease: LEASE, ..RemoteTimeouts::default() },
        budget: RunBudget::default(),
        reopen: None,
    };
    let (run, lock, planner) = loop {
        let planner = SamplePlanner::new(fleet.sample, fleet.items, Arc::clone(&fleet.log));
        match open_run(opening.clone(), Box::new(planner), events.clone(), &mut stops).await {
            Ok(opened) => break opened,
            // Parts of an aborted session end in their own time.
            Err(RunError::Open(OpenError::Lock(LockError::Held { .. }))) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("cannot open the run: {error}"),
        }
    };
    let id = run.id();
    let remote = RemoteRun {
        run,
        planner,
        dispatch: fleet.queue.clone(),
        store: fleet.store.clone(),
        pool: "default".to_owned(),
        lease: LEASE,
        listener: DurableStateListener::Queue(fleet.queue.clone()),
        events,
        stops,
        hand_over: false,
        messages: message_channel(),
    };
    let session = supervise::spawn("session", async move {
        let _reading =
            supervise::spawn("events", async move { while seen.recv().await.is_some() {} });
        let ended = reconcile::run(remote).await;
        drop((lock, stop));
        ended
    });
    (session, id)
}
