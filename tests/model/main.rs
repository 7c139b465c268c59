//! The whole protocol in virtual time: the real core with a model server, model workers, a model
//! store and coordinators that die, under random schedules.
//!
//! A schedule is derived from a seed. `ROLLOUT_MODEL_SCHEDULES` sets the number of schedules;
//! `ROLLOUT_MODEL_SEED` repeats one. A failing schedule is shrunk and printed.

mod ablation;
mod broker;
mod coordinator;
mod coordinator_actions;
mod faults;
mod invariants;
mod journal;
mod lock;
mod names;
mod random;
mod random_schedules;
mod reference;
mod rules;
mod scenario;
mod scenarios;
mod schedule;
mod service;
mod simulation;
mod step;
mod store;
mod worker;
mod worker_actions;
