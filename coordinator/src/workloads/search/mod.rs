//! Tree search over commits of a repository: it tries ideas on the commits of the frontier,
//! measures them by sweeps, and the best become the next frontier.
//!
//! * `driver`: a session, from the directory and its owner to the main loop
//! * `policy`: transitions of the manifest; `manifest`: the state that they change
//! * `backend`: ideas and evals as items of a run; `repository`: their commits
//! * `score`: comparison of sweeps; `idea`: texts of ideas
//! * `normalize`: error texts without the parts that differ between two runs
//! * `limits`: limits on concurrent commands
//! * `report`, `validate`: reports and faults of a search, from its directory

pub mod backend;
pub mod driver;
pub mod idea;
mod limits;
pub mod manifest;
pub mod normalize;
pub mod policy;
pub mod report;
pub mod repository;
pub mod score;
pub mod validate;
