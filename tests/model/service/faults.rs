//! Random faults of a fleet.

use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rollout_protocol::wire::position::Incarnation;
use rollout_queue::embedded::model::BrokerModel;

use super::fleet::Fleet;

/// Most faults of a schedule.
const MAX_FAULTS: usize = 6;

/// Faults that may occur.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FaultKinds {
    /// Workers die and lose their connection.
    pub(crate) workers: bool,
    /// The server restarts and loses data; the store is unreachable.
    pub(crate) server: bool,
    /// Coordinators die.
    pub(crate) coordinators: bool,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    WorkerDeath,
    WorkerOutage,
    ServerRestart,
    ServerLoss,
    ServerWipe,
    StoreOutage,
    CoordinatorDeath,
}

impl Fault {
    /// Whether an execution may be repeated because of it. No other fault ends or hides one.
    fn may_repeat_work(self) -> bool {
        match self {
            Self::WorkerDeath | Self::WorkerOutage | Self::ServerLoss | Self::ServerWipe => true,
            Self::ServerRestart | Self::StoreOutage | Self::CoordinatorDeath => false,
        }
    }
}

impl FaultKinds {
    fn choices(self) -> Vec<Fault> {
        let mut choices = Vec::new();
        if self.workers {
            choices.extend([Fault::WorkerDeath, Fault::WorkerOutage]);
        }
        if self.server {
            choices.extend([Fault::ServerRestart, Fault::ServerLoss]);
            choices.extend([Fault::ServerWipe, Fault::StoreOutage]);
        }
        if self.coordinators {
            choices.push(Fault::CoordinatorDeath);
        }
        choices
    }
}

/// A random time: mostly short, sometimes longer than a lease.
fn pause(random: &mut StdRng) -> Duration {
    let longest = [200, 5_000, 100_000][random.random_range(0..3)];
    Duration::from_millis(random.random_range(1..=longest))
}

/// Injects faults until the run is complete or there were enough. They may overlap.
pub(crate) async fn inject_faults(fleet: &mut Fleet, random: &mut StdRng, kinds: FaultKinds) {
    let choices = kinds.choices();
    for _ in 0..random.random_range(1..=MAX_FAULTS) {
        tokio::time::sleep(pause(random)).await;
        if fleet.log.settled() == fleet.items as usize {
            return;
        }
        let fault = choices[random.random_range(0..choices.len())];
        inject(fleet, random, fault).await;
        fleet.excused_runs += usize::from(fault.may_repeat_work());
    }
}

async fn inject(fleet: &mut Fleet, random: &mut StdRng, fault: Fault) {
    let at = random.random_range(0..fleet.workers.len());
    let lasting = pause(random);
    let is_short = random.random_bool(0.5);
    match fault {
        Fault::WorkerDeath => {
            fleet.kill_worker(at);
            if is_short {
                tokio::time::sleep(lasting).await;
                fleet.replace_worker(at, random.random_bool(0.5));
            }
        }
        Fault::WorkerOutage => {
            fleet.workers[at].source.disconnect();
            if is_short {
                tokio::time::sleep(lasting).await;
                fleet.workers[at].source.reconnect();
            }
        }
        Fault::ServerRestart => fleet.fail_server(BrokerModel::restart),
        Fault::ServerLoss => {
            let (reports, acks, work) =
                (random.random_range(0..3), random.random_range(0..3), random.random_range(0..3));
            fleet.fail_server(|model| {
                model.lose_report_tail(reports);
                model.lose_acks(acks);
                model.lose_work_tail(work);
                model.restart();
            });
        }
        Fault::ServerWipe => {
            let incarnation = Incarnation(random.random());
            fleet.fail_server(|model| model.wipe(incarnation));
        }
        Fault::StoreOutage => {
            fleet.store.set_down(true);
            tokio::time::sleep(lasting).await;
            fleet.store.set_down(false);
        }
        Fault::CoordinatorDeath => {
            fleet.kill_session();
            if is_short {
                tokio::time::sleep(lasting).await;
                fleet.ensure_session().await;
            }
        }
    }
}
