//! The decision which hosts an allowlist allows.

use std::fmt;
use std::net::IpAddr;

use rollout_protocol::spec::task::{HostRule, InvalidHostRule, normal_name};

use super::addresses::{is_public, reached};
use super::led::LedNetwork;

/// A port that stands for all ports of a name.
#[cfg(all(feature = "egress", target_os = "linux"))]
const ANY_PORT: u16 = 443;

/// The hosts that may be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHosts {
    rules: Vec<HostRule>,
    /// Whether every public address is allowed without a rule, and all addresses of names that have
    /// one.
    is_public: bool,
    /// Whether no rule allows an address that is not public.
    is_guarded: bool,
}

/// A host that may be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostTarget {
    /// A name to look up.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// Why a host is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostRefusal {
    /// No rule has it.
    NotListed,
    /// Its name is listed, but it has only addresses of this host or of private networks, and no rule
    /// has one of them.
    InternalAddress,
    /// Its name has no address. Said as [`Self::InternalAddress`] to those who may not learn which names
    /// of private networks exist.
    NoAddress,
}

impl HostRefusal {
    /// Its word in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotListed => "not_listed",
            Self::InternalAddress => "internal_address",
            Self::NoAddress => "no_address",
        }
    }
}

impl fmt::Display for HostRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotListed => "it is not in `allowed_hosts`",
            Self::InternalAddress | Self::NoAddress => {
                "it has an address of a private network or of this host, which `allowed_hosts` does \
                 not list, or may not list in runs of a server"
            }
        })
    }
}

impl AllowedHosts {
    /// Reads the rules of an allowlist.
    ///
    /// # Errors
    /// [`InvalidHostRule`].
    pub fn parse(rules: &[String]) -> Result<Self, InvalidHostRule> {
        let rules = rules.iter().map(|rule| rule.parse()).collect::<Result<_, _>>()?;
        Ok(Self { rules, is_public: false, is_guarded: false })
    }

    /// All public addresses, and the hosts of these rules with all of their addresses.
    pub const fn public(rules: Vec<HostRule>) -> Self {
        Self { rules, is_public: true, is_guarded: false }
    }

    /// The same hosts, without addresses that are not public: for rules of users who may not use the
    /// network of this host.
    #[must_use]
    pub fn guarded(self) -> Self {
        Self { is_guarded: true, ..self }
    }

    /// Its rules.
    pub fn rules(&self) -> &[HostRule] {
        &self.rules
    }

