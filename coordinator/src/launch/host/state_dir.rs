//! Where the workers of a host keep what must outlive them.
//!
//! ```text
//! <home>/workers/<namespace>-<store>/<worker id>/   spool and scratch of one worker
//! <home>/sandboxes/                                 process sandboxes of all
//! <home>/locks/                                     locks of image builds, if there is no cache
//! ```
//! A spool may be published only where its runs are: workers of another namespace or with another
//! blob store are apart, and nobody adopts what is not of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rollout_protocol::digest::Digest;

use crate::config::env_vars;

/// Hexadecimal digits that tell stores apart.
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

    /// The worker directories of a namespace and a blob store.
    pub fn workers(&self, namespace: &str, store: &str) -> PathBuf {
        let store = Digest::sha256(store.as_bytes()).hex();
        self.0.join("workers").join(format!("{namespace}-{}", &store[..STORE_DIGITS]))
    }

    /// The files of process sandboxes.
    pub fn sandboxes(&self) -> PathBuf {
        self.0.join("sandboxes")
    }

    /// Locks of image builds, where the user has no cache.
    pub fn locks(&self) -> PathBuf {
        self.0.join("locks")
    }
}

#[cfg(test)]
mod tests {
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
        let all = [("a", "s"), ("b", "s"), ("a", "t")].map(|(n, s)| home.workers(n, s));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "{all:?}");
        assert!(all.iter().all(|path| path.starts_with("/h/workers")));
    }
}
