//! The network that repositories and registries of a job are fetched over.

use std::net::IpAddr;

use rollout_environment::egress::{AllowedHosts, HostRefusal, HostTarget};
use tokio::sync::watch;

/// Ports of addresses that name none.
const DEFAULT_PORTS: [(&str, u16); 3] = [("https", 443), ("http", 80), ("ssh", 22)];

/// How repositories and registries of a job are fetched.
#[derive(Debug, Clone, Default)]
pub struct FetchAccess {
    /// The network.
    pub network: FetchNetwork,
    /// Fetches, and the reading of tasks, end when its sender is dropped.
    pub cancelled: Option<watch::Receiver<()>>,
}

/// A network with the credentials that may be used on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchNetwork {
    /// That of the user who started this program, with the user's credentials. Only for documents of
    /// this user.
    OwnUser,
    /// Public addresses without credentials, and listed hosts with those of the user.
    Guarded(AllowedHosts),
}

impl Default for FetchNetwork {
    fn default() -> Self {
        Self::Guarded(AllowedHosts::public(Vec::new()))
    }
}

/// The host of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteHost<'a> {
    scheme: &'a str,
    host: &'a str,
    port: u16,
}

impl FetchAccess {
    /// Whether fetches and the reading of tasks are to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.as_ref().is_some_and(|cancelled| cancelled.has_changed().is_err())
    }
}

impl FetchNetwork {
    /// Why a repository on another host may not be fetched, as far as its address tells; names are not
    /// looked up. `None` if it may.
    pub(crate) fn refusal(&self, url: &str) -> Option<String> {
        let Self::Guarded(hosts) = self else { return None };
        let Some(remote) = RemoteHost::parse(url) else {
            return Some("its address has no plain host".to_owned());
        };
        if remote.is_listed(hosts) {
            return None;
        }
        if !matches!(remote.scheme, "https" | "http") {
            let text =
                "it is fetched with a key of the server, and the operator does not list its host";
            return Some(text.to_owned());
        }
        match hosts.check_host(remote.host, remote.port) {
            Ok(HostTarget::Name(_) | HostTarget::Address(_)) => None,
            Err(refusal) => Some(describe(refusal).to_owned()),
        }
    }

    /// Whether a repository is fetched with the credentials of the user.
    pub(crate) fn uses_credentials(&self, url: &str) -> bool {
        match self {
            Self::OwnUser => true,
            Self::Guarded(hosts) => {
                RemoteHost::parse(url).is_some_and(|remote| remote.is_listed(hosts))
            }
        }
    }
}

/// The reason of a refused host, for the author of a document.
pub(crate) const fn describe(refusal: HostRefusal) -> &'static str {
    match refusal {
        HostRefusal::NotListed => "its host is no name and no address",
        // The same for both: users do not learn which names a private network has.
        HostRefusal::InternalAddress | HostRefusal::NoAddress => {
            "its host, or one that it redirects to, has no public address: it is unknown, the server's \
             own, or in a private network"
        }
    }
}

impl<'a> RemoteHost<'a> {
    /// The host of `scheme://[user@]host[:port]/…` or `user@host:path`. `None` for anything that
    /// programs may read differently.
    pub(crate) fn parse(url: &'a str) -> Option<Self> {
        let (scheme, authority, is_url) = match url.split_once("://") {
            Some((scheme, rest)) => {
                let authority = rest.split('/').next().unwrap_or(rest);
                // Some read `h#@other/r` as `other`, and others as `h`.
                let end = authority.find(['?', '#']).unwrap_or(authority.len());
                if authority[end..].contains('@') {
                    return None;
                }
                (scheme, &authority[..end], true)
            }
            None => ("ssh", url.split_once(':')?.0, false),
        };
        let default = DEFAULT_PORTS.iter().find(|(known, _)| *known == scheme)?.1;
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let is_plain = |text: &str, more: &str| {
            text.bytes().all(|b| b.is_ascii_alphanumeric() || more.as_bytes().contains(&b))
        };
        // Programs would take a word that begins with `-` for an option.
        let is_option = user.starts_with('-') || host.starts_with('-');
        if is_option || !is_plain(user, "-._~!$&'()*+,;=:%") || !is_plain(host, "-._:[]") {
            return None;
        }
        let (host, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                address.parse::<IpAddr>().ok()?;
                (address, port.strip_prefix(':').or(port.is_empty().then_some(""))?)
            }
            None if is_url => host.split_once(':').unwrap_or((host, "")),
            None => (host, ""),
        };
        let port = if port.is_empty() { default } else { port.parse().ok()? };
        (!host.is_empty()).then_some(Self { scheme, host, port })
    }

    /// The rule that has only this host and port.
    pub(crate) fn rule(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    fn is_listed(&self, hosts: &AllowedHosts) -> bool {
        hosts.lists(self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_of_an_address_is_read_in_one_way_or_not_at_all() {
        for (url, expected) in [
            ("https://h.example/a.git", Some(("https", "h.example", 443))),
            ("http://user:p%40ss@h:8080/a", Some(("http", "h", 8080))),
            ("https://h?x", Some(("https", "h", 443))),
            ("ssh://git@h/a", Some(("ssh", "h", 22))),
            ("git@h:o/r.git", Some(("ssh", "h", 22))),
            ("http://[::1]:80/x", Some(("http", "::1", 80))),
            ("http://[::1]/x", Some(("http", "::1", 80))),
            ("http://[::1]x/x", None),
            ("http://[h]/x", None),
            ("http://127.0.0.1\\@h/x", None),
            ("http://a@b@h/x", None),
            ("http://h#@other/x", None),
            ("http://h?@other/x", None),
            ("http://h%2e/x", None),
            ("http://h:x/x", None),
            ("http:///x", None),
            ("http://h\t/x", None),
            ("ftp://h/x", None),
            ("-x@h:p", None),
            ("/srv/r", None),
        ] {
            let found =
                RemoteHost::parse(url).map(|remote| (remote.scheme, remote.host, remote.port));
            assert_eq!(found, expected, "{url}");
        }
    }

    #[test]
    fn address_of_this_host_or_over_ssh_is_refused_unless_listed() {
        let network = FetchNetwork::default();
        for url in ["https://h/r", "http://h.example:8080/r", "http://93.184.216.34/r"] {
            assert_eq!(network.refusal(url), None, "{url}");
            assert!(!network.uses_credentials(url), "{url}");
        }
        let refused = [
            "http://127.0.0.1:80/r",
            "http://169.254.169.254/r",
            "https://[::ffff:10.0.0.1]/r",
            "ssh://git@h/r",
            "git@h:r",
            "http://127.0.0.1\\@h/x",
        ];
        let hosts = ["127.0.0.1:80", "169.254.169.254", "10.0.0.1", "h"];
        let hosts = hosts.iter().map(|host| host.parse().expect("a rule")).collect();
        let listed = FetchNetwork::Guarded(AllowedHosts::public(hosts));
        for url in refused {
            assert!(network.refusal(url).is_some(), "{url}");
            assert_eq!(FetchNetwork::OwnUser.refusal(url), None, "{url}");
            let is_plain = !url.contains('\\');
            assert_eq!(listed.refusal(url).is_none(), is_plain, "{url}");
            assert_eq!(listed.uses_credentials(url), is_plain, "{url}");
        }
        assert!(listed.refusal("http://127.0.0.1:81/r").is_some());
        assert!(!listed.uses_credentials("http://127.0.0.1:81/r"));
    }
}
