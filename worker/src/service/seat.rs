//! The seat of an execution, which it leaves while it waits for a service without an environment.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::execution::Execution;
use super::slots::Seat;
use crate::executor::Slot;

/// Where an execution sits.
#[derive(Debug, Default)]
pub(super) struct SeatPlace(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// It was given no seat yet.
    #[default]
    None,
    /// It has one.
    Seated { _seat: Seat },
    /// It left its seat to others.
    Away { _room: OwnedSemaphorePermit },
}

impl SeatPlace {
    /// Gives the execution a seat, unless it has left already.
    pub(super) fn sit(&self, seat: Seat) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Away { .. }) {
            *state = State::Seated { _seat: seat };
        }
    }

    /// The execution is over.
    pub(super) fn clear(&self) {
        self.set(State::None);
    }

    fn is_away(&self) -> bool {
        matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), State::Away { .. })
    }

    fn set(&self, state: State) {
        let former = {
            let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *present, state)
        };
        drop(former);
    }
}

/// The seat of one execution.
#[derive(Debug)]
pub(super) struct Seated {
    pub(super) shared: Arc<Shared>,
    pub(super) execution: Arc<Execution>,
}

#[async_trait]
impl Slot for Seated {
    fn leave(&self) {
        // More stay where they are, so that a long outage does not take all work there is.
        if let Ok(room) = self.shared.parked.clone().try_acquire_owned() {
            self.execution.place.set(State::Away { _room: room });
        }
    }

    async fn take(&self) {
        if self.execution.place.is_away() {
            let seat = self.shared.rooms.seat(self.execution.offer.class).await;
            self.execution.place.set(State::Seated { _seat: seat });
        }
    }
}
