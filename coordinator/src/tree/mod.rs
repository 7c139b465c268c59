//! Search over commits of a repository: ideas are tried on the commits of the frontier, measured by
//! sweeps, and the best become the next frontier.

pub mod score;
