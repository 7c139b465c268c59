//! Proxies through which this host reaches others, as the variables of a process name them.

#![cfg_attr(not(feature = "egress"), expect(dead_code, reason = "only connections use it"))]

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use data_encoding::BASE64;
use rollout_protocol::spec::task::{HostRule, normal_name};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Most bytes of the reply of a proxy before a tunnel.
const MAX_REPLY_BYTES: usize = 16 * 1024;

/// Longest time for a connection to a proxy, and for its reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Port of proxies that name none.
const DEFAULT_PORT: u16 = 1080;

/// The proxies of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UpstreamProxies {
    http: Option<UpstreamProxy>,
    https: Option<UpstreamProxy>,
    /// Hosts that are reached without a proxy.
    exceptions: Vec<HostRule>,
    /// Whether all hosts are.
    is_unused: bool,
}

/// One HTTP proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpstreamProxy {
    host: String,
    port: u16,
    /// User and password, with a colon between them.
    credentials: Option<String>,
}

impl UpstreamProxies {
    /// Reads `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in lower or upper case. Proxies of
    /// other kinds than HTTP are not used. Entries of `no_proxy` are names, each with all names below it,
    /// addresses, both with an optional port, networks, and `*`.
    pub(super) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| {
            let found = variable(name).or_else(|| variable(&name.to_ascii_uppercase()));
            found.filter(|text| !text.is_empty())
        };
        let all = get("all_proxy");
        let proxy = |name: &str| {
            let text = get(name).or_else(|| all.clone())?;
            let found = UpstreamProxy::parse(&text);
            if found.is_none() {
                tracing::warn!("{name} names no HTTP proxy: repositories are fetched without it");
            }
            found
        };
        let exceptions = get("no_proxy").unwrap_or_default();
        let exceptions: Vec<_> =
            exceptions.split([',', ' ']).filter(|name| !name.is_empty()).collect();
        let rules = |name: &&str| {
            let name = name.trim_start_matches("*.").trim_start_matches('.');
            [name.to_owned(), format!("*.{name}")]
                .into_iter()
                .filter_map(|rule| rule.parse::<HostRule>().ok())
        };
        Self {
            http: proxy("http_proxy"),
            https: proxy("https_proxy"),
            exceptions: exceptions.iter().flat_map(rules).collect(),
            is_unused: exceptions.contains(&"*"),
        }
    }

    /// The proxy for a port of a host, without brackets.
    pub(super) fn find(&self, host: &str, port: u16, is_tls: bool) -> Option<&UpstreamProxy> {
        let mut rules = self.exceptions.iter();
        let is_exception = match host.parse::<IpAddr>() {
            Ok(address) => rules.any(|rule| rule.allows_address(address.to_canonical(), port)),
            Err(_) => normal_name(host)
                .is_some_and(|name| rules.any(|rule| rule.allows_name(&name, port))),
        };
        let proxy = if is_tls { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !is_exception && !self.is_unused)
    }
}

impl UpstreamProxy {
    fn parse(text: &str) -> Option<Self> {
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return None,
            None => text,
        };
        let authority = rest.split('/').next()?;
        let (credentials, host) = match authority.rsplit_once('@') {
            // A user without a password, such as a token, has an empty one.
            Some((user, host)) if !user.contains(':') => (Some(format!("{user}:")), host),
            Some((credentials, host)) => (Some(credentials.to_owned()), host),
            None => (None, authority),
        };
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (host, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port, credentials })
    }

    /// A tunnel to a port of a host.
    pub(super) async fn tunnel(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "the proxy does not answer");
        tokio::time::timeout(REPLY_TIMEOUT, self.connect(host, port)).await.map_err(timed_out)?
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let target = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let mut request = format!("CONNECT {target}:{port} HTTP/1.1\r\nHost: {target}:{port}\r\n");
        if let Some(credentials) = &self.credentials {
            let encoded = BASE64.encode(credentials.as_bytes());
            request.push_str(&format!("Proxy-Authorization: Basic {encoded}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n\r\n") {
            // Not more: the rest belongs to the tunnel.
            reply.push(stream.read_u8().await?);
            if reply.len() > MAX_REPLY_BYTES {
                return Err(io::Error::other("the reply of the proxy is too long"));
            }
        }
        let reply = String::from_utf8_lossy(&reply);
        let status = reply.split(' ').nth(1).unwrap_or_default();
        if !status.starts_with('2') {
            return Err(io::Error::other(format!("the proxy answered {status}")));
        }
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> UpstreamProxies {
        UpstreamProxies::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn found(proxies: &UpstreamProxies, host: &str, is_tls: bool) -> Option<(String, u16)> {
        proxies.find(host, 443, is_tls).map(|proxy| (proxy.host.clone(), proxy.port))
    }

    #[test]
    fn variables_of_proxies_are_read_with_their_exceptions() {
        let read = proxies(&[
            ("https_proxy", "http://user:word@proxy:3128/"),
            ("HTTP_PROXY", "plain:80"),
            ("no_proxy", "localhost,.corp.example 10.0.0.1"),
        ]);
        assert_eq!(found(&read, "h.example", true), Some(("proxy".to_owned(), 3128)));
        assert_eq!(found(&read, "h.example", false), Some(("plain".to_owned(), 80)));
        for host in ["localhost", "corp.example", "Git.Corp.Example", "10.0.0.1"] {
            assert_eq!(found(&read, host, true), None, "{host}");
        }
        assert!(found(&read, "xcorp.example", true).is_some());
        let all = proxies(&[("ALL_PROXY", "http://[::1]:8080")]);
        assert_eq!(found(&all, "h", false), Some(("::1".to_owned(), 8080)));
        assert_eq!(found(&proxies(&[("all_proxy", "socks5://h:1")]), "h", true), None);
        let none = proxies(&[("all_proxy", "h:1"), ("no_proxy", "*")]);
        assert_eq!(found(&none, "h", true), None);
        assert_eq!(proxies(&[]), UpstreamProxies::default());
    }

    #[test]
    fn login_without_a_password_has_an_empty_one() {
        for (url, expected) in [
            ("http://token@h:1", Some("token:")),
            ("http://token:@h:1", Some("token:")),
            ("http://user:word@h:1", Some("user:word")),
            ("http://h:1", None),
        ] {
            let read = proxies(&[("all_proxy", url)]);
            let proxy = read.find("other", 443, true).expect("a proxy");
            assert_eq!(proxy.credentials.as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn networks_and_ports_are_exceptions() {
        let exceptions = "10.0.0.0/8,fd00::/8,git.corp:8080,192.168.0.1:80,*.dev.corp,[fe80::1]";
        let read = proxies(&[("all_proxy", "h:1"), ("no_proxy", exceptions)]);
        for (host, port, is_direct) in [
            ("10.200.3.4", 443, true),
            ("::ffff:10.0.0.1", 443, true),
            ("11.0.0.1", 443, false),
            ("fd00::1", 443, true),
            ("fe80::1", 443, true),
            ("fe80::2", 443, false),
            ("git.corp", 8080, true),
            ("a.git.corp", 8080, true),
            ("git.corp", 443, false),
            ("192.168.0.1", 80, true),
            ("192.168.0.1", 81, false),
            ("a.dev.corp", 1, true),
        ] {
            assert_eq!(read.find(host, port, true).is_none(), is_direct, "{host}:{port}");
        }
    }
}
