//! The live backend of a search: its evals are items of a run, its repository is a git repository.
//!
//! ```text
//! SearchSession (decides, writes the manifest)     engine (journal, retries, queue)
//!    │ SearchBackend                                  │ Planner
//!    ▼                                                ▼
//! LiveBackend ── requests tries ──▶ WorkRequests ◀── dispatches tries, reports settlements
//!    │  ▲                               │
//!    │  └────────── settlements ────────┘
//!    └─ repository, results as files, ideas
//! ```
//! The two share only `WorkRequests`. All durable state is in the journal (results of executions)
//! or follows from it and the manifest, so the process may die between any two steps: a resumed
//! search requests the same tries by the same keys, and immediately receives the settlements of
//! former sessions.

mod events;
mod ideas;
mod inactive_repository;
mod live;
mod outcome;
mod outputs;
mod past_requests;
mod planner;
mod requests;
mod results;
mod spec;
mod stops;
mod task;

pub use inactive_repository::InactiveRepository;
pub use outputs::{ComparedOutputs, OutputRepair, compare_outputs};
pub use planner::EvalPlanner;
pub(crate) use requests::WorkRequests;
pub use results::ResultsError;
pub use spec::{SearchPlan, SearchPlanError};
pub(crate) use stops::SearchStops;
pub(crate) use task::{OwnedRun, SearchTask, combine_outcomes, run_open_options};
