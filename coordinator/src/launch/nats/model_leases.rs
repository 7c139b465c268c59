//! Leases of a run's model servers, told to its workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::backoff::OutageLog;
use rollout_base::supervise::{self, Task};
use rollout_engine::model_leases::{ModelLeases, WorkerUse};
use rollout_protocol::Timestamp;
use rollout_protocol::id::{RunId, WorkerId};
use rollout_protocol::limits;
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_protocol::wire::control::ControlMessage;
use rollout_protocol::wire::heartbeat::ReceivedHeartbeat;
use rollout_queue::traits::Dispatch;
use tokio::time::{Instant, sleep};

/// Time between two looks at the workers, and while some have not confirmed their leases.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const CONFIRM_INTERVAL: Duration = Duration::from_millis(200);

/// Time between two messages of the same leases, which may be lost, and when every worker has them.
const RESEND_INTERVAL: Duration = Duration::from_secs(2);
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// How long a worker is first where there is too little for all.
const TURN: Duration = Duration::from_secs(10);

/// Divides the limits of the model servers among the workers of a run, until the task is dropped;
/// `None` if there are no limits.
pub(in crate::launch) fn lease_to_workers(
    run: RunId,
    gateway: Option<&GatewaySpec>,
    dispatch: Arc<dyn Dispatch>,
    lease: Duration,
) -> Option<Task<()>> {
    // Later sessions have greater serials, unless the clock was set back.
    let first_serial = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default();
    let leases = ModelLeases::new(gateway?, first_serial)?;
    let silence = limits::worker_silence(lease);
    Some(supervise::spawn("model leases", tell_workers(run, leases, dispatch, silence)))
}

async fn tell_workers(
    run: RunId,
    mut leases: ModelLeases,
    dispatch: Arc<dyn Dispatch>,
    silence: Duration,
) {
    let outage = OutageLog::new("telling workers their parts of model servers");
    let (mut told_at, mut turn_at) = (None::<Instant>, Instant::now());
    loop {
        let mut wait = LOOK_INTERVAL;
        match dispatch.heartbeats().await {
            Ok(heartbeats) => {
                let seen = seen(run, &heartbeats, silence);
                let is_changed = leases.update(&seen);
                let is_unconfirmed = leases.is_unconfirmed(&seen);
                let interval = if is_unconfirmed { RESEND_INTERVAL } else { REPEAT_INTERVAL };
                if is_changed || told_at.is_none_or(|at| at.elapsed() >= interval) {
                    let message = ControlMessage::ModelLeases { run, table: leases.table() };
                    match dispatch.control(message).await {
                        Ok(()) => told_at = Some(Instant::now()),
                        Err(error) => outage.mark_failed(&error),
                    }
                }
                if is_unconfirmed {
                    wait = CONFIRM_INTERVAL;
                }
                outage.mark_recovered();
            }
            Err(error) => outage.mark_failed(&error),
        }
        if turn_at.elapsed() >= TURN {
            turn_at = Instant::now();
            leases.next_turn();
        }
        sleep(wait).await;
    }
}

/// The heartbeats of living workers. A worker without a connection counts as living for as long as
/// it may work offline: it goes on with its leases.
fn seen(
    run: RunId,
    heartbeats: &[ReceivedHeartbeat],
    silence: Duration,
) -> BTreeMap<WorkerId, WorkerUse> {
    let is_alive = |received: &&ReceivedHeartbeat| {
        let offline = received.heartbeat.max_offline_sec.map(Duration::from_secs);
        !received.heartbeat.gone && received.age <= silence.max(offline.unwrap_or_default())
    };
    let found = |ReceivedHeartbeat { heartbeat, .. }: &ReceivedHeartbeat| {
        let used = heartbeat.model_leases.iter().find(|used| used.run == run);
        let found = WorkerUse {
            takes_part: heartbeat.executions.iter().any(|execution| execution.run == run),
            serial: used.map_or(0, |used| used.serial),
            servers: used.map(|used| used.servers.clone()).unwrap_or_default(),
        };
        (heartbeat.worker.clone(), found)
    };
    heartbeats.iter().filter(is_alive).map(found).collect()
}
