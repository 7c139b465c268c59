//! Directories of the host in texts for users, who know none of them.
//!
//! Texts of this program show no path below a directory of the server: [`shown`] leaves it out where the
//! text is made. Words of other programs and libraries, such as those of Git, may name more directories:
//! [`hide_host_paths`] takes every path of the usual places out of the texts of faults. The rule is the
//! same for each path in such a place, so that a user who makes a text name a guess learns nothing.
//!
//! [`shown`]: rollout_base::shown_path::shown

use std::ffi::OsString;
use std::path::Path;

use rollout_base::shown_path::hide;

use super::failure::RunFailure;
use crate::launch::host::{StateDir, fetched_tasks};

/// Stands for the path of a directory.
const HOST: &str = "<host>";

/// Places where hosts keep the files of servers, whichever host this is.
const PLACES: [&str; 15] = [
    "/data/",
    "/dev/shm/",
    "/etc/",
    "/export/",
    "/home/",
    "/media/",
    "/mnt/",
    "/nix/",
    "/opt/",
    "/root/",
    "/run/",
    "/srv/",
    "/tmp/",
    "/usr/",
    "/var/",
];

/// Hides the directory of a daemon, its blob store, and the caches of its user, whose variables `variable`
/// gives, in the texts of this process.
pub(super) fn hide_directories(
    state: &Path,
    store: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) {
    hide(state, "<server>");
    if let Some(store) = store {
        hide(store, "<store>");
    }
    if let Some(state) = StateDir::for_user(&variable) {
        hide(state.root(), "<state>");
    }
    if let Some(cache) = fetched_tasks(&variable) {
        hide(&cache, "<cache>");
    }
}

/// Takes the directories out of the paths in all texts of a failure. The last names of paths stay.
pub(super) fn hide_host_paths(failure: &mut RunFailure) {
    let RunFailure { message, details, hints, .. } = failure;
    for text in std::iter::once(message).chain(details).chain(hints) {
        *text = without_host_paths(text);
    }
}

fn without_host_paths(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, path) = rest.split_at(at);
        shown.push_str(before);
        let begins =
            !shown.ends_with(|last: char| last.is_alphanumeric() || "/>.-_~:}".contains(last));
        let end = path.find(|next: char| next.is_whitespace() || "\"'`,;:()<>[]{}".contains(next));
        let (path, after) = path.split_at(end.unwrap_or(path.len()));
        if begins && PLACES.iter().any(|place| path.starts_with(place)) {
            let name = path.rsplit('/').find(|name| !name.is_empty()).unwrap_or_default();
            shown.push_str(HOST);
            shown.push('/');
            shown.push_str(name);
        } else {
            shown.push_str(path);
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use rollout_base::shown_path::shown;

    use super::*;

    #[test]
    fn directories_of_the_server_are_hidden_where_a_text_is_made() {
        let root = tempfile::tempdir().expect("a directory");
        let home = root.path().join("home");
        let variable = |name: &str| (name == "HOME").then(|| home.clone().into_os_string());
        let (state, store) = (root.path().join("state"), root.path().join("state/blobs"));
        hide_directories(&state, Some(&store), variable);
        for (path, expected) in [
            (state.join("jobs/r1"), "<server>/jobs/r1"),
            (store.join("ab"), "<store>/ab"),
            (home.join(".local/state/rollout/x"), "<state>/x"),
        ] {
            assert_eq!(shown(&path).to_string(), expected);
        }
    }

    #[test]
    fn paths_of_the_host_are_hidden_whatever_the_server_uses() {
        for (text, expected) in [
            ("cannot read /srv/state/blobs/ab: denied", "cannot read <host>/ab: denied"),
            ("no `/home/op/x` or \"/var/lib/y\"", "no `<host>/x` or \"<host>/y\""),
            ("at path \"/tmp/.tmpAb1/c\"", "at path \"<host>/c\""),
            ("(/root/a, /mnt/b)", "(<host>/a, <host>/b)"),
            ("https://h/srv/x and a/srv/y", "https://h/srv/x and a/srv/y"),
            ("<server>/srv/x, ${DIR}/srv/x", "<server>/srv/x, ${DIR}/srv/x"),
            ("/app/x, /logs/verifier and /v1/runs", "/app/x, /logs/verifier and /v1/runs"),
            ("/srvs/x /srv", "/srvs/x /srv"),
        ] {
            assert_eq!(without_host_paths(text), expected);
        }
    }

    #[test]
    fn answer_to_a_guess_is_the_same_whether_it_is_right() {
        let root = tempfile::Builder::new().tempdir_in("/tmp").expect("a directory");
        let (state, guess) = (root.path().join("state"), root.path().join("other"));
        hide_directories(&state, None, |_| None);
        let told = |path: &Path| without_host_paths(&format!("no task `{}`", path.display()));
        assert_eq!(told(&state.join("x")), told(&guess.join("x")));
    }
}
