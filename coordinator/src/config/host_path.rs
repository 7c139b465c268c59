//! Sources that documents name and that may be on this host.

/// A source that may be on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostSource {
    /// A path, also of an uploaded dataset.
    Path,
    /// A path that only the operator of this host may provide.
    OperatorPath,
    /// Address of a git repository.
    Repository,
    /// The same, with an optional `@` and a reference.
    RepositoryAtReference,
    /// Address of a registry.
    Registry,
}
