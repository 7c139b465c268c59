//! Runs whose trials are requested one by one by a program in this process.

use std::sync::Arc;

use rollout_queue::traits::RunControl;
use rollout_store::BlobStore;
use tokio::sync::oneshot;

use crate::plan::JobPlan;
use crate::workloads::job::{JobPlanner, TrialRequests};

/// Requests for trials, in place of all trials of the plan.
#[derive(Debug)]
pub struct OnDemandTrials {
    /// The requests. The run goes on until they are closed.
    pub requests: Arc<TrialRequests>,
    /// Receives the parts of the run that its user needs, before the run is opened.
    pub prepared: oneshot::Sender<PreparedRun>,
}

/// Parts of a run that the user of its trials needs.
#[derive(Debug, Clone)]
pub struct PreparedRun {
    /// The plan, with the documents under which trials run.
    pub plan: Arc<JobPlan>,
    /// The blob store.
    pub store: Arc<dyn BlobStore>,
    /// Commands to the coordinator and controls of trials.
    pub control: Arc<dyn RunControl>,
}

impl OnDemandTrials {
    /// Makes the planner dispatch the requests, and hands the parts of the run to its user.
    pub(super) fn attach(
        self,
        planner: JobPlanner,
        plan: &Arc<JobPlan>,
        store: Arc<dyn BlobStore>,
        control: Arc<dyn RunControl>,
    ) -> JobPlanner {
        let prepared = PreparedRun { plan: Arc::clone(plan), store, control };
        // A user that has ended has closed the requests.
        let _gone = self.prepared.send(prepared);
        planner.with_requests(self.requests)
    }
}