    /// The same hosts, and those of another rule.
    #[must_use]
    pub fn with(mut self, rule: HostRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Whether a rule has a host, without brackets.
    pub fn lists(&self, host: &str, port: u16) -> bool {
        match host.parse::<IpAddr>() {
            Ok(address) => self.allows_address(address.to_canonical(), port),
            Err(_) => normal_name(host).is_some_and(|name| self.lists_name(&name, port)),
        }
    }

    /// The target that a request for a host names, without brackets. Names that no rule has are not
    /// looked up: a look-up itself can carry data out.
    ///
    /// # Errors
    /// [`HostRefusal`].
    pub fn check_host(&self, host: &str, port: u16) -> Result<HostTarget, HostRefusal> {
        if let Ok(address) = host.parse::<IpAddr>() {
            let address = address.to_canonical();
            let allowed =
                (self.is_public && is_public(address)) || self.allows_address(address, port);
            let names = |rule: &HostRule| {
                forms(address).iter().any(|form| rule.allows_address(*form, port))
            };
            let is_withheld = self.is_guarded && self.rules.iter().any(names);
            let refusal = match self.is_public || is_withheld {
                true => HostRefusal::InternalAddress,
                false => HostRefusal::NotListed,
            };
            return allowed.then_some(HostTarget::Address(address)).ok_or(refusal);
        }
        let name = normal_name(host).ok_or(HostRefusal::NotListed)?;
        let allowed = self.is_public || self.lists_name(&name, port);
        allowed.then_some(HostTarget::Name(name)).ok_or(HostRefusal::NotListed)
    }

    /// The addresses of an allowed name that may be connected to.
    ///
    /// # Errors
    /// [`HostRefusal::InternalAddress`] if there are addresses, but none that may be.
    pub fn check_addresses(
        &self,
        name: &str,
        found: impl IntoIterator<Item = IpAddr>,
        port: u16,
    ) -> Result<Vec<IpAddr>, HostRefusal> {
        let found: Vec<_> = found.into_iter().map(|address| address.to_canonical()).collect();
        let has_all = self.is_public && self.lists_name(name, port);
        let may = |address: &IpAddr| {
            has_all || is_public(*address) || self.allows_address(*address, port)
        };
        let allowed: Vec<_> = found.iter().copied().filter(may).collect();
        if allowed.is_empty() && !found.is_empty() {
            return Err(HostRefusal::InternalAddress);
        }
        Ok(allowed)
    }

    /// Whether the one who asks for a name may not learn if it has an address: no rule has it.
    #[cfg(feature = "egress")]
    pub(super) fn hides_name(&self, name: &str, port: u16) -> bool {
        self.is_public && !self.lists_name(name, port)
    }

    /// A port of a name that a rule has; `None` without one.
    #[cfg(all(feature = "egress", target_os = "linux"))]
    pub(super) fn port_of_name(&self, name: &str) -> Option<u16> {
        self.rules.iter().find_map(|rule| {
            let port = rule.port().unwrap_or(ANY_PORT);
            rule.allows_name(name, port).then_some(port)
        })
    }

    /// The IPv4 networks of its rules.
    pub fn networks(&self) -> Vec<LedNetwork> {
        let network = |rule: &HostRule| match rule.network()? {
            (IpAddr::V4(address), bits) => Some(LedNetwork { address, bits, port: rule.port() }),
            (IpAddr::V6(_), _) => None,
        };
        self.rules.iter().filter_map(network).collect()
    }

    fn lists_name(&self, name: &str, port: u16) -> bool {
        self.rules.iter().any(|rule| rule.allows_name(name, port))
    }

    fn allows_address(&self, address: IpAddr, port: u16) -> bool {
        let is_public = is_public(address);
        let allows = |rule: &HostRule, form: &IpAddr| match is_public {
            true => rule.allows_address(*form, port),
            false => !self.is_guarded && rule.allows_internal_address(*form, port),
        };
        self.rules.iter().any(|rule| forms(address).iter().any(|form| allows(rule, form)))
    }
}

/// The addresses by which a rule may name a host: as it is asked for, and as it is reached.
fn forms(address: IpAddr) -> [IpAddr; 2] {
    [address, reached(address)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(rules: &[&str]) -> AllowedHosts {
        let rules: Vec<_> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        AllowedHosts::parse(&rules).expect("rules")
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn listed_names_and_addresses_are_allowed_and_others_refused() {
        let hosts = hosts(&["example.org", "*.cdn.net", "8.8.8.8", "api.dev:8443"]);
        let name = |name: &str| Ok(HostTarget::Name(name.to_owned()));
        assert_eq!(hosts.check_host("Example.org.", 443), name("example.org"));
        assert_eq!(hosts.check_host("a.cdn.net", 80), name("a.cdn.net"));
        assert_eq!(hosts.check_host("api.dev", 8443), name("api.dev"));
        assert_eq!(hosts.check_host("8.8.8.8", 53), Ok(HostTarget::Address([8, 8, 8, 8].into())));
        assert_eq!(
            hosts.check_host("::ffff:8.8.8.8", 53),
            Ok(HostTarget::Address([8, 8, 8, 8].into()))
        );
        for (host, port) in [
            ("example.com", 443),
            ("cdn.net", 80),
            ("api.dev", 443),
            ("8.8.4.4", 53),
            ("127.1", 80),
            ("2130706433", 80),
            ("0x7f.1", 80),
            ("a b", 80),
            ("", 80),
        ] {
            assert_eq!(hosts.check_host(host, port), Err(HostRefusal::NotListed), "{host}");
        }
    }

    #[test]
    fn addresses_of_name_are_public_or_listed() {
        let only_name = hosts(&["example.org"]);
        let found = addresses(&["127.0.0.1", "1.1.1.1", "10.0.0.1", "::1"]);
        assert_eq!(
            only_name.check_addresses("example.org", found.clone(), 80),
            Ok(addresses(&["1.1.1.1"]))
        );
        let refused = only_name.check_addresses(
            "example.org",
            addresses(&["127.0.0.1", "::ffff:10.0.0.1"]),
            80,
        );
        assert_eq!(refused, Err(HostRefusal::InternalAddress));
        assert_eq!(only_name.check_addresses("example.org", [], 80), Ok(Vec::new()));
        let with_network = hosts(&["example.org", "10.0.0.0/8"]);
        let allowed = with_network.check_addresses("example.org", found.clone(), 80);
        assert_eq!(allowed, Ok(addresses(&["1.1.1.1", "10.0.0.1"])));
        let everything = hosts(&["example.org", "0.0.0.0/0", "::/0"]);
        assert_eq!(
            everything.check_addresses("example.org", found, 80),
            Ok(addresses(&["1.1.1.1"]))
        );
    }

    #[test]
    fn addresses_of_a_translator_are_those_of_the_hosts_behind_it() {
        let (public, private) = ("64:ff9b::1.1.1.1", "64:ff9b::10.0.0.1");
        let found = || addresses(&[private, public]);
        for hosts in [hosts(&["a.example"]), hosts(&["a.example"]).guarded()] {
            let allowed = hosts.check_addresses("a.example", found(), 443);
            assert_eq!(allowed, Ok(addresses(&[public])), "connected to as it was found");
            let refused = hosts.check_addresses("a.example", addresses(&[private]), 443);
            assert_eq!(refused, Err(HostRefusal::InternalAddress));
        }
        let listed = hosts(&["a.example", "10.0.0.0/8", "1.1.1.1:53"]);
        assert_eq!(listed.check_addresses("a.example", found(), 443), Ok(found()));
        for (host, port, allowed) in [
            (public, 53, true),
            (public, 443, false),
            (private, 80, true),
            ("64:ff9b::7f00:1", 80, false),
        ] {
            assert_eq!(listed.check_host(host, port).is_ok(), allowed, "{host}:{port}");
        }
        let guarded = listed.guarded();
        assert_eq!(guarded.check_host(private, 80), Err(HostRefusal::InternalAddress));
        assert!(guarded.check_host(public, 53).is_ok());
        let everywhere = AllowedHosts::public(Vec::new());
        for (host, allowed) in [(public, true), (private, false), ("64:ff9b:1::1.1.1.1", false)] {
            assert_eq!(everywhere.check_host(host, 443).is_ok(), allowed, "{host}");
        }
    }

    #[test]
    fn internal_addresses_need_rule_of_their_own() {
        let metadata = "169.254.169.254";
        assert!(hosts(&["169.254.169.254"]).check_host(metadata, 80).is_ok());
        assert!(hosts(&["0.0.0.0/0"]).check_host(metadata, 80).is_err());
        assert!(hosts(&["0.0.0.0/0"]).check_host("1.1.1.1", 80).is_ok());
    }

    #[test]
    fn guarded_hosts_have_public_addresses_only() {
        let rules = ["127.0.0.1:4222", "10.0.0.0/8", "::1", "8.8.8.8", "0.0.0.0/0", "a.example"];
        let (open, guarded) = (hosts(&rules), hosts(&rules).guarded());
        for (host, port) in [("127.0.0.1", 4222), ("10.1.2.3", 80), ("::1", 80)] {
            assert!(open.check_host(host, port).is_ok(), "{host}");
            let refused = guarded.check_host(host, port);
            assert_eq!(refused, Err(HostRefusal::InternalAddress), "{host}");
            assert!(!guarded.lists(host, port), "{host}");
        }
        assert_eq!(guarded.check_host("::2", 80), Err(HostRefusal::NotListed));
        assert!(guarded.check_host("8.8.8.8", 53).is_ok());
        let found = addresses(&["127.0.0.1", "1.1.1.1", "10.0.0.1"]);
        let allowed = guarded.check_addresses("a.example", found, 4222);
        assert_eq!(allowed, Ok(addresses(&["1.1.1.1"])));
        let inner = guarded.check_addresses("a.example", addresses(&["10.0.0.1"]), 80);
        assert_eq!(inner, Err(HostRefusal::InternalAddress));
    }

    #[test]
    fn public_hosts_are_allowed_with_listed_names_at_any_address() {
        let rules = ["git.corp:80", "10.0.0.1"].map(|rule| rule.parse().expect("a rule"));
        let hosts = AllowedHosts::public(rules.to_vec());
        for (host, port) in [("any.example", 1), ("8.8.8.8", 53), ("git.corp", 80), ("10.0.0.1", 7)]
        {
            assert!(hosts.check_host(host, port).is_ok(), "{host}");
        }
        for host in ["127.0.0.1", "10.0.0.2", "169.254.169.254", "::1", "::ffff:10.0.0.2"] {
            assert_eq!(hosts.check_host(host, 80), Err(HostRefusal::InternalAddress), "{host}");
        }
        let internal = addresses(&["10.0.0.9"]);
        for (name, port, allowed) in
            [("git.corp", 80, true), ("git.corp", 81, false), ("any.example", 80, false)]
        {
            let found = hosts.check_addresses(name, internal.clone(), port);
            assert_eq!(found.is_ok(), allowed, "{name}:{port}");
            assert_eq!(hosts.lists(name, port), allowed, "{name}:{port}");
        }
    }
}
