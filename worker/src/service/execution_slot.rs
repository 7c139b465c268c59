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
    Seated { _seat: SlotPermit },
    /// It released its slot and waits.
    Away { _room: OwnedSemaphorePermit },
}

impl ExecutionSlot {
    /// Gives the execution a slot, unless it waits without one already.
    pub(super) fn occupy(&self, seat: SlotPermit) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, ExecutionSlotState::Away { .. }) {
            *state = ExecutionSlotState::Seated { _seat: seat };
        }
    }

    /// Frees the slot at the end of the execution.
    pub(super) fn clear(&self) {
        self.set(ExecutionSlotState::None);
    }

    fn is_away(&self) -> bool {
        matches!(
            *self.0.lock().unwrap_or_else(PoisonError::into_inner),
            ExecutionSlotState::Away { .. }
        )
    }

    fn set(&self, state: ExecutionSlotState) {
        let former = {
            let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *present, state)
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
        if let Ok(room) = self.shared.parked.clone().try_acquire_owned() {
            self.execution.place.set(ExecutionSlotState::Away { _room: room });
        }
    }

    async fn reacquire(&self) {
        if self.execution.place.is_away() {
            let seat = self.shared.rooms.acquire(self.execution.offer.class).await;
            self.execution.place.set(ExecutionSlotState::Seated { _seat: seat });
        }
    }
}
