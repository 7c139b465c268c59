//! Pools whose workers may report tries of a run.
//!
//! Workers report on a subject of their pool, the only one that their role may publish to: settling
//! the work of a pool requires its credentials. Workers of an earlier version name no pool; the
//! roles decide who may publish without one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rollout_protocol::id::{RunId, TryId};
use rollout_protocol::wire::delivery::PreviousPools;

use crate::nats::names::{NO_POOL, NatsName};

/// The pools of every run that is read.
#[derive(Debug)]
pub(super) struct ExpectedPools {
    own: NatsName,
    runs: Mutex<HashMap<RunId, Arc<ExpectedRunPools>>>,
}

/// The pools of a run.
#[derive(Debug)]
pub(super) struct ExpectedRunPools {
    /// The pool of the current epoch.
    own: String,
    former: PreviousPools,
}

impl ExpectedPools {
    pub(super) fn new(own: NatsName) -> Self {
        Self { own, runs: Mutex::default() }
    }

    /// Sets the pools of a run's earlier epochs.
    pub(super) fn set_previous(&self, run: RunId, former: PreviousPools) {
        let pools = Arc::new(ExpectedRunPools { own: self.own.to_string(), former });
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).insert(run, pools);
    }

    /// The pools of a run.
    pub(super) fn for_run(&self, run: RunId) -> Arc<ExpectedRunPools> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || ExpectedRunPools { own: self.own.to_string(), former: PreviousPools::new() };
        Arc::clone(runs.entry(run).or_insert_with(|| Arc::new(new())))
    }
}

impl ExpectedRunPools {
    /// Whether a report from the pool `by` comes from a pool that its try was offered to.
    pub(super) fn accepts(&self, by: &str, try_id: TryId) -> bool {
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
    fn report_from_pool_of_other_epoch_is_ignored() {
        let former =
            PreviousPools::from([(1, None), (2, Some("cpu".into())), (3, Some("gpu".into()))]);
        let pools = ExpectedRunPools { own: "gpu".to_owned(), former };
        for (epoch, cpu, gpu) in
            [(1, true, true), (2, true, false), (3, false, true), (4, false, true)]
        {
            let try_id = TryId { epoch, n: 1 };
            assert_eq!(pools.accepts("cpu", try_id), cpu, "epoch {epoch}");
            assert_eq!(pools.accepts("gpu", try_id), gpu, "epoch {epoch}");
            assert!(pools.accepts(NO_POOL, try_id) && !pools.accepts("other", try_id));
        }
    }
}
