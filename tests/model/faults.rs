//! Faults and their recovery.

use rollout_protocol::record::LostReason;

use crate::broker::ServerLoss;
use crate::coordinator_actions::LOCK_STALE_AFTER;
use crate::lock::LockValue;
use crate::names;
use crate::simulation::Simulation;
use crate::worker::RunningExecution;

impl Simulation {
    /// Kills the worker's process with its environments; its directory stays.
    pub(crate) fn kill_worker(&mut self, w: usize) -> bool {
        if !self.workers[w].up {
            return false;
        }
        self.log(|| format!("w{w} dies"));
        let reason =
            if self.setup.embedded { LostReason::ProcessDied } else { LostReason::WorkerDied };
        let worker = &mut self.workers[w];
        worker.up = false;
        worker.paused = false;
        worker.offline_since = None;
        worker.claiming.clear();
        worker.start_reports.clear();
        worker.acks.clear();
        for RunningExecution { offer, exec, .. } in std::mem::take(&mut worker.running) {
            let report = worker.report(&offer, exec, names::lost_body(reason));
            worker.loss_reports.push(report);
            self.invariants.record_death(&exec);
        }
        for finished in worker.finished.extract_if(.., |finished| finished.bare) {
            self.invariants.record_death(&finished.report.exec);
        }
        for finished in &mut worker.finished {
            finished.token = None;
            finished.sent = None;
        }
        true
    }

    /// Starts a new process for the worker with the same directory.
    pub(crate) fn start_worker(&mut self, w: usize) -> bool {
        let worker = &mut self.workers[w];
        if worker.up || worker.destroyed {
            return false;
        }
        worker.up = true;
        worker.online = true;
        worker.stopped = false;
        worker.process += 1;
        worker.connections = 0;
        if !self.rules.dir_recovery {
            worker.finished.clear();
            worker.loss_reports.clear();
        }
        if self.setup.embedded {
            worker.connections = self.broker.connections;
        }
        self.log(|| format!("w{w} is started again"));
        true
    }

    /// Destroys the worker's host for good, with everything on it.
    pub(crate) fn destroy_worker(&mut self, w: usize) -> bool {
        let others = self.workers.iter().filter(|other| !other.destroyed).count();
        if others < 2 || self.workers[w].destroyed {
            return false;
        }
        self.kill_worker(w);
        let worker = &mut self.workers[w];
        worker.destroyed = true;
        worker.loss_reports.clear();
        for finished in std::mem::take(&mut worker.finished) {
            self.invariants.record_death(&finished.report.exec);
        }
        self.log(|| format!("w{w} and its host are lost"));
        true
    }

    pub(crate) fn set_worker_online(&mut self, w: usize, online: bool) -> bool {
        let worker = &mut self.workers[w];
        if worker.online == online || !worker.up {
            return false;
        }
        worker.online = online;
        if online {
            worker.connections = 0;
        } else {
            worker.acks.clear();
        }
        let broker_up = self.broker.up;
        let since = self.now;
        let worker = &mut self.workers[w];
        worker.offline_since = (!online || !broker_up).then_some(since);
        self.log(|| format!("w{w} is {}", if online { "connected" } else { "cut off" }));
        true
    }

    pub(crate) fn set_worker_paused(&mut self, w: usize, paused: bool) -> bool {
        let worker = &mut self.workers[w];
        if worker.paused == paused || !worker.up {
            return false;
        }
        worker.paused = paused;
        worker.connected = self.now;
        self.log(|| format!("w{w} is {}", if paused { "stopped" } else { "resumed" }));
        true
    }

    pub(crate) fn kill_server(&mut self) -> bool {
        if !self.broker.up || self.setup.embedded {
            return false;
        }
        self.broker.up = false;
        self.log(|| "the server dies".to_owned());
        for worker in self.workers.iter_mut().filter(|worker| worker.up && worker.online) {
            worker.offline_since = Some(self.now);
            worker.acks.clear();
        }
        true
    }

    pub(crate) fn restart_server(&mut self, loss: ServerLoss) -> bool {
        if self.broker.up {
            return false;
        }
        self.broker.restart(loss);
        if loss.acks > 0 {
            self.acks_lost = Some(self.now);
        }
        self.lock_written = self.now;
        for worker in self.workers.iter_mut().filter(|worker| worker.online) {
            worker.offline_since = None;
        }
        self.log(|| format!("the server is back: {loss:?}"));
        true
    }

    /// Kills the coordinator's process; `share` decides how much unsynced data survives.
    pub(crate) fn kill_coordinator(&mut self, c: usize, share: u16) -> bool {
        if c >= self.coordinators.len() {
            return false;
        }
        let coordinator = self.coordinators.remove(c);
        let owner = coordinator.owner;
        self.log(|| format!("c{owner} dies"));
        self.directories[coordinator.directory].crash(coordinator.epoch, share);
        if self.setup.embedded {
            for w in 0..self.workers.len() {
                self.kill_worker(w);
            }
        }
        for worker in &mut self.workers {
            worker.claiming.iter_mut().for_each(|held| held.claim_received = false);
        }
        true
    }

