//! Directories of a host's workers that outlive the workers.
//!
//! ```text
//! <home>/workers/<namespace>-<store>[.<pool>]/<worker id>/   spool and scratch of one worker
//! <home>/sandboxes/                                           process sandboxes of all
//! <home>/locks/                                               locks of image builds, if there is no cache
//! ```
//! A spool is published only where its runs are, and only from the pool that they were offered to:
//! a coordinator ignores reports from another pool. A worker recovers the directories of its own
//! namespace, store and pool.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rollout_protocol::digest::Digest;

use crate::config::env_vars;

/// The pool of workers and jobs that name none.
const DEFAULT_POOL: &str = "default";

/// Hexadecimal digits that identify a store.
const STORE_DIGITS: usize = 16;

/// The directory of the workers of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// A directory that the operator chose.
    pub fn new(root: PathBuf) -> Self {
        Self(root)
    }

    /// The directory in the user's state, by the user's environment; `None` without a home.
    pub fn for_user(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let absolute =
            |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = absolute(env_vars::STATE_HOME.name)
            .or_else(|| Some(absolute(env_vars::HOME.name)?.join(".local/state")))?;
        Some(Self(state.join("rollout")))
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The worker directories of a namespace, a blob store and a pool. Those of the default pool are
    /// where earlier versions had all.
    pub fn workers(&self, namespace: &str, store: &str, pool: &str) -> PathBuf {
        let store = Digest::sha256(store.as_bytes()).hex();
        // A dot is in no name of a namespace or pool.
        let pool = if pool == DEFAULT_POOL { String::new() } else { format!(".{pool}") };
        self.0.join("workers").join(format!("{namespace}-{}{pool}", &store[..STORE_DIGITS]))
    }

    /// Caches of what is read from stores in services, for all workers of this user.
    pub fn blob_cache(&self) -> PathBuf {
        self.0.join("blob-cache")
    }

    /// The files of process sandboxes.
    pub fn sandboxes(&self) -> PathBuf {
        self.0.join("sandboxes")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn state_dir_follows_environment_or_home() {
        let home = |state: Option<&str>, home: Option<&str>| {
            StateDir::for_user(|name| {
                let value = if name == "HOME" { home } else { state };
                value.map(OsString::from)
            })
        };
        let at = |path: &str| Some(StateDir::new(PathBuf::from(path)));
        assert_eq!(home(Some("/state"), Some("/me")), at("/state/rollout"));
        assert_eq!(home(Some("relative"), Some("/me")), at("/me/.local/state/rollout"));
        assert_eq!(home(None, None), None);
    }

    #[test]
    fn worker_dirs_of_different_deployments_are_separate() {
        let home = StateDir::new(PathBuf::from("/h"));
        let deployments = [
            ("a", "s", "default"),
            ("b", "s", "default"),
            ("a", "t", "default"),
            ("a", "s", "gpu"),
        ];
        let all: BTreeSet<_> =
            deployments.iter().map(|(n, s, pool)| home.workers(n, s, pool)).collect();
        assert_eq!(all.len(), deployments.len(), "{all:?}");
        assert!(all.iter().all(|path| path.starts_with("/h/workers")));
    }
}
