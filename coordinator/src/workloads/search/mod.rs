//! Tree search over commits of a repository: it tries ideas on the commits of the frontier,
//! measures them by sweeps, and the best become the next frontier.

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
