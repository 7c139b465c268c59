//! Requirements of items: properties that a worker must have to run them. Items with equal
//! requirements share a lane, so the engine decides once per lane whether some worker could ever
//! run its items.

use std::collections::BTreeSet;
use std::fmt;

use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::heartbeat::Heartbeat;
use rollout_protocol::wire::offer::SizeClass;

/// A trial's requirements of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerRequirements {
    /// Size class.
    pub class: SizeClass,
    /// Processors of its environment.
    pub cpus: u32,
    /// Memory of its environment, MiB.
    pub memory_mb: u64,
    /// Provider of its environment.
    pub provider: ProviderKind,
    /// Provider of its second environment, if it has one.
    pub second_provider: Option<ProviderKind>,
    /// Variables that the worker has to export to trials.
    pub variables: BTreeSet<String>,
}

/// Why a worker cannot run a trial.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum UnfitReason {
    /// Too few processors.
    #[error(
        "needs {needed} cpus (size classes hold 1, 4, 16, 64, …), the largest worker has {has}"
    )]
    Cpus {
        /// Required.
        needed: u32,
        /// Available.
        has: u64,
    },
    /// Too little memory.
    #[error("needs {needed} MiB of memory, the largest worker has {has}")]
    Memory {
        /// Required.
        needed: u64,
        /// Available.
        has: u64,
    },
    /// No such provider.
    #[error("needs the provider `{0}`, which no worker of the pool has")]
    Provider(ProviderKind),
    /// A variable that is not exported.
    #[error("needs the variable {0}, which no worker of the pool exports to trials (--trial-env)")]
    Variable(String),
}

impl WorkerRequirements {
    /// Whether the worker could run it if it were idle.
    ///
    /// # Errors
    /// The first reason why it could not.
    pub fn check_fit(&self, worker: &Heartbeat) -> Result<(), UnfitReason> {
        let capacities = self.providers().map(|kind| worker.providers.get(&kind).ok_or(kind));
        let capacities =
            capacities.collect::<Result<Vec<_>, _>>().map_err(UnfitReason::Provider)?;
        if let Some(name) = self.variables.iter().find(|name| !worker.variables.contains(*name)) {
            return Err(UnfitReason::Variable(name.clone()));
        }
        // A spec that fits a class may need all shares of the class, so a declared budget must hold
        // them.
        let (budget, shares) = (worker.budget, self.class.shares());
        let cpus = capacities.iter().fold(budget.cpus, |has, capacity| least(has, capacity.cpus));
        let memory = capacities.iter().map(|capacity| capacity.memory_mb);
        let memory_mb = memory.fold(budget.memory_mb, least);
        if let Some(has) = cpus.map(u64::from)
            && (u64::from(self.cpus) > has || budget.cpus.is_some_and(|n| u64::from(n) < shares))
        {
            let of_class = u32::try_from(shares).unwrap_or(u32::MAX);
            let needed = if u64::from(self.cpus) > has { self.cpus } else { of_class };
            return Err(UnfitReason::Cpus { needed, has });
        }
        if let Some(has) = memory_mb
            && (self.memory_mb > has || budget.memory_mb.is_some_and(|n| n / 2048 < shares))
        {
            let needed = if self.memory_mb > has { self.memory_mb } else { shares * 2048 };
            return Err(UnfitReason::Memory { needed, has });
        }
        Ok(())
    }

    /// Providers of its environments.
    fn providers(&self) -> impl Iterator<Item = ProviderKind> {
        [self.provider].into_iter().chain(self.second_provider)
    }

    /// Why none of these workers could ever run it; `None` when one could, or when there are no
    /// workers: then it waits for the first.
    pub fn unplaceable<'a>(
        &self,
        workers: impl Iterator<Item = &'a Heartbeat>,
    ) -> Option<UnfitReason> {
        let mut closest: Option<UnfitReason> = None;
        for worker in workers {
            let reason = self.check_fit(worker).err()?;
            // Reasons are ordered: a worker that is only too small is closer than one that lacks
            // the provider. Of two that are too small, the larger one is closer.
            closest = Some(closest.map_or(reason.clone(), |known| known.closer(reason)));
        }
        closest
    }
}

