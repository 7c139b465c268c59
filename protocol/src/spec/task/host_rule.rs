//! Rules of an allowlist of hosts.

use core::net::IpAddr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Largest length of a host name.
const MAX_NAME_BYTES: usize = 253;

/// Largest length of a part of a host name.
const MAX_LABEL_BYTES: usize = 63;

/// Fewest bits of a network that lists addresses which are not public: a rule for nearly all
/// addresses is about the internet, not about the network of the worker.
const MIN_INTERNAL_BITS: (u8, u8) = (8, 7);

/// One entry of `allowed_hosts`: a host name, `*.` and a name for all names below it, an address, or
/// a network `address/bits`; for names and addresses `:port` limits it to that port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostRule {
    pattern: HostPattern,
    /// The only port; any when absent.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Name(String),
    NamesBelow(String),
    Network { address: IpAddr, bits: u8 },
}

/// A text that is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no host name, `*.` and a name, IP address or network `address/bits`; names and \
     addresses may end with `:port`"
)]
pub struct InvalidHostRule(String);

impl FromStr for HostRule {
    type Err = InvalidHostRule;

    fn from_str(text: &str) -> Result<Self, InvalidHostRule> {
        parse(text).ok_or_else(|| InvalidHostRule(text.to_owned()))
    }
}

impl TryFrom<String> for HostRule {
    type Error = InvalidHostRule;

    fn try_from(text: String) -> Result<Self, InvalidHostRule> {
        text.parse()
    }
}

impl From<HostRule> for String {
    fn from(rule: HostRule) -> Self {
        rule.to_string()
    }
}

fn parse(text: &str) -> Option<HostRule> {
    if let Some((address, bits)) = text.split_once('/') {
        let address: IpAddr = address.parse().ok()?;
        let bits = bits.parse().ok().filter(|bits| *bits <= full_bits(address))?;
        return Some(HostRule { pattern: HostPattern::Network { address, bits }, port: None });
    }
    let (host, port) = split_port(text)?;
    if let Ok(address) = host.parse::<IpAddr>() {
        let bits = full_bits(address);
        return Some(HostRule { pattern: HostPattern::Network { address, bits }, port });
    }
    let pattern = match host.strip_prefix("*.") {
        Some(parent) => HostPattern::NamesBelow(normal_name(parent)?),
        None => HostPattern::Name(normal_name(host)?),
    };
    Some(HostRule { pattern, port })
}

/// Separates a port. An IPv6 address with a port is in brackets.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let port = |text: &str| text.parse().ok().filter(|port| *port != 0);
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        address.parse::<IpAddr>().ok()?;
        return match rest.strip_prefix(':') {
            Some(number) => Some((address, Some(port(number)?))),
            None => rest.is_empty().then_some((address, None)),
        };
    }
    if text.parse::<IpAddr>().is_ok() {
        return Some((text, None));
    }
    match text.split_once(':') {
        Some((host, number)) => Some((host, Some(port(number)?))),
        None => Some((text, None)),
    }
}

const fn full_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// A host name in lower case without the dot at its end; `None` if it is none.
pub fn normal_name(name: &str) -> Option<String> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let good = name.len() <= MAX_NAME_BYTES && name.split('.').all(is_label);
    good.then(|| name.to_ascii_lowercase())
}

