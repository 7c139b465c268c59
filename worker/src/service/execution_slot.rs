//! The seat of an execution, which it leaves while it waits for a service without an environment.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::OwnedSemaphorePermit;

use super::WorkerShared;
use super::execution::Execution;
use super::slots::SlotPermit;
use crate::executor::Slot;

/// Where an execution sits.
#[derive(Debug, Default)]
pub(super) struct ExecutionSlot(Mutex<ExecutionSlotState>);

#[derive(Debug, Default)]
enum ExecutionSlotState {
    /// It was given no seat yet.
    #[default]
    None,
    /// It has one.
    Seated { _seat: SlotPermit },
    /// It left its seat to others.
    Away { _room: OwnedSemaphorePermit },
}

impl ExecutionSlot {
    /// Gives the execution a seat, unless it has left already.
    pub(super) fn occupy(&self, seat: SlotPermit) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, ExecutionSlotState::Away { .. }) {
            *state = ExecutionSlotState::Seated { _seat: seat };
        }
    }

    /// The execution is over.
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

/// The seat of one execution.
#[derive(Debug)]
pub(super) struct ExecutionSlotHandle {
    pub(super) shared: Arc<WorkerShared>,
    pub(super) execution: Arc<Execution>,
}

#[async_trait]
impl Slot for ExecutionSlotHandle {
    fn release(&self) {
        // More stay where they are, so that a long outage does not take all work there is.
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
