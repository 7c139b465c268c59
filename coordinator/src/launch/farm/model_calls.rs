//! Messages to workers about the model calls of a farm's samples.

use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise::{self, Task};
use rollout_protocol::farm::FarmModelCalls;
use rollout_protocol::id::RunId;
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_protocol::wire::model_calls::ModelCallState;
use rollout_queue::traits::{Dispatch, QueueError};
use tokio::time::{Instant, sleep};

use crate::workloads::farm::{FarmCalls, SeenCalls};

/// Time between two messages of the same state: they may be lost, and new workers need them.
const REPEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Time between two looks at the counts of workers.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two looks while workers have not confirmed the state.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(100);

/// Age of a heartbeat from which its worker counts as dead.
const SILENCE: Duration = Duration::from_secs(60);

/// Tells workers the state of a farm's model calls, and shows their counts, until it is dropped.
pub(super) fn tell_workers(run: RunId, dispatch: Arc<dyn Dispatch>, calls: FarmCalls) -> Task<()> {
    supervise::spawn("farm model calls", async move {
        let mut wanted = calls.wanted();
        let mut told: Option<(ModelCallState, Instant)> = None;
        loop {
            let Some(state) = *wanted.borrow_and_update() else {
                match wanted.changed().await {
                    Ok(()) => continue,
                    // The run has ended.
                    Err(_) => return,
                }
            };
            let is_due = |(former, at): (ModelCallState, Instant)| {
                former != state || at.elapsed() >= REPEAT_INTERVAL
            };
            if told.is_none_or(is_due) {
                told = Some((state, Instant::now()));
                let message = ControlMessage::ModelCalls { run, state };
                log_failure(dispatch.control(message).await);
            }
            let mut wait = LOOK_INTERVAL;
            if let Some(heartbeats) = log_failure(dispatch.heartbeats().await) {
                let seen = count(run, state, &heartbeats);
                if seen.unconfirmed_workers > 0 {
                    wait = CONFIRM_INTERVAL;
                }
                calls.show(SeenCalls { told: Some(state), calls: seen });
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = sleep(wait) => {}
            }
        }
    })
}

fn log_failure<T>(result: Result<T, QueueError>) -> Option<T> {
    result.inspect_err(|error| tracing::debug!("cannot reach the workers of a farm: {error}")).ok()
}

/// The model calls of a run at the workers that have executions of it.
fn count(run: RunId, state: ModelCallState, heartbeats: &[ReceivedHeartbeat]) -> FarmModelCalls {
    let mut calls = FarmModelCalls::default();
    for ReceivedHeartbeat { heartbeat, age } in heartbeats {
        let takes_part = heartbeat.executions.iter().any(|execution| execution.run == run);
        if !takes_part || heartbeat.gone || *age > SILENCE {
            continue;
        }
        let counts = heartbeat.model_calls.iter().find(|counts| counts.run == run);
        if let Some(counts) = counts {
            calls.in_flight += u64::from(counts.in_flight);
            calls.held += u64::from(counts.held);
        }
        let is_confirmed = counts.is_some_and(|counts| counts.state == state);
        calls.unconfirmed_workers += u64::from(!is_confirmed);
    }
    calls
}