impl HostRule {
    /// Whether it allows a port of the host with a name, as [`normal_name`] gives it.
    pub fn allows_name(&self, name: &str, port: u16) -> bool {
        self.port.is_none_or(|only| only == port)
            && match &self.pattern {
                HostPattern::Name(known) => known == name,
                HostPattern::NamesBelow(parent) => {
                    name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.ends_with('.'))
                }
                HostPattern::Network { .. } => false,
            }
    }

    /// Whether it names an address, or a network with it, and allows the port.
    pub fn allows_address(&self, address: IpAddr, port: u16) -> bool {
        self.port.is_none_or(|only| only == port) && self.has_address(address)
    }

    /// Like [`HostRule::allows_address`], for an address that is not public: it must not be one of
    /// nearly all addresses that the rule allows.
    pub fn allows_internal_address(&self, address: IpAddr, port: u16) -> bool {
        let HostPattern::Network { bits, .. } = &self.pattern else { return false };
        let (fewest_v4, fewest_v6) = MIN_INTERNAL_BITS;
        let fewest = if address.is_ipv4() { fewest_v4 } else { fewest_v6 };
        *bits >= fewest && self.allows_address(address, port)
    }

    /// The only port that it allows, if it names one.
    pub const fn port(&self) -> Option<u16> {
        self.port
    }

    /// The network that it names, with the number of its bits.
    pub const fn network(&self) -> Option<(IpAddr, u8)> {
        match self.pattern {
            HostPattern::Network { address, bits } => Some((address, bits)),
            HostPattern::Name(_) | HostPattern::NamesBelow(_) => None,
        }
    }

    fn has_address(&self, found: IpAddr) -> bool {
        let HostPattern::Network { address, bits } = &self.pattern else { return false };
        match (address, found) {
            (IpAddr::V4(network), IpAddr::V4(found)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                network.to_bits() & mask == found.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(found)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(*bits)).unwrap_or(0);
                network.to_bits() & mask == found.to_bits() & mask
            }
            _ => false,
        }
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pattern {
            HostPattern::Name(name) => f.write_str(name)?,
            HostPattern::NamesBelow(parent) => write!(f, "*.{parent}")?,
            HostPattern::Network { address, bits } if *bits == full_bits(*address) => {
                match (address, self.port) {
                    (IpAddr::V6(address), Some(_)) => write!(f, "[{address}]")?,
                    (address, _) => write!(f, "{address}")?,
                }
            }
            HostPattern::Network { address, bits } => write!(f, "{address}/{bits}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> HostRule {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn rules_are_shown_as_they_are_written() {
        for text in [
            "example.org",
            "*.example.org",
            "example.org:8443",
            "*.example.org:443",
            "10.1.2.3",
            "10.1.2.3:80",
            "10.0.0.0/8",
            "2001:db8::1",
            "[2001:db8::1]:443",
            "fd00::/8",
        ] {
            assert_eq!(rule(text).to_string(), text);
        }
        assert_eq!(rule("Example.ORG."), rule("example.org"));
        assert_eq!(rule("[::1]"), rule("::1"));
    }

    #[test]
    fn text_that_is_no_rule_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "a..b",
            "-a.b",
            "a.b-",
            "a b",
            "a.b:0",
            "a.b:65536",
            "a.b:",
            "http://a.b",
            "10.0.0.0/33",
            "10.0.0.0/8:80",
            "a.b/8",
            "[a.b]:80",
            "[::1]x",
            "a.*.b",
            "::1/129",
        ] {
            let error = text.parse::<HostRule>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("`{text}` is no host name")), "{error}");
        }
    }

    #[test]
    fn name_allows_itself_and_wildcard_only_names_below() {
        assert!(rule("example.org").allows_name("example.org", 80));
        for other in ["www.example.org", "example.org.evil.net", "xexample.org"] {
            assert!(!rule("example.org").allows_name(other, 80), "{other}");
        }
        for below in ["www.example.org", "a.b.example.org"] {
            assert!(rule("*.example.org").allows_name(below, 80), "{below}");
        }
        for other in ["example.org", "evilexample.org", "www.example.org.evil.net"] {
            assert!(!rule("*.example.org").allows_name(other, 80), "{other}");
        }
        assert!(!rule("10.0.0.1").allows_name("10.0.0.1", 80), "addresses are no names");
    }

    #[test]
    fn port_of_rule_is_the_only_one() {
        assert!(rule("a.b:443").allows_name("a.b", 443) && !rule("a.b:443").allows_name("a.b", 80));
        let host = address("10.0.0.1");
        assert!(rule("10.0.0.1:80").allows_address(host, 80));
        assert!(!rule("10.0.0.1:80").allows_address(host, 81));
    }

    #[test]
    fn network_allows_addresses_by_their_first_bits() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.0.2.128/25", "192.0.2.255", "192.0.2.1"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
        ] {
            assert!(rule(network).allows_address(address(inside), 1), "{network} {inside}");
            assert!(!rule(network).allows_address(address(outside), 1), "{network} {outside}");
        }
    }

    #[test]
    fn rule_for_nearly_all_addresses_lists_no_internal_one() {
        let metadata = address("169.254.169.254");
        assert!(rule("169.254.0.0/16").allows_internal_address(metadata, 80));
        assert!(rule("169.254.169.254").allows_internal_address(metadata, 80));
        assert!(!rule("0.0.0.0/0").allows_internal_address(metadata, 80));
        assert!(!rule("128.0.0.0/1").allows_internal_address(metadata, 80));
        assert!(!rule("::/0").allows_internal_address(address("::1"), 80));
    }
}
