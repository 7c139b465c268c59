//! Addresses of repositories and registries: where they lead, and how they are shown.

/// Schemes of repositories on other hosts. Everything else may be a path or a command.
const REMOTE_SCHEMES: [&str; 3] = ["https://", "http://", "ssh://"];

/// Whether git takes an address for a repository on another host.
pub(crate) fn is_remote_repository(url: &str) -> bool {
    REMOTE_SCHEMES.iter().any(|scheme| url.starts_with(scheme)) || is_scp_address(url)
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
