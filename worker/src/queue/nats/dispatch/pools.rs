//! Pools whose workers may report of the tries of a run.
//!
//! Workers report by a subject of their pool, which is all that their role may publish to: nobody
//! settles the work of a pool without its credential. Workers of an earlier version name no pool;
//! who may publish without one is up to the roles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rollout_protocol::id::{RunId, TryId};
use rollout_protocol::wire::delivery::PreviousPools;

use crate::queue::nats::names::{NO_POOL, Name};

/// The pools of every run that is read.
#[derive(Debug)]
pub(super) struct Pools {
    own: Name,
    runs: Mutex<HashMap<RunId, Arc<RunPools>>>,
}

/// The pools of a run.
#[derive(Debug)]
pub(super) struct RunPools {
    /// Of the present epoch.
    own: String,
    former: PreviousPools,
}

impl Pools {
    pub(super) fn new(own: Name) -> Self {
        Self { own, runs: Mutex::default() }
    }

    /// Sets the pools of a run's earlier epochs.
    pub(super) fn expect(&self, run: RunId, former: PreviousPools) {
        let pools = Arc::new(RunPools { own: self.own.to_string(), former });
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).insert(run, pools);
    }

    /// Those of a run.
    pub(super) fn of_run(&self, run: RunId) -> Arc<RunPools> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || RunPools { own: self.own.to_string(), former: PreviousPools::new() };
        Arc::clone(runs.entry(run).or_insert_with(|| Arc::new(new())))
    }
}

impl RunPools {
    /// Whether a report that came by a pool is of a worker that its try was offered to.
    pub(super) fn count(&self, by: &str, try_id: TryId) -> bool {
        let is_own = by == self.own;
        by == NO_POOL
            || match self.former.get(&try_id.epoch) {
                None => is_own,
                Some(Some(pool)) => by == pool,
                Some(None) => is_own || self.former.values().flatten().any(|known| by == known),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_only_by_the_pool_of_its_try() {
        let former =
            PreviousPools::from([(1, None), (2, Some("cpu".into())), (3, Some("gpu".into()))]);
        let pools = RunPools { own: "gpu".to_owned(), former };
        for (epoch, cpu, gpu) in
            [(1, true, true), (2, true, false), (3, false, true), (4, false, true)]
        {
            let try_id = TryId { epoch, n: 1 };
            assert_eq!(pools.count("cpu", try_id), cpu, "epoch {epoch}");
            assert_eq!(pools.count("gpu", try_id), gpu, "epoch {epoch}");
            assert!(pools.count(NO_POOL, try_id) && !pools.count("other", try_id));
        }
    }
}
