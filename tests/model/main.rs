//! The whole protocol in virtual time: the real core between a model server, model workers, a model
//! store and coordinators that die, in random schedules.
//!
//! A schedule is drawn from one number. `ROLLOUT_MODEL_SCHEDULES` says how many are tried;
//! `ROLLOUT_MODEL_SEED` repeats one. What breaks is shortened and told.

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
mod simulation;
mod step;
mod store;
mod worker;
mod worker_actions;
