//! Where tasks come from: directories, git repositories and registries, and checks of them.

pub mod check;
pub mod datasets;
pub mod registry;
