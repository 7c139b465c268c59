//! Addresses of the internet, as opposed to those of this host and of networks that it is in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rollout_protocol::spec::task::HostRule;

/// Networks that are not public: this host, private and link-local networks, shared and reserved
/// addresses. Metadata services of clouds are in them, but for the last one.
const INTERNAL_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 3),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
];

/// Networks below 2000::/3 that are not public: addresses that contain one of IPv4, and those of
/// documents.
const INTERNAL_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// The network in which a translator (NAT64) has the hosts of IPv4: each by its address, in the last 32
/// bits. Hosts without IPv4 get such addresses for names, from a resolver with DNS64. Other networks of
/// translators are those of single sites: `64:ff9b:1::/48`, and parts of their own networks.
const TRANSLATED: (Ipv6Addr, u32) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

/// The address of the host that an address leads to: that of IPv4, if it stands for one.
pub(super) fn reached(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    let IpAddr::V6(written) = address else { return address };
    let (network, bits) = TRANSLATED;
    let host = u128::MAX >> bits;
    match u32::try_from(written.to_bits() & host) {
        Ok(inner) if written.to_bits() & !host == network.to_bits() => {
            IpAddr::V4(Ipv4Addr::from_bits(inner))
        }
        Ok(_) | Err(_) => address,
    }
}

/// The address by which a translator reaches a host of IPv4.
fn translated(host: Ipv4Addr) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(TRANSLATED.0.to_bits() | u128::from(host.to_bits())))
}

/// Whether an address leads to a host of the internet.
pub fn is_public(address: IpAddr) -> bool {
    match reached(address) {
        IpAddr::V4(address) => !INTERNAL_V4.iter().any(|(network, bits)| {
            let mask = u32::MAX << (32 - bits);
            network.to_bits() & mask == address.to_bits() & mask
        }),
        IpAddr::V6(address) => {
            let is_global = address.segments()[0] & 0xe000 == 0x2000;
            is_global
                && !INTERNAL_V6.iter().any(|(network, bits)| {
                    let mask = u128::MAX << (128 - bits);
                    network.to_bits() & mask == address.to_bits() & mask
                })
        }
    }
}

/// The first of these rules that lists an address which is not public. A text that is no rule lists none.
pub fn first_internal_host(hosts: &[String]) -> Option<&str> {
    let is_internal =
        |host: &&String| host.parse::<HostRule>().is_ok_and(|rule| lists_internal(&rule));
    hosts.iter().find(is_internal).map(String::as_str)
}

fn lists_internal(rule: &HostRule) -> bool {
    let Some((address, _)) = rule.network() else { return false };
    let v4 = INTERNAL_V4.iter();
    let v4 = v4.flat_map(|(network, _)| [IpAddr::V4(*network), translated(*network)]);
    let v6 = INTERNAL_V6.iter().map(|(network, _)| IpAddr::V6(*network));
    let port = rule.port().unwrap_or_default();
    // Of two networks that have an address in common, one has the first address of the other.
    let mut first = std::iter::once(address).chain(v4).chain(v6);
    first.any(|address| !is_public(address) && rule.allows_internal_address(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_that_lists_internal_addresses_is_found() {
        let found = |host: &str| {
            let hosts = ["a.example", host].map(str::to_owned);
            first_internal_host(&hosts).map(str::to_owned)
        };
        for host in [
            "127.0.0.1",
            "127.0.0.1:4222",
            "169.254.169.254",
            "10.0.0.0/8",
            "10.1.2.3/8",
            "172.0.0.0/8",
            "172.1.2.3/8",
            "192.168.7.0/24",
            "203.0.112.0/23",
            "168.63.128.0/17",
            "::1",
            "[::1]:443",
            "fd00::/8",
            "::ffff:10.0.0.1",
            "2000::/7",
            "2001:db8::/48",
            "64:ff9b::/96",
            "64:ff9b::10.0.0.1",
            "[64:ff9b::127.0.0.1]:80",
            "64:ff9b::172.0.0.0/104",
            "64:ff9b:1::/48",
            "2002::/16",
            "2001::/32",
        ] {
            assert_eq!(found(host).as_deref(), Some(host));
        }
        for host in [
            "localhost",
            "*.internal",
            "8.8.8.8",
            "8.8.8.8:53",
            "172.32.0.0/11",
            "0.0.0.0/0",
            "128.0.0.0/1",
            "::/0",
            "2606:4700::/32",
            "64:ff9b::8.8.8.8",
            "64:ff9b::8.8.8.0/120",
            "no rule",
        ] {
            assert_eq!(found(host), None, "{host}");
        }
    }

    #[test]
    fn addresses_of_host_and_private_networks_are_not_public() {
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().expect("an address")), "{text}");
        }
    }

    #[test]
    fn address_with_one_of_ipv4_is_public_only_where_a_translator_leads_to_it() {
        for (text, expected) in [
            ("64:ff9b::1.1.1.1", true),
            ("64:ff9b::172.32.0.1", true),
            ("64:ff9b::10.0.0.1", false),
            ("64:ff9b::127.0.0.1", false),
            ("64:ff9b::169.254.169.254", false),
            ("64:ff9b::192.168.1.1", false),
            ("64:ff9b::100.64.0.1", false),
            ("64:ff9b::168.63.129.16", false),
            ("64:ff9b::", false),
            // Other bits than those of the network.
            ("64:ff9b::1:1.1.1.1", false),
            ("64:ff9b:0:1::1.1.1.1", false),
            // Translators of single sites.
            ("64:ff9b:1::1.1.1.1", false),
            ("64:ff9b:1:ffff::a00:1", false),
            // 6to4, Teredo, and forms of IPv4 that no packet has.
            ("2002:101:101::1", false),
            ("2001:0:101:101::1", false),
            ("::1.1.1.1", false),
            ("::ffff:0:1.1.1.1", false),
            ("::ffff:1.1.1.1", true),
            ("::ffff:10.0.0.1", false),
        ] {
            assert_eq!(is_public(text.parse().expect("an address")), expected, "{text}");
        }
    }

    #[test]
    fn addresses_of_internet_are_public() {
        for text in ["1.1.1.1", "140.82.121.4", "172.32.0.1", "192.0.1.1", "2606:4700::1111"] {
            assert!(is_public(text.parse().expect("an address")), "{text}");
        }
        assert!(is_public("::ffff:1.1.1.1".parse().expect("an address")));
    }
}
