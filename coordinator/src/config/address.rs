//! Addresses of repositories and registries: where they lead, and how they are shown.

use std::ops::Range;

/// Schemes of repositories on other hosts. Everything else may be a path or a command.
const REMOTE_SCHEMES: [&str; 3] = ["https://", "http://", "ssh://"];

/// Schemes of addresses with a login, also if only one slash follows them.
const LOGIN_SCHEMES: [&str; 4] = ["http:", "https:", "ssh:", "git:"];

/// What stands for a login in a part of an address.
const LEFT_OUT: &str = "****";

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

/// Removes the user and password from an address, also from one that programs do not take for an
/// address. The user of SSH is no secret.
pub(crate) fn without_secrets(url: &str) -> String {
    let Some(span) = login(url) else { return url.to_owned() };
    let (before, login, rest) = (&url[..span.start], &url[span.clone()], &url[span.end..]);
    if before.is_empty() || before == "ssh://" {
        return format!("{before}{}{rest}", user_of(login));
    }
    format!("{before}{}", &rest[1..])
}

/// Removes the logins of addresses from a message about words that may be addresses. A word without a scheme
/// is an address of SSH to git, and a path to everything else: it is shown.
pub(crate) fn without_logins_of(words: &[String], message: &str) -> String {
    words.iter().fold(message.to_owned(), |text, word| {
        let option = word.split_once('=').filter(|(name, _)| name.starts_with('-'));
        let word = option.map_or(word.as_str(), |(_, value)| value);
        let Some(span) = login(word).filter(|login| login.start > 0) else { return text };
        let text = without_secrets_of(word, &text);
        // A part of the address is named, or a path with it.
        let login = &word[span];
        if user_of(login) == login { text } else { text.replace(login, LEFT_OUT) }
    })
}

/// The place in an address where a user may begin.
struct LoginStart {
    /// The place.
    at: usize,
    /// Whether a scheme is before it, so that a user without a password is one too.
    has_scheme: bool,
    /// Whether a host may begin there: slashes within a path are part of the path.
    is_of_host: bool,
}

/// The places of an address where a user may begin: after slashes, after a scheme at its start, and at its
/// start.
fn login_starts(url: &str) -> Vec<LoginStart> {
    let (mut starts, mut from) = (Vec::new(), 0);
    while let Some(found) = url[from..].find(['/', '\\']) {
        let slash = from + found;
        let slashes = url[slash..].len() - url[slash..].trim_start_matches(['/', '\\']).len();
        from = slash + slashes;
        let before = url[..slash].trim_end();
        let has_colon = before.ends_with(':') || ends_with_word(before, "%3a");
        if !has_colon && slashes < 2 {
            continue;
        }
        let is_known = LOGIN_SCHEMES.iter().any(|scheme| ends_with_word(before, scheme));
        // A third slash begins the path of a file.
        let at = if before.eq_ignore_ascii_case("file:") { slash + slashes.min(2) } else { from };
        let has_scheme = has_colon && (slashes > 1 || is_known);
        let is_of_host = slash == 0 || has_colon || is_scheme(before);
        starts.push(LoginStart { at, has_scheme, is_of_host });
    }
    // `ssh:` and `git:` without a slash may be hosts.
    let schemes = ["http:", "https:", "nats:", "tls:", "s3:"];
    if let Some(scheme) = schemes.iter().find(|scheme| starts_with_word(url, scheme)) {
        starts.push(LoginStart { at: scheme.len(), has_scheme: true, is_of_host: true });
    }
    starts.push(LoginStart { at: 0, has_scheme: false, is_of_host: true });
    starts
}

/// Whether a text is a scheme that lacks its colon.
fn is_scheme(text: &str) -> bool {
    LOGIN_SCHEMES.iter().any(|scheme| text.eq_ignore_ascii_case(scheme.trim_end_matches(':')))
}

