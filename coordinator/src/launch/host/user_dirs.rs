//! Directories of a user that all runs share: locks of image builds and fetched tasks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::config::env_vars;

/// The directory of the locks of image builds: one for all runs of this user, because the engine's
/// images are shared, too. `otherwise` if it is not writable.
pub fn image_locks(variable: impl Fn(&str) -> Option<OsString>, otherwise: PathBuf) -> PathBuf {
    cache(variable).map(|cache| cache.join("locks")).filter(|p| can_hold(p)).unwrap_or(otherwise)
}

/// The directory of fetched tasks, for all runs of this user; `None` if it is not writable.
pub fn fetched_tasks(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    cache(variable).filter(|path| can_hold(path))
}

/// The directory of this program in the user's cache.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute(env_vars::CACHE_HOME.name)
        .or_else(|| Some(absolute(env_vars::HOME.name)?.join(".cache")));
    cache.map(|cache| cache.join("rollout"))
}

/// Whether files can be created there. A home may be missing or belong to another user.
fn can_hold(directory: &Path) -> bool {
    std::fs::create_dir_all(directory).is_ok() && tempfile::tempfile_in(directory).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_lock_dir_is_per_user_or_falls_back_to_given_one() {
        let temp = tempfile::TempDir::new().expect("a directory");
        let at = |name: &str| temp.path().join(name);
        std::fs::write(at("file"), "").expect("written");
        let (cache, home, file) = (at("cache"), at("home"), at("file"));
        let relative = PathBuf::from("relative");
        let cases = [
            (Some(&cache), Some(&home), at("cache/rollout/locks")),
            (None, Some(&home), at("home/.cache/rollout/locks")),
            (Some(&relative), Some(&home), at("home/.cache/rollout/locks")),
            (Some(&file), Some(&home), at("job")),
            (None, Some(&file), at("job")),
            (None, None, at("job")),
        ];
        for (cache, home, expected) in cases {
            let variable = |name: &str| {
                let value = if name == "HOME" { home } else { cache };
                value.map(|path| path.clone().into_os_string())
            };
            assert_eq!(image_locks(variable, at("job")), expected, "{cache:?} {home:?}");
        }
    }
}
