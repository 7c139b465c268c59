//! The decision which hosts an allowlist allows.

use std::fmt;
use std::net::IpAddr;

use rollout_protocol::spec::task::{HostRule, InvalidHostRule, normal_name};

use super::addresses::is_public;

/// The hosts of an allowlist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHosts(Vec<HostRule>);

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
}

impl HostRefusal {
    /// Its word in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotListed => "not_listed",
            Self::InternalAddress => "internal_address",
        }
    }
}

impl fmt::Display for HostRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotListed => "it is not in `allowed_hosts`",
            Self::InternalAddress => {
                "it has an address of a private network or of this host, which `allowed_hosts` does \
                 not list"
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
        rules.iter().map(|rule| rule.parse()).collect::<Result<_, _>>().map(Self)
    }

    /// The target that a request for a host names, without brackets. Names that no rule has are not
    /// looked up: a look-up itself can carry data out.
    ///
    /// # Errors
    /// [`HostRefusal::NotListed`].
    pub fn check_host(&self, host: &str, port: u16) -> Result<HostTarget, HostRefusal> {
        if let Ok(address) = host.parse::<IpAddr>() {
            let address = address.to_canonical();
            let allowed = self.allows_address(address, port);
            return allowed.then_some(HostTarget::Address(address)).ok_or(HostRefusal::NotListed);
        }
        let name = normal_name(host).ok_or(HostRefusal::NotListed)?;
        let allowed = self.0.iter().any(|rule| rule.allows_name(&name, port));
        allowed.then_some(HostTarget::Name(name)).ok_or(HostRefusal::NotListed)
    }

    /// The addresses of an allowed name that may be connected to.
    ///
    /// # Errors
    /// [`HostRefusal::InternalAddress`] if there are addresses, but none that may be.
    pub fn check_addresses(
        &self,
        found: impl IntoIterator<Item = IpAddr>,
        port: u16,
    ) -> Result<Vec<IpAddr>, HostRefusal> {
        let found: Vec<_> = found.into_iter().map(|address| address.to_canonical()).collect();
        let may = |address: &IpAddr| is_public(*address) || self.allows_address(*address, port);
        let allowed: Vec<_> = found.iter().copied().filter(may).collect();
        if allowed.is_empty() && !found.is_empty() {
            return Err(HostRefusal::InternalAddress);
        }
        Ok(allowed)
    }

    fn allows_address(&self, address: IpAddr, port: u16) -> bool {
        self.0.iter().any(|rule| match is_public(address) {
            true => rule.allows_address(address, port),
            false => rule.allows_internal_address(address, port),
        })
    }
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
        assert_eq!(only_name.check_addresses(found.clone(), 80), Ok(addresses(&["1.1.1.1"])));
        let refused = only_name.check_addresses(addresses(&["127.0.0.1", "::ffff:10.0.0.1"]), 80);
        assert_eq!(refused, Err(HostRefusal::InternalAddress));
        assert_eq!(only_name.check_addresses([], 80), Ok(Vec::new()));
        let with_network = hosts(&["example.org", "10.0.0.0/8"]);
        let allowed = with_network.check_addresses(found.clone(), 80);
        assert_eq!(allowed, Ok(addresses(&["1.1.1.1", "10.0.0.1"])));
        let everything = hosts(&["example.org", "0.0.0.0/0", "::/0"]);
        assert_eq!(everything.check_addresses(found, 80), Ok(addresses(&["1.1.1.1"])));
    }

    #[test]
    fn internal_addresses_need_rule_of_their_own() {
        let metadata = "169.254.169.254";
        assert!(hosts(&["169.254.169.254"]).check_host(metadata, 80).is_ok());
        assert!(hosts(&["0.0.0.0/0"]).check_host(metadata, 80).is_err());
        assert!(hosts(&["0.0.0.0/0"]).check_host("1.1.1.1", 80).is_ok());
    }
}