    pub(crate) fn set_coordinator_paused(&mut self, c: usize, paused: bool) -> bool {
        let Some(coordinator) = self.coordinators.get_mut(c) else { return false };
        if coordinator.paused == paused || self.setup.embedded {
            return false;
        }
        coordinator.paused = paused;
        let owner = coordinator.owner;
        self.log(|| format!("c{owner} is {}", if paused { "stopped" } else { "resumed" }));
        for worker in &mut self.workers {
            worker.claiming.iter_mut().for_each(|held| held.claim_received = false);
        }
        true
    }

    pub(crate) fn set_store_down(&mut self, down: bool) -> bool {
        if self.store.down == down {
            return false;
        }
        self.store.down = down;
        self.log(|| format!("the store is {}", if down { "out of reach" } else { "back" }));
        true
    }

    /// Makes the report reader fall far behind, or catch up.
    pub(crate) fn set_coordinator_lag(&mut self, c: usize, lags: bool) -> bool {
        let Some(coordinator) = self.coordinators.get_mut(c) else { return false };
        if coordinator.is_lagging == lags || self.setup.embedded {
            return false;
        }
        coordinator.is_lagging = lags;
        let owner = coordinator.owner;
        self.log(|| format!("c{owner} {}", if lags { "falls behind" } else { "catches up" }));
        true
    }

    /// Copies the run directory to another host.
    pub(crate) fn copy_directory(&mut self) -> bool {
        let Some(c) = self.owner() else { return false };
        if self.setup.embedded || self.directories.len() > 2 {
            return false;
        }
        let copy = self.directories[self.coordinators[c].directory].copy();
        self.directories.push(copy);
        self.log(|| "the run directory is copied".to_owned());
        true
    }

    /// Whether a process on this host may now own the run with this directory.
    fn may_own(&self, host: usize, directory: usize) -> bool {
        let copy = &self.directories[directory];
        let Some((_, lock)) = &self.broker.lock else {
            // Without a lock, only the newest directory is certain to be complete.
            return directory == self.invariants.directory && self.owner().is_none();
        };
        // Only the process's own host can know that it is dead.
        let dead = lock.host == host && self.coordinators.iter().all(|c| c.owner != lock.owner);
        let locked = lock.host == host && directory == self.invariants.directory;
        if !dead && (locked || self.now < self.lock_written + LOCK_STALE_AFTER) {
            return false;
        }
        let contained = lock.head.is_none_or(|head| copy.contains(&head));
        contained || !self.rules.head_in_lock
    }

    /// Starts a process that tries to own the run, on a host with a directory.
    pub(crate) fn start_coordinator(&mut self, host: usize, directory: usize) -> bool {
        if directory >= self.directories.len() || self.coordinators.len() > 1 {
            return false;
        }
        let epoch = self.directories[directory].epoch() + 1;
        if self.setup.embedded {
            if !self.coordinators.is_empty() {
                return false;
            }
            return self.start_embedded(directory, epoch);
        }
        if !self.broker.up || !self.may_own(host, directory) {
            return false;
        }
        let lock = self.broker.lock.clone();
        let (revision, held) = (lock.as_ref().map(|(at, _)| *at), lock.map(|(_, lock)| lock));
        let epoch = epoch.max(held.as_ref().map_or(0, |lock| lock.epoch) + 1);
        let head = held.and_then(|lock| lock.head).or_else(|| self.directories[directory].head());
        let owner = self.owners + 1;
        self.broker.write_lock(LockValue { owner, host, epoch, head }, revision);
        self.lock_written = self.now;
        self.log(|| format!("c{owner} owns the run, on host {host} with directory {directory}"));
        self.begin_run_session(host, directory, epoch);
        true
    }

    /// Starts worker, queue and coordinator together. Losses of the previous process are reported
    /// first, so that nothing of it still counts as running.
    fn start_embedded(&mut self, directory: usize, epoch: u32) -> bool {
        if self.owners > 0 {
            self.broker.restart(ServerLoss { all: true, ..ServerLoss::default() });
        }
        for w in 0..self.workers.len() {
            self.start_worker(w);
            self.workers[w].connections = self.broker.connections;
        }
        self.begin_run_session(0, directory, epoch);
        let c = self.coordinators.len() - 1;
        for w in 0..self.workers.len() {
            for i in 0..self.workers[w].finished.len() {
                self.store_marker(w, i);
                self.publish_result(w, i, true);
            }
            while self.report_loss(w) {}
        }
        while self.read_report(c) {}
        self.handle(c, rollout_engine::core::CoreInput::PreviousExecutorsDead);
        true
    }

    /// Changes the item's spec; the change applies from the next run session.
    pub(crate) fn respecify(&mut self, n: usize) -> bool {
        let settled = self.invariants.settled.contains_key(&names::item(n));
        let idle = self.coordinators.is_empty();
        if settled || !idle {
            return false;
        }
        self.specs[n] += 1;
        self.log(|| format!("item {n} gets another spec"));
        true
    }
}
