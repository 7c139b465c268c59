//! Addresses of repositories and registries: where they lead, and how they are shown.

/// Schemes of repositories on other hosts. Everything else may be a path or a command.
const REMOTE_SCHEMES: [&str; 3] = ["https://", "http://", "ssh://"];

/// The place that the address of a repository leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepositoryPlace {
    /// A directory of this host.
    Directory,
    /// Another host, over HTTP or SSH.
    Remote,
    /// Known to git only: another transport, which may be a command, or `host:path` without a user.
    Unknown,
}

impl RepositoryPlace {
    /// The place of an address.
    pub(crate) fn of(url: &str) -> Self {
        if REMOTE_SCHEMES.iter().any(|scheme| url.starts_with(scheme)) || is_scp_address(url) {
            return Self::Remote;
        }
        let is_path = !url.contains("://")
            && url.split_once(':').is_none_or(|(before, _)| before.contains('/'));
        if is_path || url.starts_with("file://") { Self::Directory } else { Self::Unknown }
    }
}

/// Whether git takes an address for a repository on another host.
pub(crate) fn is_remote_repository(url: &str) -> bool {
    RepositoryPlace::of(url) == RepositoryPlace::Remote
}

/// Whether this is `user@host:path`, without a transport such as `ext::`.
fn is_scp_address(url: &str) -> bool {
    url.split_once(':').is_some_and(|(host, path)| {
        host.contains('@')
            && !host.contains('/')
            && !host.starts_with('-')
            && !path.starts_with(':')
    })
}

/// Removes the user and password from an address.
pub(crate) fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.rfind('@') {
        Some(at) if scheme != "ssh" => format!("{scheme}://{}", &rest[at + 1..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_of_repository_is_directory_remote_or_unknown() {
        use RepositoryPlace::{Directory, Remote, Unknown};
        for (url, expected) in [
            ("https://h/r", Remote),
            ("http://h/r", Remote),
            ("ssh://git@h/r", Remote),
            ("git@h:o/r.git", Remote),
            ("/srv/r", Directory),
            ("../r", Directory),
            ("r", Directory),
            ("./a:b", Directory),
            ("a/b@c:d", Directory),
            ("file:///srv/r", Directory),
            ("h:r", Unknown),
            ("git://h/r", Unknown),
            ("ext::sh -c true", Unknown),
            ("a@b::c", Unknown),
            ("-x@h:r", Unknown),
            ("HTTPS://h/r", Unknown),
        ] {
            assert_eq!(RepositoryPlace::of(url), expected, "{url}");
            assert_eq!(is_remote_repository(url), expected == Remote, "{url}");
        }
    }
}