/// The place of the user of an address, and of the password after a colon; an `@` follows it. The place is
/// rather too long than too short: readers differ on where `?`, `#` and a backslash end it.
fn login(url: &str) -> Option<Range<usize>> {
    login_where(url, |_| true)
}

/// The same where a host may begin, not within a path: an `@` in a path begins a reference.
pub(super) fn login_of_host(url: &str) -> Option<Range<usize>> {
    login_where(url, |start| start.is_of_host)
}

/// The first login at a start that counts.
fn login_where(url: &str, counts: impl Fn(&LoginStart) -> bool) -> Option<Range<usize>> {
    let last = url.rfind('@')?;
    let starts = login_starts(url).into_iter();
    let mut starts = starts.filter(|start| start.at <= last && counts(start));
    starts.find_map(|start| login_at(url, &start))
}

/// Whether a text ends with a word of ASCII, in upper or lower case.
fn ends_with_word(text: &str, word: &str) -> bool {
    let start = text.len().checked_sub(word.len());
    start.is_some_and(|start| text.as_bytes()[start..].eq_ignore_ascii_case(word.as_bytes()))
}

/// Whether a text begins with a word of ASCII, in upper or lower case.
fn starts_with_word(text: &str, word: &str) -> bool {
    text.as_bytes()
        .get(..word.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
}

fn login_at(url: &str, start: &LoginStart) -> Option<Range<usize>> {
    let rest = &url[start.at..];
    let authority = rest.split('/').next().unwrap_or(rest);
    let last = authority.rfind('@');
    let end = match last {
        // In `git@host:path@reference` the last one is not that of the user.
        Some(last) if start.at == 0 => {
            let of_host = authority.rfind(':').and_then(|colon| authority[..colon].rfind('@'));
            of_host.unwrap_or(last)
        }
        Some(last) => last,
        // The slash is part of the password, where a port would be.
        None if start.has_scheme && !has_port(authority) => rest.rfind('@')?,
        None => return None,
    };
    let is_login = start.at == 0 || start.has_scheme || rest[..end].contains(':');
    is_login.then(|| start.at..start.at + end)
}

/// Whether a host is followed by a number, or by nothing.
fn has_port(authority: &str) -> bool {
    authority.starts_with('[')
        || authority
            .split_once(':')
            .is_none_or(|(_, port)| port.chars().all(|c| c.is_ascii_digit()))
}

/// The user of a login, whose colon may be percent-encoded.
fn user_of(login: &str) -> &str {
    let encoded = login.to_ascii_lowercase().find("%3a");
    let end = login.find(':').into_iter().chain(encoded).min();
    &login[..end.unwrap_or(login.len())]
}

/// Removes the user and password of an address from the output of a program, which may leave out the
/// password or the path: the user alone may be a token.
pub(crate) fn without_secrets_of(url: &str, text: &str) -> String {
    let mut text = text.replace(url, &without_secrets(url));
    let of_http = url.starts_with("http://") || url.starts_with("https://");
    let Some(span) = login(url).filter(|_| of_http) else { return text };
    let login = &url[span];
    let user = user_of(login);
    for shown in [login, user].into_iter().filter(|shown| !shown.is_empty()) {
        text = text.replace(&format!("://{shown}@"), "://");
    }
    text
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

    #[test]
    fn address_is_shown_without_a_login_that_may_be_a_token() {
        for (url, shown) in [
            ("https://me:pw@h/r", "https://h/r"),
            ("https://token@h/r", "https://h/r"),
            ("https://token:@h/r", "https://h/r"),
            ("https://:token@h:1/r", "https://h:1/r"),
            ("https://h/r@v1", "https://h/r@v1"),
            ("ssh://git@h/r", "ssh://git@h/r"),
            ("ssh://git:pw@h/r", "ssh://git@h/r"),
            ("git@h:r", "git@h:r"),
            ("git@h:r@v1", "git@h:r@v1"),
            ("h:/r@v1", "h:/r@v1"),
            ("/srv//a@b/r", "/srv//a@b/r"),
            ("file:///a@b/r", "file:///a@b/r"),
            ("/srv/a@b/r", "/srv/a@b/r"),
            ("file:///srv/a@b/r", "file:///srv/a@b/r"),
            ("https://h:1/r@v1", "https://h:1/r@v1"),
            ("https://[::1]/r@v1", "https://[::1]/r@v1"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }

    #[test]
    fn odd_address_is_shown_without_its_login() {
        for (url, shown) in [
            ("http://A#@B/", "http://B/"),
            ("http://A?x@B/", "http://B/"),
            ("https://me:p@w@h/r", "https://h/r"),
            ("https://me:pw\\@h/r", "https://h/r"),
            ("https://me:p/w@h/r", "https://h/r"),
            ("https://me:p%40w@h/r", "https://h/r"),
            ("https://me%3Apw@h/r", "https://h/r"),
            ("ssh://git%3apw@h/r", "ssh://git@h/r"),
            ("HTTPS://me:pw@h/r", "HTTPS://h/r"),
            ("git://me:pw@h/r", "git://h/r"),
            ("https:/me:pw@h/r", "https:/h/r"),
            ("https:\\\\me:pw@h\\r", "https:\\\\h\\r"),
            ("me:pw@h:r", "me@h:r"),
            ("https%3A//me:pw@h/r", "https%3A//h/r"),
            ("https:///me:pw@h/r", "https:///h/r"),
            ("https:/token@h/r", "https:/h/r"),
            ("http//me:pw@h/r", "http//h/r"),
            ("//me:pw@h/r", "//h/r"),
            ("https: //me:pw@h/r", "https: //h/r"),
            ("https://proxy/https://me:pw@h/r", "https://proxy/https://h/r"),
            ("https://me:p://w@h/r", "https://h/r"),
            ("/srv/https:/me:pw@h/r", "/srv/https:/h/r"),
            ("me:pw@h:r@v1", "me@h:r@v1"),
            ("https:me:pw@h/r", "https:h/r"),
            ("HTTPS:token@h/r", "HTTPS:h/r"),
            ("nats:me:pw@h:4222", "nats:h:4222"),
            ("tls:token@h", "tls:h"),
            ("s3:me:pw@h/b", "s3:h/b"),
        ] {
            assert_eq!(without_secrets(url), shown, "{url}");
        }
    }

    #[test]
    fn message_about_words_is_shown_without_their_logins() {
        let words = ["--repo=https://me:pw@h/r", "https:/a:b@h/job.yaml", "http:t:u@h/r", "h:r@v1"];
        let words = words.map(str::to_owned);
        for (said, shown) in [
            ("cannot fetch https://me:pw@h/r", "cannot fetch https://h/r"),
            ("--repo=https://me:pw@h/r", "--repo=https://h/r"),
            ("https:/a:b@h/job.yaml: no such file", "https:/h/job.yaml: no such file"),
            ("/tmp/http:t:u: no such file", "/tmp/http:****: no such file"),
            ("cannot fetch h:r at v1 of h:r@v1", "cannot fetch h:r at v1 of h:r@v1"),
        ] {
            assert_eq!(without_logins_of(&words, said), shown);
        }
    }

    #[test]
    fn output_is_shown_without_the_token_of_an_address() {
        for (url, said, shown) in [
            ("https://token@h/r", "no 'https://token@h/r/'", "no 'https://h/r/'"),
            ("https://token@h/r", "for 'https://token@h': off", "for 'https://h': off"),
            ("https://token:@h/r", "for 'https://token@h': off", "for 'https://h': off"),
            ("https://token:x-oauth-basic@h/r", "to https://token@h/r", "to https://h/r"),
            ("https://:pw@h/r", "to https://:pw@h", "to https://h"),
            ("ssh://git@h/r", "to ssh://git@h", "to ssh://git@h"),
            ("https://h/r", "to https://h/r", "to https://h/r"),
        ] {
            assert_eq!(without_secrets_of(url, said), shown, "{url}");
        }
    }
}
