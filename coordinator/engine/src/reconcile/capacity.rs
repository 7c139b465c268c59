//! Pool capacity: how much is offered ahead of the workers, and which items no worker could ever
//! run.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::offer::SizeClass;

use crate::WorkerRequirements;

/// Minimum and maximum number of unstarted offers of a class: enough that a worker never idles for
/// one turn of the loop, few enough that runs and classes share a pool.
const OFFERS_AHEAD: (usize, usize) = (16, 1024);

/// Time from the end of a trial to the next offer's arrival at a worker, estimated generously.
const TURNAROUND: Duration = Duration::from_millis(50);

/// Capacity of a pool's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolCapacity {
    /// Offers of each class that may wait unstarted.
    pub offer_limits: BTreeMap<SizeClass, usize>,
    /// Lanes that no worker could ever run, and why.
    pub unplaceable: BTreeMap<u16, String>,
    /// Workers that take work of this run.
    pub workers: usize,
}

impl PoolCapacity {
    /// The assumption before the first heartbeats: the minimum of offers, so that a new run does
    /// not flood a pool, and no lane is unplaceable.
    pub fn assumed(lanes: &[WorkerRequirements]) -> Self {
        Self { unplaceable: BTreeMap::new(), ..estimate(lanes, &[].iter(), 0.0) }
    }
}

/// Estimates the capacity from heartbeats of living workers of the run's pool and store. `rate` is
/// trials per second.
pub(super) fn estimate<'a>(
    lanes: &[WorkerRequirements],
    workers: &(impl Iterator<Item = &'a Heartbeat> + Clone),
    rate: f64,
) -> PoolCapacity {
    let ahead = (rate * 2.0 * TURNAROUND.as_secs_f64()) as usize;
    let mut classes: Vec<SizeClass> = lanes.iter().map(|needs| needs.class).collect();
    classes.push(SizeClass::SOLO);
    classes.sort_unstable();
    classes.dedup();
    let free =
        |class| workers.clone().map(|worker| free_slots_for_class(worker, class)).sum::<usize>();
    let room = classes
        .into_iter()
        .map(|class| (class, (free(class) + ahead).clamp(OFFERS_AHEAD.0, OFFERS_AHEAD.1)));
    let unplaceable = lanes.iter().enumerate().filter_map(|(lane, needs)| {
        let reason = needs.unplaceable(workers.clone())?;
        Some((u16::try_from(lane).ok()?, reason.to_string()))
    });
    PoolCapacity {
        offer_limits: room.collect(),
        unplaceable: unplaceable.collect(),
        workers: workers.clone().count(),
    }
}

/// Free slots of a worker that fit a class.
fn free_slots_for_class(worker: &Heartbeat, class: SizeClass) -> usize {
    if worker.draining {
        return 0;
    }
    let cpus = worker.budget.cpus.map(u64::from);
    let memory = worker.budget.memory_mb.map(|mib| mib / 2048);
    let shares = cpus.into_iter().chain(memory).min();
    let idle = worker.free == worker.slots;
    FreeCapacity { slots: worker.free as usize, shares, idle }.count_for(class)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rollout_protocol::spec::environment::ProviderKind;
    use rollout_protocol::wire::heartbeat::ResourceBudget;

    use super::*;

    fn worker(slots: u32, free: u32, cpus: Option<u32>) -> Heartbeat {
        Heartbeat {
            worker: "w".parse().expect("valid"),
            host: "h".into(),
            version: "0".into(),
            store: "s".into(),
            pool: "default".into(),
            slots,
            free,
            budget: ResourceBudget { cpus, ..ResourceBudget::default() },
            providers: [(ProviderKind::Process, Default::default())].into(),
            variables: BTreeSet::new(),
            max_offline_sec: None,
            draining: false,
            low_disk: false,
            disk_fault: None,
            gone: false,
            executions: Vec::new(),
            model_calls: Vec::new(),
            model_leases: Vec::new(),
        }
    }

    fn lane(class: u8, cpus: u32) -> WorkerRequirements {
        let provider = ProviderKind::Process;
        let class = SizeClass(class);
        WorkerRequirements {
            class,
            cpus,
            memory_mb: 1024,
            provider,
            second_provider: None,
            variables: BTreeSet::new(),
        }
    }

    #[test]
    fn capacity_follows_worker_slots_and_rate() {
        let lanes = [lane(0, 1), lane(1, 4)];
        let workers = [worker(100, 40, None), worker(100, 100, Some(8))];
        let capacity = estimate(&lanes, &workers.iter(), 0.0);
        assert_eq!(capacity.offer_limits[&SizeClass(0)], 48, "40 slots and 8 shares");
        assert_eq!(capacity.offer_limits[&SizeClass(1)], 42, "40 slots and 2 of 4 shares");
        assert_eq!(capacity.workers, 2);
        let busy = estimate(&lanes, &workers.iter(), 5000.0);
        assert_eq!(busy.offer_limits[&SizeClass(0)], 548);
        assert_eq!(estimate(&lanes, &[].iter(), 1e9).offer_limits[&SizeClass(0)], OFFERS_AHEAD.1);
        let unseen = PoolCapacity::assumed(&lanes);
        assert_eq!(
            (unseen.offer_limits[&SizeClass(1)], unseen.unplaceable.len()),
            (OFFERS_AHEAD.0, 0)
        );
    }

    #[test]
    fn lane_too_large_for_workers_is_unplaceable_with_reason() {
        let lanes = [lane(0, 1), lane(3, 64)];
        let capacity = estimate(&lanes, &[worker(1, 1, Some(4))].iter(), 0.0);
        assert_eq!(capacity.unplaceable.keys().collect::<Vec<_>>(), [&1]);
        assert!(capacity.unplaceable[&1].contains("64 cpus"), "{capacity:?}");
    }
}
