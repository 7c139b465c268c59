//! The whole protocol in virtual time: the real core between a model server, model workers, a model
//! store and coordinators that die, in random schedules.
//!
//! A schedule is drawn from one number. `ROLLOUT_MODEL_SCHEDULES` says how many are tried;
//! `ROLLOUT_MODEL_SEED` repeats one. What breaks is shortened and told.

mod broker;
mod coordinator;
mod families;
mod faults;
mod journal;
mod judge;
mod labour;
mod lock;
mod names;
mod needed;
mod random;
mod reference;
mod rules;
mod schedule;
mod shell;
mod step;
mod store;
mod stories;
mod story;
mod worker;
mod world;
