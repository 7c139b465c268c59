//! Directories of the server in texts for its users, who know none of them. Its log has them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::failure::RunFailure;
use crate::launch::host::{StateDir, fetched_tasks};

/// Stands for a directory of the server.
const SERVER: &str = "<server>";

/// Directories that texts for users do not name.
#[derive(Debug)]
pub(super) struct HiddenPaths(Vec<String>);

impl HiddenPaths {
    /// The directory of a daemon, its blob store, and the caches of its user, whose variables `variable`
    /// gives.
    pub(super) fn new(
        directories: [Option<&Path>; 3],
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let state = StateDir::for_user(&variable).map(|state| state.root().to_owned());
        let caches = [state, fetched_tasks(&variable)].into_iter().flatten();
        let directories = directories.into_iter().flatten().map(Path::to_owned);
        let is_specific = |path: &PathBuf| path.is_absolute() && path.parent().is_some();
        let all = directories.chain(caches).filter(is_specific);
        let mut hidden: Vec<String> = all.map(|path| path.display().to_string()).collect();
        // One inside another first.
        hidden.sort_unstable_by_key(|path| std::cmp::Reverse(path.len()));
        Self(hidden)
    }

    /// Takes the directories out of all texts of a failure.
    pub(super) fn hide(&self, failure: &mut RunFailure) {
        let RunFailure { message, details, hints, .. } = failure;
        for text in std::iter::once(message).chain(details).chain(hints) {
            for path in &self.0 {
                if text.contains(path) {
                    *text = text.replace(path, SERVER);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_server_are_in_no_text_and_others_stay() {
        let variable = |name: &str| (name == "HOME").then(|| OsString::from("/home/op"));
        let store = Path::new("/srv/state/blobs");
        let hidden = HiddenPaths::new([Some(Path::new("/srv/state")), Some(store), None], variable);
        let mut failure = RunFailure {
            code: 1,
            message: "cannot read /srv/state/blobs/ab: /app/x".to_owned(),
            details: vec!["/srv/state/jobs/r1 is full".to_owned()],
            hints: vec!["remove /home/op/.local/state/rollout/x".to_owned()],
        };
        hidden.hide(&mut failure);
        assert_eq!(failure.message, "cannot read <server>/ab: /app/x");
        assert_eq!(failure.details, ["<server>/jobs/r1 is full"]);
        assert!(!failure.hints[0].contains("/home/op"), "{:?}", failure.hints);
    }
}
