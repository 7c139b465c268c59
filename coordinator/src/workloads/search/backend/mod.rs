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

mod requests;
mod events;
mod past_requests;
mod ideas;
mod inactive_repository;
mod outcome;
mod planner;
mod results;
mod task;
mod live;
mod spec;
mod stops;

pub(crate) use requests::WorkRequests;
pub use inactive_repository::InactiveRepository;
pub use planner::EvalPlanner;
pub(crate) use task::{OwnedRun, SearchTask, run_open_options, combine_outcomes};
pub use spec::{SearchPlan, SearchPlanError};
pub(crate) use stops::SearchStops;
