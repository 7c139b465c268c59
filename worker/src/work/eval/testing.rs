//! Permits for tests.

use std::sync::Mutex;

use async_trait::async_trait;
use rollout_protocol::spec::eval::EvalStage;

use super::StagePermits;

/// Grants every permit and records what it is told, in order.
#[derive(Debug, Default)]
pub(in crate::work) struct PermitRecorder(Mutex<Vec<PermitEvent>>);

/// A call of a [`PermitRecorder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::work) enum PermitEvent {
    Acquired(EvalStage),
    Released(EvalStage),
    StartedOver,
}

impl PermitRecorder {
    /// The calls so far.
    pub(in crate::work) fn events(&self) -> Vec<PermitEvent> {
        self.0.lock().expect("not poisoned").clone()
    }

    fn record(&self, event: PermitEvent) {
        self.0.lock().expect("not poisoned").push(event);
    }
}

#[async_trait]
impl StagePermits for PermitRecorder {
    async fn acquire(&self, stage: EvalStage) {
        self.record(PermitEvent::Acquired(stage));
    }

    fn release(&self, stage: EvalStage) {
        self.record(PermitEvent::Released(stage));
    }

    fn start_over(&self) {
        self.record(PermitEvent::StartedOver);
    }
}
