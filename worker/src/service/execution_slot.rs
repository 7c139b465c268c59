//! The slot of an execution. It is released while the execution waits for a service without an
//! environment.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::OwnedSemaphorePermit;

use super::WorkerShared;
use super::execution::Execution;
use super::slots::SlotPermit;
use crate::executor::Slot;

/// The slot of an execution, if it holds one.
#[derive(Debug, Default)]
pub(super) struct ExecutionSlot(Mutex<ExecutionSlotState>);

#[derive(Debug, Default)]
enum ExecutionSlotState {
    /// It has no slot: not yet, or it ended.
    #[default]
    None,
    /// It holds a slot.
    Held { _seat: SlotPermit },
    /// It released its slot and waits.
    Released { _room: OwnedSemaphorePermit },
}

impl ExecutionSlot {
    /// Gives the execution a slot, unless it waits without one already.
    pub(super) fn occupy(&self, permit: SlotPermit) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, ExecutionSlotState::Released { .. }) {
            *state = ExecutionSlotState::Held { _seat: permit };
        }
    }

    /// Frees the slot at the end of the execution.
    pub(super) fn clear(&self) {
        self.set(ExecutionSlotState::None);
    }

    fn is_away(&self) -> bool {
        matches!(
            *self.0.lock().unwrap_or_else(PoisonError::into_inner),
            ExecutionSlotState::Released { .. }
        )
    }

    fn set(&self, state: ExecutionSlotState) {
        let former = {
            let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, state)
        };
        drop(former);
    }
}

/// A handle to the slot of one execution.
#[derive(Debug)]
pub(super) struct ExecutionSlotHandle {
    pub(super) shared: Arc<WorkerShared>,
    pub(super) execution: Arc<Execution>,
}

#[async_trait]
impl Slot for ExecutionSlotHandle {
    fn release(&self) {
        // The number of released slots is limited, so that a worker does not pull all the work
        // during a long outage. Other executions keep their slot.
        if let Ok(permit) = self.shared.park_permits.clone().try_acquire_owned() {
            self.execution.slot.set(ExecutionSlotState::Released { _room: permit });
        }
    }

    async fn reacquire(&self) {
        if self.execution.slot.is_away() {
            let permit = self.shared.slots.acquire(self.execution.offer.class).await;
            self.execution.slot.set(ExecutionSlotState::Held { _seat: permit });
        }
    }

    fn must_be_kept(&self) -> bool {
        self.execution.holds_permit()
    }
}