impl UnfitReason {
    fn closer(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Cpus { has: a, .. }, Self::Cpus { has: b, .. })
            | (Self::Memory { has: a, .. }, Self::Memory { has: b, .. }) => {
                if a >= b {
                    self
                } else {
                    other
                }
            }
            _ => self.min(other),
        }
    }
}

fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl fmt::Display for WorkerRequirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cpus, {} MiB, {}", self.cpus, self.memory_mb, self.provider)?;
        self.second_provider.map_or(Ok(()), |also| write!(f, " and {also}"))
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::resources::Resources;
    use rollout_protocol::wire::heartbeat::{EnvironmentCapacity, ResourceBudget};

    use super::*;

    fn needs(cpus: u32, memory_mb: u64) -> WorkerRequirements {
        let class =
            SizeClass::for_resources(&Resources { cpus, memory_mb, ..Resources::default() });
        let provider = ProviderKind::Docker;
        WorkerRequirements {
            class,
            cpus,
            memory_mb,
            provider,
            second_provider: None,
            variables: BTreeSet::new(),
        }
    }

    fn worker(capacity: Option<u32>, budget: Option<u32>) -> Heartbeat {
        Heartbeat {
            worker: "w".parse().expect("valid"),
            host: "h".into(),
            version: "0".into(),
            store: "s".into(),
            pool: "default".into(),
            slots: 1,
            free: 1,
            budget: ResourceBudget { cpus: budget, ..ResourceBudget::default() },
            providers: [(
                ProviderKind::Docker,
                EnvironmentCapacity { cpus: capacity, memory_mb: None },
            )]
            .into(),
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

    #[test]
    fn worker_capacity_not_declared_is_unlimited() {
        assert_eq!(needs(64, 1 << 20).check_fit(&worker(None, None)), Ok(()));
        let engine = needs(64, 1024).check_fit(&worker(Some(2), None));
        assert_eq!(engine, Err(UnfitReason::Cpus { needed: 64, has: 2 }));
        assert_eq!(needs(2, 1024).check_fit(&worker(Some(2), None)), Ok(()));
        let declared = needs(3, 1024).check_fit(&worker(Some(8), Some(3)));
        assert_eq!(declared, Err(UnfitReason::Cpus { needed: 4, has: 3 }), "its class may need 4");
    }

    #[test]
    fn unplaceable_reason_comes_from_closest_worker() {
        let workers = [worker(Some(2), None), worker(Some(8), None)];
        let reason = needs(64, 1024).unplaceable(workers.iter()).expect("too large");
        assert_eq!(reason, UnfitReason::Cpus { needed: 64, has: 8 });
        assert_eq!(needs(8, 1024).unplaceable(workers.iter()), None);
        assert_eq!(needs(64, 1024).unplaceable([].iter()), None, "it waits for the first worker");
        let mut other = needs(1, 1024);
        other.provider = ProviderKind::Process;
        let reason = other.unplaceable(workers.iter());
        assert_eq!(reason, Some(UnfitReason::Provider(ProviderKind::Process)));
        other = needs(1, 1024);
        other.second_provider = Some(ProviderKind::Process);
        let reason = other.unplaceable(workers.iter());
        assert_eq!(reason, Some(UnfitReason::Provider(ProviderKind::Process)));
        let mut both = worker(Some(8), None);
        let process = EnvironmentCapacity { cpus: None, memory_mb: Some(512) };
        both.providers.insert(ProviderKind::Process, process);
        assert_eq!(other.check_fit(&both), Err(UnfitReason::Memory { needed: 1024, has: 512 }));
        both.providers.insert(ProviderKind::Process, EnvironmentCapacity::default());
        assert_eq!(other.check_fit(&both), Ok(()));
        other = needs(1, 1024);
        other.variables.insert("KEY".into());
        let reason = other.unplaceable(workers.iter());
        assert_eq!(reason, Some(UnfitReason::Variable("KEY".into())));
    }
}
