//! Sources of tasks: directories, git repositories and registries, and static checks of tasks.

pub mod check;
pub mod datasets;
pub mod registry;
