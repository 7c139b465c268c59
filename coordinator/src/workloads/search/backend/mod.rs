//! A search for real: its evals are items of a run, its repository is a git repository.
//!
//! ```text
//! Sitting (decides, writes the manifest)          engine (journal, retries, queue)
//!    │ Workshop                                        │ Planner
//!    ▼                                                 ▼
//!   Shop ──── asks for tries ────▶ Asked ◀──── hands out tries, hears of settlements
//!    │  ▲                            │
//!    │  └────── what is settled ─────┘
//!    └─ repository, results as files, idea commands
//! ```
//! The two share nothing but `WorkRequests`. Everything durable is either in the journal
//! (what an execution came to) or follows from it and the manifest, so that a process may die
//! between any two steps: a search that is opened again asks for the same tries by the same names,
//! and hears at once of those that were settled before.

mod events;
mod ideas;
mod inactive_repository;
mod live;
mod outcome;
mod past_requests;
mod planner;
mod requests;
mod results;
mod spec;
mod stops;
mod task;

pub use inactive_repository::InactiveRepository;
pub use planner::EvalPlanner;
pub(crate) use requests::WorkRequests;
pub use spec::{SearchPlan, SearchPlanError};
pub(crate) use stops::SearchStops;
pub(crate) use task::{OwnedRun, SearchTask, combine_outcomes, run_open_options};
