//! Stops of executions, pauses and leases of model calls by coordinators, and the shutdown of the worker.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use rollout_protocol::wire::control::ControlMessage;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::pull::{ExecutionTasks, propagate_panic};
use super::{ShutdownLevel, WorkerShared};

/// How long a worker that was killed, or cannot deliver its reports, tries to report its spool. The
/// worker that adopts its directory reports the rest.
const FINAL_REPORT_PAUSE: Duration = Duration::from_secs(5);

/// Executes commands of coordinators. Never ends.
pub(super) async fn handle_controls(shared: Arc<WorkerShared>) -> Infallible {
    let mut controls = shared.source.controls();
    loop {
        match controls.recv().await {
            Ok(ControlMessage::StopRun { run, level }) => shared.registry.stop_run(run, level),
            Ok(ControlMessage::StopExecution { exec, level, .. }) => {
                shared.registry.stop_execution(exec, level);
            }
            Ok(ControlMessage::ModelCalls { run, state }) => {
                // The coordinator waits to hear that every worker applies it.
                if shared.model_calls.of(run).set(state) {
                    shared.registry.note_change();
                }
            }
            Ok(ControlMessage::ModelLeases { run, table }) => {
                // The coordinator lends a part to others when it hears that it is not used here.
                if shared.model_calls.set_leases(run, &table, &shared.config.worker) {
                    shared.registry.note_change();
                }
            }
            // A hint only: missed commands are repeated in answer to heartbeats and reports.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return std::future::pending().await,
        }
    }
}

/// Applies shutdown requests from outside. Never ends.
pub(super) async fn forward_shutdown(
    shared: Arc<WorkerShared>,
    mut shutdown: watch::Receiver<ShutdownLevel>,
) -> Infallible {
    loop {
        let level = *shutdown.borrow_and_update();
        shared.shut_down(level);
        if shutdown.changed().await.is_err() {
            shared.shut_down(ShutdownLevel::Finish);
            return std::future::pending().await;
        }
    }
}

/// Waits until every execution that was begun is reported, or cannot be reported.
pub(super) async fn wait_for_executions(shared: &WorkerShared, mut tasks: ExecutionTasks) {
    let over = async {
        while let Some(ended) = tasks.next().await {
            propagate_panic(ended);
        }
        shared.registry.wait_until_empty().await;
    };
    tokio::select! {
        () = over => {}
        level = wait_until_unreportable(shared) => {
            if level < ShutdownLevel::Discard {
                tracing::warn!("{}", unreported_text(shared.registry.len()));
            }
        }
    }
}

/// Describes executions that ended without a report.
fn unreported_text(count: usize) -> String {
    let executions = if count == 1 { "execution" } else { "executions" };
    format!(
        "cannot report {count} {executions} now: results stored on this host are reported when the \
         run is resumed or a worker starts here; executions without a stored result run again"
    )
}

/// Waits until no execution has an environment any more and the remaining reports cannot be
/// delivered, or need not be. Returns the level of the shutdown.
async fn wait_until_unreportable(shared: &WorkerShared) -> ShutdownLevel {
    let mut shutdown = shared.shutdown.subscribe();
    loop {
        shared.slots.wait_until_idle().await;
        let cut_off = shared.is_cut_off();
        let level = *shutdown.borrow_and_update();
        if level == ShutdownLevel::Discard {
            return level;
        }
        tokio::select! {
            () = tokio::time::sleep(FINAL_REPORT_PAUSE) => {
                if level == ShutdownLevel::Kill || (cut_off && shared.is_cut_off()) {
                    return level;
                }
            }
            _ = shutdown.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreported_executions_are_counted_and_their_future_is_named() {
        let one = unreported_text(1);
        assert!(one.starts_with("cannot report 1 execution now: results stored"), "{one}");
        let two = unreported_text(2);
        assert!(two.starts_with("cannot report 2 executions now: "), "{two}");
        assert!(two.ends_with("executions without a stored result run again"), "{two}");
    }
}
