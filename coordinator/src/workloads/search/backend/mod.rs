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
//! The two share nothing but `Asked`. Everything durable is either in the journal
//! (what an execution came to) or follows from it and the manifest, so that a process may die
//! between any two steps: a search that is opened again asks for the same tries by the same names,
//! and hears at once of those that were settled before.

mod asked;
mod events;
mod former;
mod ideas;
mod kept;
mod outcome;
mod planner;
mod results;
mod search;
mod shop;
mod spec;
mod stops;

pub(crate) use asked::Asked;
pub use kept::Kept;
pub use planner::EvalPlanner;
pub(crate) use search::{Owner, Search, opening, outcome};
pub use spec::{Plan, PlanError};
pub(crate) use stops::Stops;
