//! Heartbeats: executions that live, and executions first heard of there.

use rollout_protocol::id::WorkerId;
use rollout_protocol::wire::heartbeat::{ActiveExecution, ReceivedHeartbeat};

use super::Core;
use super::handle::CoreOutput;
use super::input::InputTime;
use super::record::{JournalRecord, SeenExecution};
use super::worker_liveness::ExecutionLastSeen;

impl Core {
    /// Takes in the last heartbeat of every worker.
    pub(super) fn on_heartbeats(
        &mut self,
        now: InputTime,
        heartbeats: Vec<ReceivedHeartbeat>,
        out: &mut impl CoreOutput,
    ) {
        let Some(remote) = &mut self.remote else { return };
        remote.record_poll(now.monotonic_ms);
        self.return_parked(now, &heartbeats, out);
        for ReceivedHeartbeat { heartbeat, age } in heartbeats {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            if let Some(remote) = &mut self.remote {
                remote.record_sign_of_life(
                    now.monotonic_ms,
                    &heartbeat.worker,
                    age,
                    heartbeat.gone,
                );
                remote.record_offline_limit(&heartbeat.worker, heartbeat.max_offline_sec);
            }
            self.on_heartbeat(now, &heartbeat.worker, age, &heartbeat.executions, out);
        }
        self.prune_old_executions(now);
        self.answer_deferred_claims(now, out);
        self.reclaim(now, out);
    }

    fn on_heartbeat(
        &mut self,
        now: InputTime,
        worker: &WorkerId,
        age: u64,
        executions: &[ActiveExecution],
        out: &mut impl CoreOutput,
    ) {
        let Some(remote) = &mut self.remote else { return };
        // By the local clock: the queue's clock may have been set.
        let said = now.monotonic_ms.saturating_sub(age);
        let at = remote.workers.get(worker).map_or(said, |before| said.max(*before));
        remote.workers.insert(worker.clone(), at);
        // The executions in a silent worker's last heartbeat prove nothing now.
        if now.monotonic_ms.saturating_sub(at) >= remote.timeouts.silence {
            return;
        }
        let (mut heard, run) = (Vec::new(), self.settings.run);
        for running in executions.iter().filter(|running| running.run == run) {
            if let Some(execution) = self.on_shown_execution(now, at, running, out) {
                heard.push(execution);
            }
        }
        if !heard.is_empty() {
            let worker = worker.clone();
            self.commit(now, JournalRecord::Heard { worker, executions: heard }, out);
        }
    }

    /// A live worker shows an execution. Returned when it must be journalled.
    fn on_shown_execution(
        &mut self,
        now: InputTime,
        at: u64,
        running: &ActiveExecution,
        out: &mut impl CoreOutput,
    ) -> Option<SeenExecution> {
        let ActiveExecution { item, try_id, exec, claiming, .. } = *running;
        let remote = self.remote.as_mut()?;
        let poll = remote.poll;
        remote.shown.insert(exec, ExecutionLastSeen { at, poll });
        if claiming {
            remote.awaiting_claim.insert(item, at);
            return None;
        }
        let row = self.items.get(&item).filter(|row| row.current.n > 0)?;
        let known = row.executions.iter().find(|known| known.exec == exec);
        if known.is_some_and(|known| !known.may_run()) {
            return None;
        }
        if let Some(unwanted) = self.stop_urgency(row, try_id) {
            let is_over = row.is_settled() || try_id < row.floor;
            let heard =
                (known.is_none() && !is_over).then_some(SeenExecution { item, try_id, exec });
            self.send_stop(now, exec, unwanted, out);
            return heard;
        }
        known.is_none().then_some(SeenExecution { item, try_id, exec })
    }

    /// Keeps the memory for single executions in proportion to the number that runs.
    fn prune_old_executions(&mut self, now: InputTime) {
        let Some(remote) = &mut self.remote else { return };
        let (now, lease, round) = (now.monotonic_ms, remote.timeouts.lease, remote.poll);
        let recent = |at: u64| at.saturating_add(lease) > now;
        remote.shown.retain(|_, shown| shown.poll == round || recent(shown.at));
        remote.awaiting_claim.retain(|_, at| recent(*at));
        remote.forget_signs(now);
        let shown = &remote.shown;
        remote.unwanted.retain(|exec, due| shown.contains_key(exec) || recent(*due));
    }
}
