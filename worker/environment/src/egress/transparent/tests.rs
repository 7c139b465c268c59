//! Queries for names over real sockets of this host.

use std::net::{Ipv4Addr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};

use super::super::{AllowedHosts, EgressNames, EgressProxy, RefusedHosts};
use super::*;

/// A query for the addresses of a name.
fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut query = vec![1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).expect("short"));
        query.extend_from_slice(label.as_bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    query
}

/// The code and the address of the answer to a query.
async fn asked(proxy: &StdUdpSocket, name: &str, kind: u16) -> (u8, Option<Ipv4Addr>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let to = proxy.local_addr().expect("an address");
    socket.send_to(&query(name, kind), to).await.expect("sent");
    let mut answer = [0; 512];
    let receiving = socket.recv(&mut answer);
    let length = tokio::time::timeout(Duration::from_secs(30), receiving).await;
    let length = length.expect("an answer").expect("received");
    let address = (answer[7] == 1).then(|| {
        let octets: [u8; 4] = answer[length - 4..length].try_into().expect("four");
        Ipv4Addr::from(octets)
    });
    (answer[3] & 15, address)
}

#[tokio::test]
async fn names_resolve_to_allowed_hosts_only() {
    for (rules, expected) in
        [(&["localhost", "127.0.0.0/8"][..], true), (&["localhost:80"][..], false)]
    {
        let rules: Vec<_> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let allowed = AllowedHosts::parse(&rules).expect("rules");
        let refused = Arc::new(RefusedHosts::default());
        let mut proxy = EgressProxy::new(allowed, Arc::clone(&refused));
        let connections = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let names = StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let asking = names.try_clone().expect("a copy");
        proxy.lead(LedSockets { connections, names }).expect("served");

        let (code, address) = asked(&asking, "LocalHost", TYPE_A).await;
        assert_eq!((code == 0, address.is_some()), (expected, expected), "{rules:?} {code}");
        if let Some(address) = address {
            assert_eq!(address.octets()[..2], [198, 18]);
            assert_eq!(asked(&asking, "localhost", TYPE_A).await, (0, Some(address)));
        }
        assert_eq!(asked(&asking, "localhost", 28).await, (0, None), "no IPv6");
        assert_eq!(asked(&asking, "other.example", TYPE_A).await, (3, None));
        let hosts = refused.summary().expect("some").hosts;
        let named =
            |name: &str| hosts.iter().find(|host| host.host == name).map(|host| host.reason);
        assert_eq!(named("other.example"), Some("not_listed"));
        assert_eq!(named("localhost"), (!expected).then_some("internal_address"));
    }
}

#[tokio::test]
async fn address_of_an_earlier_phase_stands_for_no_other_name() {
    let kept = EgressNames::default();
    let earlier = kept.addresses.address_of("earlier.example").expect("room");
    let rules = ["localhost", "127.0.0.0/8"].map(str::to_owned);
    let allowed = AllowedHosts::parse(&rules).expect("rules");
    let mut proxy = EgressProxy::of_environment(allowed, Arc::default(), kept);
    let connections = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let names = StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let asking = names.try_clone().expect("a copy");
    proxy.lead(LedSockets { connections, names }).expect("served");
    let (code, address) = asked(&asking, "localhost", TYPE_A).await;
    assert_eq!(code, 0);
    assert!(address.is_some_and(|address| address != earlier), "{address:?}");
}
