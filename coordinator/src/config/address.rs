//! Redaction of repository and registry addresses.

/// Removes the user and password from an address.
pub(crate) fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.rfind('@') {
        Some(at) if scheme != "ssh" => format!("{scheme}://{}", &rest[at + 1..]),
        _ => url.to_owned(),
    }
}
