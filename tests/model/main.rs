//! The whole protocol in virtual time: the real core between a model server, model workers, a model
//! store and coordinators that die, in random schedules.
//!
//! A schedule is drawn from one number. `ROLLOUT_MODEL_SCHEDULES` says how many are tried;
//! `ROLLOUT_MODEL_SEED` repeats one. What breaks is shortened and told.

mod broker;
mod coordinator;
mod random_schedules;
mod faults;
mod journal;
mod invariants;
mod worker_actions;
mod lock;
mod names;
mod ablation;
mod random;
mod reference;
mod rules;
mod schedule;
mod coordinator_actions;
mod step;
mod store;
mod scenarios;
mod scenario;
mod worker;
mod simulation;
