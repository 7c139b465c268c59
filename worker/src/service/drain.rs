//! Stopping: on command of a coordinator, and of whoever runs the worker.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use rollout_protocol::wire::control::{Control, StopLevel};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::pull::{Tasks, expect_no_defect};
use super::{Shared, Shutdown};

/// How long a killed worker tries to report what it spooled; the next one adopts the rest.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Does what coordinators command, for ever.
pub(super) async fn obey(shared: Arc<Shared>) -> Infallible {
    let mut controls = shared.source.controls();
    loop {
        match controls.recv().await {
            Ok(Control::StopRun { run, level }) => shared.registry.stop_run(run, level),
            Ok(Control::StopExecution { exec, level, .. }) => {
                shared.registry.stop_execution(exec, level);
            }
            // A hint only: what was missed is said again in answer to hellos and reports.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return std::future::pending().await,
        }
    }
}

/// Passes a shutdown on to everything that runs, for ever.
pub(super) async fn shut_down(
    shared: Arc<Shared>,
    mut shutdown: watch::Receiver<Shutdown>,
) -> Infallible {
    loop {
        let level = *shutdown.borrow_and_update();
        shared.closing.send_replace(level > Shutdown::No);
        match level {
            Shutdown::No | Shutdown::Finish => {}
            Shutdown::Drain => shared.registry.stop_all(StopLevel::Drain),
            Shutdown::Kill => shared.registry.stop_all(StopLevel::Kill),
        }
        if shutdown.changed().await.is_err() {
            shared.closing.send_replace(true);
            return std::future::pending().await;
        }
    }
}

/// Waits until everything that was begun is over: reported, or after a kill given up.
pub(super) async fn settle(
    shared: &Shared,
    mut tasks: Tasks,
    mut shutdown: watch::Receiver<Shutdown>,
) {
    let over = async {
        while let Some(ended) = tasks.next().await {
            expect_no_defect(ended);
        }
        shared.registry.emptied().await;
    };
    let given_up = async {
        if shutdown.wait_for(|level| *level >= Shutdown::Kill).await.is_err() {
            return std::future::pending().await;
        }
        let every_slot = shared.slots.acquire_many(shared.config.slots).await;
        drop(every_slot.expect("slots are never closed"));
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = over => {}
        () = given_up => tracing::warn!("{} executions are not reported", shared.registry.len()),
    }
}
