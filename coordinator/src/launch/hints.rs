//! Hints of a worker in this process about the phases of its executions.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rollout_engine::LiveExecution;
use rollout_environment::EnvironmentLabels;
use rollout_gateway::run_calls::RunCallTable;
use rollout_protocol::dependency::Dependency;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EvalRecord, IdeasRecord, TrialRecord};
use rollout_worker::disk::DiskWatch;
use rollout_worker::executor::{ExecutionContext, Finished, PhaseSink};
use rollout_worker::service::Runner;
use rollout_worker::work::eval::EvalContext;
use rollout_worker::work::ideas::IdeasContext;
use rollout_worker::work::trial::TrialContext;
use tokio::sync::mpsc;

/// Runs executions and sends their phases to the engine.
#[derive(Debug)]
pub(super) struct HintingRunner {
    inner: Arc<dyn Runner>,
    hints: mpsc::Sender<LiveExecution>,
}

impl HintingRunner {
    pub(super) fn new(inner: Arc<dyn Runner>, hints: mpsc::Sender<LiveExecution>) -> Self {
        Self { inner, hints }
    }

    /// Listens to the phases of an execution.
    fn listen(&self, execution: &mut ExecutionContext) {
        let EnvironmentLabels { item, try_id, exec, .. } = execution.labels;
        let phase = Phase::EnvironmentSetup;
        let seen = Mutex::new(LiveExecution { item, try_id, exec, phase, waiting_for: None });
        let inner = Arc::clone(&execution.phases);
        execution.phases = Arc::new(HintingPhaseSink { inner, seen, hints: self.hints.clone() });
    }
}

#[async_trait]
impl Runner for HintingRunner {
    async fn run(&self, mut context: TrialContext) -> Finished<TrialRecord> {
        self.listen(&mut context.execution);
        self.inner.run(context).await
    }

    async fn eval(&self, mut context: EvalContext) -> Finished<EvalRecord> {
        self.listen(&mut context.execution);
        self.inner.eval(context).await
    }

    async fn ideas(&self, mut context: IdeasContext) -> Finished<IdeasRecord> {
        self.listen(&mut context.execution);
        self.inner.ideas(context).await
    }

    fn disks(&self) -> Arc<DiskWatch> {
        self.inner.disks()
    }

    fn model_calls(&self) -> Arc<RunCallTable> {
        self.inner.model_calls()
    }
}

/// Forwards the phases of one execution and sends them to the engine.
#[derive(Debug)]
struct HintingPhaseSink {
    inner: Arc<dyn PhaseSink>,
    seen: Mutex<LiveExecution>,
    hints: mpsc::Sender<LiveExecution>,
}

impl HintingPhaseSink {
    fn send_hint(&self, change: impl FnOnce(&mut LiveExecution)) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut seen);
        // Only a hint: lost when the engine is busy.
        let _full = self.hints.try_send(*seen);
    }
}

impl PhaseSink for HintingPhaseSink {
    fn entered(&self, phase: Phase) {
        self.inner.entered(phase);
        self.send_hint(|seen| seen.phase = phase);
    }

    fn parked(&self, on: Option<Dependency>) {
        self.inner.parked(on);
        self.send_hint(|seen| seen.waiting_for = on);
    }
}
